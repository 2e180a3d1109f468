"""Which part of the samples a rank trains on, and what it does without any."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlinf.core.data import Batch
from rlinf.core.declarations import ModelParallel
from rlinf.core.protocols import TrainerConfig
from rlinf.runners.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


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


def uncounted(batch: Batch[Tensor]) -> Batch[Tensor]:
    """One row of a batch that counts nowhere: what a rank with nothing to train on keeps pace with."""
    one = batch.rows(slice(0, 1))
    return replace(one, trajectory=replace(one.trajectory, mask=torch.zeros_like(one.trajectory.mask)))
