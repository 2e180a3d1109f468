"""The baseline of least variance, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from rlinf.algorithms.advantages.estimator import CreditInputs, Estimator
from rlinf.algorithms.advantages.grouping import Grouping, checked, pairs
from rlinf.algorithms.advantages.returns import discounted_returns
from rlinf.algorithms.advantages.score import at_last_decision
from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.declarations import Need
from rlinf.core.errors import ShapeError
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor

EPSILON: Final = 1e-8


@takes_tensors
def optimal_token_baseline(
    reward: Tensor,
    mask: Tensor,
    group: Tensor,
    logprob: Tensor,
    sum_pi_squared: Tensor,
    *,
    gamma: float = 1.0,
    handle_zero_tail: bool = True,
    eps: float = EPSILON,
) -> Tensor:
    """Returns less the baseline that makes the variance of each token's gradient least, within a group.

    wₜ = 1 − 2 π(aₜ) + Σₐ π(a)²,   Wₜ = Σ_{j ≤ t} wⱼ,   Bₜ = Σᵢ Wᵢₜ Gᵢₜ / (Σᵢ Wᵢₜ + ε),   Âᵢₜ = Gᵢₜ − Bₜ

    Li et al., "The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL" (2026), arXiv:2602.07078. Sums over i go
    over the rows of the group that decide something in column t, so that its rows must begin to decide in the same column, as
    answers to one prompt do; w, the squared norm of the gradient of log π(aₜ) in the logits, stands for that in the weights.

    Args:
        reward: `[B, T]`, the reward of each token; as a rule 0 before the last (`at_last_decision` puts a score there).
        mask: `[B, T]` bool, False where nothing was decided.
        group: `[B]` int, rows of one group answer the same question, in any order. Never parted over ranks.
        logprob: `[B, T]`, log π(aₜ).
        sum_pi_squared: `[B, T]`, Σₐ π(a)² in [0, 1] over the whole vocabulary, of the same policy.
        gamma: discount in [0, 1].
        handle_zero_tail: whether the baseline is 0 where only one row of the group goes on; otherwise it is that row's own
            return, which leaves no advantage there.
        eps: ε > 0.

    Returns:
        `[B, T]`, float32 or finer; 0 where masked.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `gamma` or `eps` is out of its range.
    """
    expect_range("optimal_token_baseline(eps)", eps, 0.0, float("inf"), open_low=True)
    if reward.dim() != 2:
        raise ShapeError("optimal_token_baseline(reward)", f"expected [B, T], found {tuple(reward.shape)}")
    for name, x in (("mask", mask), ("logprob", logprob), ("sum_pi_squared", sum_pi_squared)):
        expect_shape(f"optimal_token_baseline({name})", x, reward.shape)
    # It is the group that is checked; of the score that it is given only the length matters.
    checked("optimal_token_baseline", reward[:, :1].sum(1), group, None)
    valid, never = mask.bool(), torch.zeros_like(mask, dtype=torch.bool)
    returns = discounted_returns(reward, never, never, gamma=gamma, mask=valid)
    energy = 1.0 - 2.0 * at_least_float32(logprob).exp() + at_least_float32(sum_pi_squared)
    # 1 − 2π + Σπ² is a sum of squares, at least 0; rounding of bfloat16 log-probabilities may take it below.
    weight = torch.where(valid, energy, 0.0).double().clamp(min=0.0).cumsum(1)
    column = torch.arange(reward.shape[1], device=reward.device).expand(reward.shape)
    cells = Grouping.of(pairs(group[:, None].expand(reward.shape).flatten(), column.flatten()), valid.flatten())
    exact = returns.double().flatten()
    baseline = cells.sum(weight.flatten() * exact) / (cells.sum(weight.flatten()) + eps)
    if handle_zero_tail:
        baseline = torch.where(cells.count > 1, baseline, 0.0)
    return cells.counted(exact - cells.of_rows(baseline)).reshape(reward.shape).to(returns.dtype)


@dataclass(frozen=True, slots=True)
class OptimalTokenBaseline(Estimator):
    """The optimal token baseline by name: `algorithm.adv_type: optimal_token_baseline`.

    It takes log π from the trainer (`logprob_proximal`) where that has scored the batch, else from the rollout; Σ π² from whoever
    scored (`Trajectory.sum_pi_squared`).
    """

    needs: ClassVar[Mapping[Need, str]] = {"group": "", "sum_pi_squared": ""}
    has_targets: ClassVar[bool] = False

    gamma: float = 1.0
    """Discount of one decision, in [0, 1]."""
    handle_zero_tail: bool = True
    """Whether the baseline is 0 where only one row of the group continues."""
    eps: float = EPSILON
    """What is added to the sum of weights, > 0."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_range("gamma", self.gamma, 0.0, 1.0)
        expect_range("eps", self.eps, 0.0, float("inf"), open_low=True)

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, None]:
        by = "OptimalTokenBaseline"
        mask = x.decided(by=by)
        advantage = optimal_token_baseline(
            x.need("reward", by=by) if x.score is None else at_last_decision(x.score, mask),
            mask,
            x.need("group", by=by),
            x.need("logprob", by=by) if x.logprob_proximal is None else x.logprob_proximal,
            x.need("sum_pi_squared", by=by),
            gamma=self.gamma,
            handle_zero_tail=self.handle_zero_tail,
            eps=self.eps,
        )
        return advantage, None
