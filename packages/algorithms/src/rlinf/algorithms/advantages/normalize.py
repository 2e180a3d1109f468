"""Advantages with mean 0 and variance 1, and scales by which groups, episodes or turns count alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from rlinf.algorithms.advantages.grouping import Grouping
from rlinf.algorithms.advantages.statistics import EPSILON, whiten
from rlinf.algorithms.checks import expect_choice, expect_names, expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.errors import ShapeError
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor

Normalization = Literal["none", "batch", "group"]


@takes_tensors
def normalize_advantages(
    advantage: Tensor,
    mask: Tensor,
    all_reduce: AllReduce | None = None,
    *,
    over: Normalization = "batch",
    group: Tensor | None = None,
    unbiased: bool = False,
    eps: float = EPSILON,
) -> Tensor:
    """Shifts and scales advantages to mean 0 and variance 1.

    Â′ₜ = (Âₜ − μ) / (σ + ε),   μ and σ over all unmasked decisions of all ranks ("batch"), or of the row's group ("group")

    The batch: Andrychowicz et al., "What Matters in On-Policy Reinforcement Learning?" (2021), arXiv:2006.05990. The group:
    Shao et al., "DeepSeekMath" (2024), §4.1.3, arXiv:2402.03300, where the rewards of all steps of a group are normalised
    together. A batch or a group that agrees gives exactly 0. A group is never parted over ranks.

    Args:
        advantage: `[B, T]`.
        mask: `[B, T]` bool, False where nothing was decided.
        all_reduce: sums a tensor over ranks; called twice, on every rank, for the batch only. None if there is one rank.
        over: the batch, each group, or "none", which leaves advantages as they are.
        group: `[B]` int, rows of one group share a number; None will do unless statistics go over it.
        unbiased: whether a variance is divided by n − 1 (Bessel) rather than n.
        eps: ε > 0.

    Returns:
        `[B, T]`, float32 or finer; 0 where masked.

    Raises:
        ShapeError: a size disagrees, or there is no group; the message names the argument.
        ConfigError: `over` is unknown, or `eps` is not positive.
    """
    expect_choice("normalize_advantages(over)", over, get_args(Normalization))
    expect_range("normalize_advantages(eps)", eps, 0.0, float("inf"), open_low=True)
    expect_shape("normalize_advantages(mask)", mask, advantage.shape)
    if over == "batch":
        return whiten(advantage, mask, all_reduce, unbiased=unbiased, eps=eps)
    valid = mask.bool()
    if over == "none":
        return torch.where(valid, at_least_float32(advantage), 0.0)
    if group is None:
        raise ShapeError("normalize_advantages(group)", "expected a tensor, found None", "Say which rows form a group.")
    expect_names("normalize_advantages(group)", group)
    expect_shape("normalize_advantages(group)", group, advantage.shape[:1])
    groups = Grouping.of(group[:, None].expand(advantage.shape).flatten(), valid.flatten())
    centred = groups.centred(advantage.flatten())
    deviation = groups.of_rows(groups.deviation(centred, unbiased=unbiased))
    return (centred / (deviation + eps)).reshape(advantage.shape).to(torch.promote_types(advantage.dtype, torch.float32))


LossScale = Literal["none", "group", "episode", "agent", "turn"]


@takes_tensors
def loss_scale(unit: Tensor, mask: Tensor, *, all_reduce: AllReduce | None = None) -> Tensor:
    """What advantages are multiplied with, so that in a mean over decisions every unit counts once.

    f = (N / U) / n_u,   n_u decisions in the unit, N = Σ n_u in all, U units with a decision

    A unit is what has one number: rows (a group, an episode, an agent's row by itself) or stretches of rows (turns, see `turns`).
    The mean of f over decisions is 1. Where losses are aggregated by `token-mean`, 1/N Σ f ℓ = 1/U Σ_u 1/n_u Σ ℓ; by rows that is
    `seq-mean-token-mean`, eq. 3 of Shao et al., "DeepSeekMath" (2024), arXiv:2402.03300. The losses of this package are
    proportional to advantages, so that scaling those scales these; it has to be done on whole units, before a batch is parted.

    Args:
        unit: `[B]` int, any numbers, or `[B, T]` where rows have several units; all of a unit must be here.
        mask: `[B, T]` bool, False where nothing was decided.
        all_reduce: sums a tensor over ranks, called once on every rank; None if there is one rank.

    Returns:
        The shape of `unit`, in float64; 0 for a unit without decisions.

    Raises:
        ShapeError: a shape disagrees, or units are no integers; the message names the argument.
    """
    expect_names("loss_scale(unit)", unit)
    expect_shape("loss_scale(unit)", unit, mask.shape[: unit.dim()])
    # All rows, also those without decisions: a unit must not vanish because one of its rows is empty.
    units = Grouping.of(unit.flatten(), None)
    decisions = units.sum(mask.bool().long().flatten() if unit.dim() == 2 else mask.bool().sum(1))
    sums = torch.stack([decisions.sum(), (decisions > 0).sum().double()])
    total, count = sums if all_reduce is None else all_reduce(sums)
    scale = total / count.clamp(min=1.0) / decisions.clamp(min=1.0)
    return units.of_rows(torch.where(decisions > 0, scale, 0.0)).reshape(unit.shape)


def turns(mask: Tensor) -> Tensor:
    """`[B, T]` int, a number of its own for each stretch of decisions of a row that nothing interrupts: what was read lies between.

    Args:
        mask: `[B, T]` bool, False where nothing was decided; such columns have the number of the turn before them.
    """
    decided = mask.bool()
    begins = decided.clone()
    begins[:, 1:] &= ~decided[:, :-1]
    # Rows of T columns have at most T turns.
    rows = torch.arange(len(mask), device=mask.device)[:, None] * (mask.shape[1] + 1)
    return begins.long().cumsum(1) + rows
