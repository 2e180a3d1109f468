"""Seeded randomness, and decisions as a batch."""

import torch

from rlinf.core import Batch, Trajectory


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def batch_of(*decisions):
    """Decisions of consecutive steps."""
    return Batch.of(Trajectory.of_decisions(decisions))
