"""Means, deviations and whitening: over the entries that count, and over all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor


def divisor(count: Tensor, *, unbiased: bool) -> Tensor:
    """What a sum of squares is divided by to be a variance: at least 1, so that one entry alone has variance 0.

    Args:
        count: how many entries there are, any shape.
        unbiased: whether one is taken off (Bessel).
    """
    return (count - int(unbiased)).clamp(min=1)


def root(variance: Tensor) -> Tensor:
    """The standard deviation, whose gradient is 0 rather than infinite where nothing varies.

    σ = √σ²

    Args:
        variance: any shape, at least 0.
    """
    # Two selects: √0 has an infinite derivative, and 0 · ∞ would be NaN even behind a single one.
    varies = variance > 0
    return torch.where(varies, torch.where(varies, variance, torch.inf).sqrt(), 0.0)


@takes_tensors
def moments(x: Tensor, mask: Tensor, all_reduce: AllReduce | None = None, *, unbiased: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the unmasked entries of all ranks.

    n = Σ mask,   μ = Σ x / n,   σ² = Σ (x − μ)² / n, or / (n − 1) if unbiased

    The variance takes a second pass, so that a large mean costs no precision; sums are in float64 and go over all ranks, so that
    the split into ranks changes nothing.

    Args:
        x: any shape.
        mask: the shape of `x`, bool, False where an entry does not count.
        all_reduce: sums a tensor over ranks; called twice, on every rank, whatever its mask. None if there is one rank.
        unbiased: whether one entry is taken off the count (Bessel).

    Returns:
        μ and σ, each `[]` in float64; 0 where nothing counts, and σ is 0 where one entry does.

    Raises:
        ShapeError: `mask` has another shape than `x`.
    """
    expect_shape("moments(mask)", mask, x.shape)
    valid = mask.bool()
    exact = torch.where(valid, x, 0.0).double()
    count, total = _sum_over_ranks(torch.stack([valid.sum().double(), exact.sum()]), all_reduce)
    mean = total / count.clamp(min=1.0)
    # A second pass: E[x²] − (E[x])² loses all digits where the mean is large beside the spread.
    square = _sum_over_ranks(torch.where(valid, exact - mean, 0.0).square().sum(), all_reduce)
    return mean, root(square / divisor(count, unbiased=unbiased))


def _sum_over_ranks(value: Tensor, all_reduce: AllReduce | None) -> Tensor:
    return value if all_reduce is None else all_reduce(value)


EPSILON: Final = 1e-8


@takes_tensors
def whiten(
    x: Tensor,
    mask: Tensor,
    all_reduce: AllReduce | None = None,
    *,
    shift_mean: bool = True,
    unbiased: bool = False,
    eps: float = EPSILON,
) -> Tensor:
    """Shifts and scales unmasked entries to mean 0 and variance 1.

    n = Σ mask,   μ = Σ x / n,   σ² = Σ (x − μ)² / n,   yₜ = (xₜ − μ) / (σ + ε)

    The variance takes a second pass, so that a large mean costs no precision; sums are in float64 and go over all ranks, so that
    the split into ranks changes nothing. Entries that are all equal become 0.

    Args:
        x: any shape, such as `[B, T]`.
        mask: the shape of `x`, bool, False where an entry does not count.
        all_reduce: sums a tensor over ranks; called twice, on every rank, whatever its mask. None if there is one rank.
        shift_mean: whether the mean becomes 0; otherwise it stays what it was and only the spread becomes 1.
        unbiased: whether the variance is divided by n − 1 (Bessel).
        eps: ε > 0.

    Returns:
        The shape of `x`, float32 or finer; 0 where masked.

    Raises:
        ShapeError: `mask` has another shape than `x`.
        ConfigError: `eps` is not positive.
    """
    expect_shape("whiten(mask)", mask, x.shape)
    expect_range("whiten(eps)", eps, 0.0, float("inf"), open_low=True)
    valid = mask.bool()
    mean, deviation = moments(x, valid, all_reduce, unbiased=unbiased)
    exact = torch.where(valid, x, 0.0).double()
    white = (exact - mean) / (deviation + eps)
    return torch.where(valid, white if shift_mean else white + mean, 0.0).to(torch.promote_types(x.dtype, torch.float32))
