"""Training with Megatron-Core: models that no single GPU holds, spread by tensor, pipeline and context parallelism."""

from rlinf.engines.megatron.config import MegatronTrainerConfig as MegatronTrainerConfig
