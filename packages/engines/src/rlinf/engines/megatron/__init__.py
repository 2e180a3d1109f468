"""Training with Megatron-Core: models that no single GPU holds, spread by tensor, pipeline, context and expert parallelism."""

from rlinf.engines.megatron.trainer import MegatronTrainerConfig as MegatronTrainerConfig
