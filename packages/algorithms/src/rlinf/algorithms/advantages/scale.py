"""Scales of losses, by which groups, agents or turns count alike, however long they are."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlinf.algorithms.advantages.grouping import Grouping
from rlinf.algorithms.shapes import expect_names, expect_shape
from rlinf.core.protocols import AllReduce

LossScale = Literal["none", "group", "episode", "turn"]


def loss_scale(unit: Tensor, mask: Tensor, *, all_reduce: AllReduce | None = None) -> Tensor:
    """What a row's advantages are multiplied with, so that in a mean over decisions every unit counts once.

    f = (N / U) / n_u,   n_u decisions in the unit of the row, N = Σ n_u in all, U units with a decision

    A unit is what the rows of one number are: a group, an agent's part in it, or a turn (each row by itself). The mean of f over
    decisions is 1. Where losses are aggregated by `token-mean`, 1/N Σ f ℓ = 1/U Σ_u 1/n_u Σ ℓ; by turns that is
    `seq-mean-token-mean`, eq. 3 of Shao et al., "DeepSeekMath" (2024), arXiv:2402.03300. The losses of this package are
    proportional to advantages, so that scaling those scales these; it has to be done on whole units, before a batch is parted.

    Args:
        unit: `[B]` int, any numbers; all rows of a unit must be here.
        mask: `[B, T]` bool, False where nothing was decided.
        all_reduce: sums a tensor over ranks, called once on every rank; None if there is one rank.

    Returns:
        `[B]` in float64; 0 for a unit without decisions.

    Raises:
        ShapeError: a shape disagrees, or units are no integers; the message names the argument.
    """
    expect_names("loss_scale(unit)", unit)
    expect_shape("loss_scale(unit)", unit, mask.shape[:1])
    units = Grouping.of(unit, None)
    decisions = units.sum(mask.bool().sum(1))
    sums = torch.stack([decisions.sum(), (decisions > 0).sum().double()])
    total, count = sums if all_reduce is None else all_reduce(sums)
    scale = total / count.clamp(min=1.0) / decisions.clamp(min=1.0)
    return units.of_rows(torch.where(decisions > 0, scale, 0.0))
