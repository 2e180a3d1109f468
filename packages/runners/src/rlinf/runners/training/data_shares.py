"""Which part of the samples a rank trains on."""

from __future__ import annotations

from rlinf.core.declarations import ModelParallel
from rlinf.core.protocols import TrainerConfig


def share_of(trainer: TrainerConfig, rank: int, world_size: int) -> tuple[int, int]:
    """A rank's share of the samples and how many shares there are: one for each rank, unless ranks share a model.

    Args:
        trainer: knows which do.
        rank: of an actor.
        world_size: how many actors there are.

    Raises:
        ConfigError: so many ranks can't hold the model.
    """
    return trainer.data_rank(rank, world_size) if isinstance(trainer, ModelParallel) else (rank, world_size)
