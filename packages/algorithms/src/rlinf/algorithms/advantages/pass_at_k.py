"""Advantages for pass@k: what the best answer of a group adds to the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor

from rlinf.algorithms.advantages.estimator import Estimator
from rlinf.algorithms.advantages.group import EPSILON, Scale, batch_deviation, over
from rlinf.algorithms.advantages.grouping import Grouping, checked
from rlinf.algorithms.advantages.inputs import CreditInputs
from rlinf.algorithms.advantages.score import to_decisions
from rlinf.algorithms.shapes import expect_choice, expect_range
from rlinf.core.declarations import Need
from rlinf.core.errors import ShapeError
from rlinf.core.protocols import AllReduce


def grpo_passk(
    score: Tensor,
    group: Tensor,
    *,
    valid: Tensor | None = None,
    scale: Scale = "group",
    unbiased: bool = True,
    eps: float = EPSILON,
    all_reduce: AllReduce | None = None,
) -> Tensor:
    """Advantages of the pass@k objective: a group of k answers is worth its best one.

    Âᵢ = (s₍₁₎ − s₍₂₎) / (std_g + ε) for the best row of the group, 0 for the others,   s₍₁₎ ≥ s₍₂₎ ≥ … within the group

    Tang et al., "Optimizing Language Models for Inference Time Objectives using Reinforcement Learning" (2025), arXiv:2503.19595:
    the leave-one-out advantage of max over the group, since without any other row the group is worth as much. Dividing by the
    deviation is verl's addition (its `grpo_passk`); a group of one, and one whose best two agree, give exactly 0.

    Args:
        score: `[B]`, the outcome of each row.
        group: `[B]` int, rows of one group share a number; any numbers, in any order, any size of group.
        valid: `[B]` bool, False for a row that takes part in nothing; None if all do.
        scale: what to divide by: the deviation of the "group", that of the whole "batch" over all ranks, or "none".
        unbiased: whether a variance is divided by n − 1 (Bessel) rather than n.
        eps: ε ≥ 0.
        all_reduce: sums a tensor over ranks; called, twice, only to scale by the batch. None if there is one rank.

    Returns:
        `[B]`, float32 or finer; ≥ 0, and positive for at most one row of a group.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `scale` is unknown, or `eps` is negative.
    """
    expect_choice("grpo_passk(scale)", scale, get_args(Scale))
    expect_range("grpo_passk(eps)", eps, 0.0, float("inf"))
    if score.dim() != 1:
        raise ShapeError("grpo_passk(score)", f"expected [B], found {tuple(score.shape)}")
    counted = checked("grpo_passk", score, group, valid)
    groups = Grouping.of(group, counted)
    exact = groups.known(score.detach().double(), -torch.inf)
    best = groups.of_rows(groups.highest(exact))
    row = torch.arange(len(score), dtype=torch.float64, device=score.device)
    first = groups.of_rows(groups.lowest(torch.where(exact == best, row, torch.inf)))
    wins = (row == first) & (groups.of_rows(groups.count) > 1)
    second = groups.of_rows(groups.highest(torch.where(row == first, -torch.inf, exact)))
    advantage = torch.where(wins, best - second, 0.0)
    if scale == "batch":
        advantage = over(advantage, batch_deviation(score, groups, all_reduce, unbiased=unbiased), eps)
    elif scale == "group":
        advantage = over(advantage, groups.of_rows(groups.deviation(groups.centred(score), unbiased=unbiased)), eps)
    return advantage.to(torch.promote_types(score.dtype, torch.float32))


@dataclass(frozen=True, slots=True)
class GRPOPassK(Estimator):
    """GRPO for pass@k by name: `algorithm.adv_type: grpo_passk`. `rollout.group_size` is k."""

    needs: ClassVar[Mapping[Need, str]] = {"group": ""}
    has_targets: ClassVar[bool] = False

    scale: Scale = "group"
    """What to divide by: the deviation of the group, of the whole batch over all ranks, or nothing."""
    unbiased: bool = True
    """Whether a variance is divided by n − 1 rather than n."""
    eps: float = EPSILON
    """What is added to the deviation, ≥ 0."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_choice("scale", self.scale, get_args(Scale))
        expect_range("eps", self.eps, 0.0, float("inf"))

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, None]:
        """Advantages `[B, T]`, the same for all decisions of a row; no targets."""
        mask = x.decided(by="GRPOPassK")
        advantage = grpo_passk(
            x.outcome(by="GRPOPassK"),
            x.need("group", by="GRPOPassK"),
            valid=mask.any(1),
            scale=self.scale,
            unbiased=self.unbiased,
            eps=self.eps,
            all_reduce=all_reduce,
        )
        return to_decisions(advantage, mask), None
