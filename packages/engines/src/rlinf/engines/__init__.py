"""Training engines, weight synchronisation and checkpoints."""

from rlinf.engines.manifest import Manifest as Manifest
from rlinf.engines.trainer import FSDPConfig as FSDPConfig
from rlinf.engines.trainer import FSDPTrainerConfig as FSDPTrainerConfig
from rlinf.engines.trainer import OptimConfig as OptimConfig
from rlinf.engines.weight_sync import FullWeightSync as FullWeightSync
