from rlinf.engines.fsdp.config import AmpAutocast as AmpAutocast
from rlinf.engines.fsdp.config import CheckpointConfig as CheckpointConfig
from rlinf.engines.fsdp.config import FSDPConfig as FSDPConfig
from rlinf.engines.fsdp.config import MixedPrecision as MixedPrecision
from rlinf.engines.fsdp.config import WrapPolicy as WrapPolicy
from rlinf.engines.fsdp.trainer import FSDPTrainerConfig as FSDPTrainerConfig
