"""Training and generation, weight synchronisation, checkpoints and guards."""

from rlinf.engines.balancing import split_by_tokens as split_by_tokens
from rlinf.engines.fsdp import AmpAutocast as AmpAutocast
from rlinf.engines.fsdp import CheckpointConfig as CheckpointConfig
from rlinf.engines.fsdp import FSDPConfig as FSDPConfig
from rlinf.engines.fsdp import FSDPTrainerConfig as FSDPTrainerConfig
from rlinf.engines.fsdp import MixedPrecision as MixedPrecision
from rlinf.engines.fsdp import WrapPolicy as WrapPolicy
from rlinf.engines.lazy_tensors import Gathered as Gathered
from rlinf.engines.lazy_tensors import LazyTensors as LazyTensors
from rlinf.engines.manifest import Manifest as Manifest
from rlinf.engines.optim import OptimConfig as OptimConfig
from rlinf.engines.packing import packed_micro_batches as packed_micro_batches
from rlinf.engines.weight_sync import BucketWeightSync as BucketWeightSync
from rlinf.engines.weight_sync import DiskWeightSync as DiskWeightSync
from rlinf.engines.weight_sync import FullWeightSync as FullWeightSync
from rlinf.engines.weight_sync import PatchWeightSync as PatchWeightSync
