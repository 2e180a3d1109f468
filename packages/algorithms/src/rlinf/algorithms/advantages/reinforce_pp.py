"""REINFORCE++: a penalty on every token, the return to go, and one normalisation over the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlinf.algorithms.advantages.estimator import CreditInputs, Estimator
from rlinf.algorithms.advantages.grouping import Grouping, checked
from rlinf.algorithms.advantages.returns import discounted_returns
from rlinf.algorithms.advantages.score import at_last_decision, row_score
from rlinf.algorithms.advantages.statistics import whiten
from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.declarations import Need
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def reinforce_plus_plus(
    reward: Tensor,
    mask: Tensor,
    all_reduce: AllReduce | None = None,
    *,
    gamma: float = 1.0,
    kl: Tensor | None = None,
    kl_beta: float = 0.0,
    group: Tensor | None = None,
    unbiased: bool = False,
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ advantages.

    r'ₜ = rₜ − β KLₜ,   Gₜ = r'ₜ + γ Gₜ₊₁,   Âₜ = (Gₜ − μ) / σ with μ and σ over all unmasked tokens of all ranks

    Hu et al., "REINFORCE++" (2025), arXiv:2501.03262. With `group` it is the paper's variant with a baseline: the mean score of
    the group is first taken off what the row is paid with its last token.

    Args:
        reward: `[B, T]`, the reward of each token; as a rule 0 before the last (`at_last_decision` puts a score there).
        mask: `[B, T]` bool, False where the model wrote nothing; such columns are skipped, without decay.
        all_reduce: sums a tensor over ranks; called twice, on every rank. None if there is one rank.
        gamma: discount in [0, 1].
        kl: `[B, T]`, log π − log π_ref of each token, or another estimate of the divergence; None for no penalty.
        kl_beta: β ≥ 0.
        group: `[B]` int, rows of one group answer the same question; None for no baseline. Never parted over ranks.
        unbiased: whether the variance is divided by n − 1 (Bessel).

    Returns:
        Advantages and the returns G before they were normalised, each `[B, T]`; both are 0 where masked.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `gamma` or `kl_beta` is out of its range.
    """
    expect_range("reinforce_plus_plus(kl_beta)", kl_beta, 0.0, float("inf"))
    expect_shape("reinforce_plus_plus(mask)", mask, reward.shape)
    paid = at_least_float32(reward)
    if group is not None:
        # Of the scores alone: what tokens pay for their divergence has no part in the mean.
        paid = paid - at_last_decision(_group_mean(reward, mask, group).to(paid.dtype), mask)
    if kl is not None:
        expect_shape("reinforce_plus_plus(kl)", kl, reward.shape)
        paid = paid - kl_beta * at_least_float32(kl)
    # A row is one answer: nothing ends inside it, and masked columns are crossed.
    never = torch.zeros_like(mask, dtype=torch.bool)
    returns = discounted_returns(paid, never, never, gamma=gamma, mask=mask)
    return whiten(returns, mask, all_reduce, unbiased=unbiased), returns


def _group_mean(reward: Tensor, mask: Tensor, group: Tensor) -> Tensor:
    """The mean score of each row's group, `[B]`."""
    score = row_score(reward, mask)
    groups = Grouping.of(group, checked("reinforce_plus_plus", score, group, mask.bool().any(1)))
    return groups.of_rows(groups.mean(score))


@dataclass(frozen=True, slots=True)
class ReinforcePlusPlus(Estimator):
    """REINFORCE++ by name: `algorithm.adv_type: reinpp`. A `score`, where given, is paid with the last decision of its row."""

    has_targets: ClassVar[bool] = False

    use_reinpp_baseline: bool = False
    """Whether the mean score of the group is taken off first."""
    reinpp_kl_beta: float = 0.0
    """β ≥ 0 of the penalty log π − log π_ref on every decision; 0 needs no reference."""
    gamma: float = 1.0
    """Discount of one decision, in [0, 1]."""
    unbiased: bool = False
    """Whether the variance is divided by n − 1 rather than n."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_range("reinpp_kl_beta", self.reinpp_kl_beta, 0.0, float("inf"))
        expect_range("gamma", self.gamma, 0.0, 1.0)

    @property
    def needs(self) -> Mapping[Need, str]:
        terms: dict[Need, str] = {"reference": "reinpp_kl_beta", "group": "use_reinpp_baseline"}
        return {need: key for need, key in terms.items() if getattr(self, key)}

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, None]:
        by = "ReinforcePlusPlus"
        mask = x.decided(by=by)
        reward = x.need("reward", by=by) if x.score is None else at_last_decision(x.score, mask)
        kl = x.log_ratio("logprob", "logprob_ref", by=by) if self.reinpp_kl_beta else None
        group = x.need("group", by=by) if self.use_reinpp_baseline else None
        advantage, _ = reinforce_plus_plus(
            reward, mask, all_reduce, gamma=self.gamma, kl=kl, kl_beta=self.reinpp_kl_beta, group=group, unbiased=self.unbiased
        )
        return advantage, None
