"""Advantages with mean 0 and variance 1, over the batch or over each group."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from rlinf.algorithms.advantages.grouping import Grouping
from rlinf.algorithms.advantages.whiten import EPSILON, whiten
from rlinf.algorithms.precision import precise
from rlinf.algorithms.shapes import expect_choice, expect_names, expect_range, expect_shape
from rlinf.core.errors import ShapeError
from rlinf.core.protocols import AllReduce

Normalization = Literal["none", "batch", "group"]


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
        return torch.where(valid, precise(advantage), 0.0)
    if group is None:
        raise ShapeError("normalize_advantages(group)", "expected a tensor, found None", "Say which rows form a group.")
    expect_names("normalize_advantages(group)", group)
    expect_shape("normalize_advantages(group)", group, advantage.shape[:1])
    groups = Grouping.of(group[:, None].expand(advantage.shape).flatten(), valid.flatten())
    centred = groups.centred(advantage.flatten())
    deviation = groups.of_rows(groups.deviation(centred, unbiased=unbiased))
    return (centred / (deviation + eps)).reshape(advantage.shape).to(torch.promote_types(advantage.dtype, torch.float32))
