"""Seeded randomness, and decisions as a batch."""

import torch

from rlinf.core import Batch, Trajectory


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def batch_of(decision, advantage=None):
    """One decision in each row."""
    return Batch.of(Trajectory.of_decisions([decision]), None if advantage is None else advantage[:, None])
