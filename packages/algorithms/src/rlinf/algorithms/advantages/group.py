"""Advantages from comparison within a group: several answers to one question, no critic."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypedDict, get_args

from rlinf.algorithms.advantages.estimator import CreditInputs, Estimator
from rlinf.algorithms.advantages.grouping import Grouping, checked
from rlinf.algorithms.advantages.score import to_decisions
from rlinf.algorithms.advantages.statistics import moments
from rlinf.algorithms.checks import expect_choice, expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.declarations import Need
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor

Scale = Literal["group", "batch", "none"]
EPSILON: Final = 1e-6


@takes_tensors
def grpo(
    score: Tensor,
    group: Tensor,
    *,
    valid: Tensor | None = None,
    scale: Scale = "group",
    unbiased: bool = True,
    eps: float = EPSILON,
    leave_one_out: bool = False,
    all_reduce: AllReduce | None = None,
) -> Tensor:
    """Group-relative advantages of rows.

    Âᵢ = (sᵢ − mean_g) / (std_g + ε)

    Shao et al., "DeepSeekMath" (2024), §4.1, arXiv:2402.03300. Without a scale it is Dr. GRPO: Liu et al., "Understanding
    R1-Zero-Like Training" (2025), arXiv:2503.20783. Statistics take two passes in float64. A group of one and a group that agrees
    give exactly 0. A group is never parted over ranks.

    Args:
        score: `[B]`, the outcome of each row.
        group: `[B]` int, rows of one group share a number; any numbers, in any order, any size of group.
        valid: `[B]` bool, False for a row that takes part in no statistics; None if all do.
        scale: what to divide by: the deviation of the "group", that of the whole "batch" over all ranks, or "none".
        unbiased: whether a variance is divided by n − 1 (Bessel) rather than n.
        eps: ε ≥ 0.
        leave_one_out: whether the mean is that of the *other* rows of the group, mean_g without sᵢ; it stretches sᵢ − mean_g by
            n / (n − 1).
        all_reduce: sums a tensor over ranks; called, twice, only to scale by the batch. None if there is one rank.

    Returns:
        `[B]`, float32 or finer; 0 for a row that is not valid.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `scale` is unknown, or `eps` is negative.
    """
    _check_options(scale, eps, keys="grpo({})")
    groups = Grouping.of(group, checked("grpo", score, group, valid))
    centred = groups.centred(score)
    advantage = centred
    if leave_one_out:
        # s − mean without s = (s − mean) · n / (n − 1): no second sum, and exactly 0 where centred is.
        advantage = centred * groups.of_rows(groups.count / (groups.count - 1.0).clamp(min=1.0))
    advantage = _scaled(advantage, score, centred, groups, scale, eps, all_reduce, unbiased=unbiased)
    return advantage.to(torch.promote_types(score.dtype, torch.float32))


@takes_tensors
def rloo(score: Tensor, group: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """REINFORCE with the other rows of the group as the baseline.

    Âᵢ = sᵢ − Σ_{j ≠ i} sⱼ / (n − 1)

    Ahmadian et al., "Back to Basics" (2024), eq. 8, arXiv:2402.14740; Kool et al. (2019). A group of one gives 0.

    Args:
        score: `[B]`, the outcome of each row.
        group: `[B]` int, rows of one group share a number; any numbers, in any order, any size of group.
        valid: `[B]` bool, False for a row that takes part in no statistics; None if all do.

    Returns:
        `[B]`, float32 or finer; 0 for a row that is not valid.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
    """
    return grpo(score, group, valid=valid, scale="none", leave_one_out=True)


@takes_tensors
def opo(score: Tensor, group: Tensor, length: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """On-policy RL with the baseline of least variance: the group's mean weighted by length.

    Âᵢ = sᵢ − Σⱼ lⱼ sⱼ / Σⱼ lⱼ

    Hao et al., "On-Policy RL with Optimal Reward Baseline" (2025), eq. 6, arXiv:2505.23585. A group of one and a group that agrees
    give exactly 0.

    Args:
        score: `[B]`, the outcome of each row.
        group: `[B]` int, rows of one group share a number; any numbers, in any order, any size of group.
        length: `[B]`, how many decisions each row has; a row of length 0 has no weight.
        valid: `[B]` bool, False for a row that takes part in no statistics; None if all do.

    Returns:
        `[B]`, float32 or finer; 0 for a row that is not valid.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
    """
    groups = Grouping.of(group, checked("opo", score, group, valid))
    expect_shape("opo(length)", length, score.shape)
    centred = groups.centred(score)
    weight = groups.sum(length)
    # Of centred scores: in a group that agrees it is exactly 0, and taken off in one without decisions it changes nothing.
    mean = groups.sum(centred * length) / torch.where(weight > 0, weight, torch.inf)
    return groups.counted(centred - groups.of_rows(mean)).to(torch.promote_types(score.dtype, torch.float32))


@takes_tensors
def remax(score: Tensor, baseline: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """REINFORCE with the score of the greedy answer as the baseline.

    Âᵢ = sᵢ − s_greedy

    Li et al., "ReMax" (2023), alg. 2, arXiv:2310.10505.

    Args:
        score: `[B]`, the outcome of each row.
        baseline: `[B]`, the outcome of the greedy answer to each row's question.
        valid: `[B]` bool, False for a row without decisions; None if all have some.

    Returns:
        `[B]`, float32 or finer; 0 for a row that is not valid.

    Raises:
        ShapeError: a size disagrees; the message names the argument.
    """
    expect_shape("remax(baseline)", baseline, score.shape)
    found = at_least_float32(score) - at_least_float32(baseline)
    if valid is None:
        return found
    expect_shape("remax(valid)", valid, score.shape)
    return torch.where(valid.bool(), found, 0.0)


def _scaled(
    advantage: Tensor,
    score: Tensor,
    centred: Tensor,
    groups: Grouping,
    scale: Scale,
    eps: float,
    all_reduce: AllReduce | None,
    *,
    unbiased: bool,
) -> Tensor:
    """Over the deviation that `scale` names, of all rows of all ranks that count or of each row's group."""
    if scale == "none":
        return advantage
    if scale == "batch":
        everyone = torch.ones_like(score, dtype=torch.bool) if groups.valid is None else groups.valid
        deviation = moments(score, everyone, all_reduce, unbiased=unbiased)[1]
    else:
        deviation = groups.of_rows(groups.deviation(centred, unbiased=unbiased))
    # Where nothing deviates the advantage is 0 and stays so, whatever ε.
    return advantage / torch.where(deviation > 0, deviation + eps, torch.inf)


def _check_options(scale: str, eps: float, *, keys: str) -> None:
    expect_choice(keys.format("scale"), scale, get_args(Scale))
    expect_range(keys.format("eps"), eps, 0.0, float("inf"))


@dataclass(frozen=True, slots=True)
class RowEstimator(Estimator):
    """What advantages of whole rows have in common: all decisions of a row share one, and there are no targets."""

    needs: ClassVar[Mapping[Need, str]] = {"group": ""}
    has_targets: ClassVar[bool] = False

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, None]:
        """Advantages `[B, T]`, the same for all decisions of a row; no targets."""
        by = type(self).__name__
        mask = x.decided(by=by)
        return to_decisions(self.of_rows(x, x.outcome(by=by), mask, all_reduce), mask), None

    @abstractmethod
    def of_rows(self, x: CreditInputs, score: Tensor, mask: Tensor, all_reduce: AllReduce | None) -> Tensor:
        """The advantage of each row, `[B]`, of its outcome `[B]` and of where something was decided, `[B, T]` bool."""


class GroupOptions(TypedDict):
    """What all functions that compare within a group take by name; see `grpo`."""

    valid: Tensor
    scale: Scale
    unbiased: bool
    eps: float
    all_reduce: AllReduce | None


@dataclass(frozen=True, slots=True)
class GroupEstimator(RowEstimator):
    """What advantages by comparison within a group have in common: what they divide by."""

    scale: Scale = "group"
    """What to divide by: the deviation of the group, of the whole batch over all ranks, or nothing."""
    unbiased: bool = True
    """Whether a variance is divided by n − 1 rather than n."""
    eps: float = EPSILON
    """What is added to the deviation, ≥ 0."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        _check_options(self.scale, self.eps, keys="{}")

    def options(self, mask: Tensor, all_reduce: AllReduce | None) -> GroupOptions:
        """For `grpo` and its kin; rows without a decision take no part."""
        return GroupOptions(valid=mask.any(1), scale=self.scale, unbiased=self.unbiased, eps=self.eps, all_reduce=all_reduce)


@dataclass(frozen=True, slots=True)
class GRPO(GroupEstimator):
    """Group-relative advantages by name: `algorithm.adv_type: grpo`. `scale: none` is Dr. GRPO."""

    leave_one_out: bool = False
    """Whether a row is compared with the other rows of its group only."""

    def of_rows(self, x: CreditInputs, score: Tensor, mask: Tensor, all_reduce: AllReduce | None) -> Tensor:
        group = x.need("group", by="GRPO")
        return grpo(score, group, leave_one_out=self.leave_one_out, **self.options(mask, all_reduce))


@dataclass(frozen=True, slots=True)
class RLOO(RowEstimator):
    """REINFORCE leave-one-out by name: `algorithm.adv_type: rloo`."""

    def of_rows(self, x: CreditInputs, score: Tensor, mask: Tensor, all_reduce: AllReduce | None) -> Tensor:
        return rloo(score, x.need("group", by="RLOO"), valid=mask.any(1))


@dataclass(frozen=True, slots=True)
class OPO(RowEstimator):
    """The baseline of least variance by name: `algorithm.adv_type: opo`."""

    def of_rows(self, x: CreditInputs, score: Tensor, mask: Tensor, all_reduce: AllReduce | None) -> Tensor:
        """See `opo`; the length of a row is the number of its decisions."""
        return opo(score, x.need("group", by="OPO"), mask.sum(1), valid=mask.any(1))


@dataclass(frozen=True, slots=True)
class ReMax(RowEstimator):
    """REINFORCE with a greedy baseline by name: `algorithm.adv_type: remax`."""

    needs: ClassVar[Mapping[Need, str]] = {"baseline": ""}

    def of_rows(self, x: CreditInputs, score: Tensor, mask: Tensor, all_reduce: AllReduce | None) -> Tensor:
        return remax(score, x.need("baseline", by="ReMax"), valid=mask.any(1))


@takes_tensors
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
    Arguments and errors are those of `grpo`.

    Returns:
        `[B]`, float32 or finer; ≥ 0, and positive for at most one row of a group.
    """
    _check_options(scale, eps, keys="grpo_passk({})")
    groups = Grouping.of(group, checked("grpo_passk", score, group, valid))
    exact = groups.counted(score.detach().double(), -torch.inf)
    best = groups.of_rows(groups.highest(exact))
    row = torch.arange(len(score), dtype=torch.float64, device=score.device)
    # Of equal best rows the first wins: at most one row of a group is paid.
    first = groups.of_rows(groups.lowest(torch.where(exact == best, row, torch.inf)))
    wins = (row == first) & (groups.of_rows(groups.count) > 1)
    second = groups.of_rows(groups.highest(torch.where(row == first, -torch.inf, exact)))
    advantage = torch.where(wins, best - second, 0.0)
    advantage = _scaled(advantage, score, groups.centred(score), groups, scale, eps, all_reduce, unbiased=unbiased)
    return advantage.to(torch.promote_types(score.dtype, torch.float32))


@dataclass(frozen=True, slots=True)
class GRPOPassK(GroupEstimator):
    """GRPO for pass@k by name: `algorithm.adv_type: grpo_passk`. `rollout.group_size` is k."""

    def of_rows(self, x: CreditInputs, score: Tensor, mask: Tensor, all_reduce: AllReduce | None) -> Tensor:
        return grpo_passk(score, x.need("group", by="GRPOPassK"), **self.options(mask, all_reduce))
