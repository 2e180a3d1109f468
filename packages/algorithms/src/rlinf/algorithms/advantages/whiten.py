"""Whitening over all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.algorithms.shapes import expect_shape
from rlinf.core.protocols import AllReduce

EPSILON = 1e-8


def whiten(x: Tensor, mask: Tensor, all_reduce: AllReduce | None = None) -> Tensor:
    """Shifts and scales unmasked entries to mean 0 and variance 1.

    n = Σ mask,   μ = Σ x / n,   σ² = Σ (x − μ)² / n,   yₜ = (xₜ − μ) / (σ + 10⁻⁸)

    The variance is that of the population and takes a second pass, so that a large mean costs no precision; sums are in float64
    and go over all ranks, so that the split into ranks changes nothing. Entries that are all equal become 0.

    Args:
        x: `[B, T]`.
        mask: `[B, T]` bool, False where an entry does not count.
        all_reduce: sums a tensor over ranks; called twice, on every rank, whatever its mask. None if there is one rank.

    Returns:
        `[B, T]` in the type of `x`; 0 where masked.

    Raises:
        ShapeError: `mask` has another shape than `x`.
    """
    expect_shape("whiten(mask)", mask, x.shape)
    valid = mask.bool()
    exact = torch.where(valid, x, 0.0).double()
    count, total = _sum_over_ranks(torch.stack([valid.sum().double(), exact.sum()]), all_reduce)
    centred = torch.where(valid, exact - total / count.clamp(min=1.0), 0.0)
    square = _sum_over_ranks(centred.square().sum(), all_reduce)
    deviation = (square / count.clamp(min=1.0)).sqrt()
    return (centred / (deviation + EPSILON)).to(x.dtype)


def _sum_over_ranks(value: Tensor, all_reduce: AllReduce | None) -> Tensor:
    return value if all_reduce is None else all_reduce(value)
