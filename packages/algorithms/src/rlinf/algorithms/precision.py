"""The precision in which everything is computed."""

from __future__ import annotations

import torch
from torch import Tensor


def precise(x: Tensor) -> Tensor:
    """`x` in float32, or as it is if it is finer."""
    return x if x.dtype == torch.float64 else x.float()


def difference(a: Tensor, b: Tensor) -> Tensor:
    """`a − b` of log-probabilities in at least float32; 0 where both are −∞, since of what neither does neither does more."""
    return torch.where(a.isneginf() & b.isneginf(), 0.0, precise(a) - precise(b))
