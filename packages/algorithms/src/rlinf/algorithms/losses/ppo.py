"""The clipped surrogate of proximal policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from rlinf.algorithms.losses.aggregation import TOKEN_MEAN, Aggregation
from rlinf.algorithms.losses.clip import Clip, ClippedLoss
from rlinf.algorithms.losses.inputs import LossInputs
from rlinf.algorithms.losses.ratio import observed_ratio, ratio_of
from rlinf.algorithms.losses.terms import Terms, counted, per_decision
from rlinf.algorithms.losses.tiles import in_tiles
from rlinf.core.data import LossOutput


def ppo_clip(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
    clip_log_ratio_min: float | None = None,
    clip_log_ratio_max: float | None = None,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """The clipped surrogate of PPO, to be minimised.

    ρ = exp(log π − log π_old),   L = max(−ρ Â, −clip(ρ, 1 − ε_low, 1 + ε_high) Â)

    Schulman et al., "Proximal Policy Optimization Algorithms" (2017), eq. 7, arXiv:1707.06347; two bounds as in Yu et al., "DAPO"
    (2025), eq. 8, arXiv:2503.14476. With `clip_ratio_c`, L is at most −c Â where Â < 0: Ye et al., "Mastering Complex Control in
    MOBA Games with Deep Reinforcement Learning" (2020), eq. 5, arXiv:1912.09729.

    Where log-probabilities are finer than decisions, each element has its own ratio and the decision's advantage; the elements of
    one decision are *averaged* and the weight counts *decisions*. So neither K nor A enters the size of the loss.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, under the current weights; differentiable.
        logprob_old: the same shape, under the weights that decided.
        advantage: `[B, T]`; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        clip_ratio_low: ε_low in [0, 1].
        clip_ratio_high: ε_high ≥ 0.
        clip_ratio_c: c > 1, the bound of the loss for bad actions that became likely; None for no bound.
        clip_log_ratio_min: the least log ρ, in [−20, 0]; beyond it nothing has a gradient. None for −20.
        clip_log_ratio_max: the greatest log ρ, in [0, 20]; None for 20.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `policy_loss`; `ratio`, the mean ρ; `ratio_abs`, the mean |ρ − 1|;
        `approx_kl`, the estimate ρ − 1 − log ρ of KL(π_old ‖ π) (k3 of Schulman, "Approximating KL Divergence", 2020);
        `clip_fraction` and `dual_clip_fraction`, the shares of elements whose gradient the bounds, or c, took away.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a bound is out of its range.
    """
    clip = Clip(clip_ratio_low, clip_ratio_high, clip_ratio_c, clip_log_ratio_min, clip_log_ratio_max)
    terms = partial(ppo_clip_terms, clip=clip)
    return in_tiles(terms, aggregation, logprob=logprob, logprob_old=logprob_old, advantage=advantage, mask=mask)


def ppo_clip_terms(logprob: Tensor, logprob_old: Tensor, advantage: Tensor, mask: Tensor, clip: Clip) -> Terms:
    """`ppo_clip` before it is summed."""
    low, high = clip.log_bounds
    ratio = ratio_of("ppo_clip", logprob, logprob_old, advantage, mask, low=low, high=high)
    loss, shares = clip.surrogate(ratio.value, ratio.gain)
    loss = per_decision(loss)
    return Terms(loss, {"policy_loss": loss.detach(), **observed_ratio(ratio.log, mask), **counted(shares)})


@dataclass(frozen=True, slots=True)
class PPOClip(ClippedLoss):
    """The clipped surrogate by name: `algorithm.loss_type: ppo_clip`, or `actor` as RLinf's users know it. No critic.

    With an advantage in groups it is the loss of GRPO (`loss_agg_func: seq-mean-token-mean`) and of Dr. GRPO
    (`loss_agg_func: constant-length`).
    """

    by_rows: ClassVar[bool] = True

    def policy_terms(self, x: LossInputs) -> Terms:
        """The surrogate of each decision."""
        logprob, old, advantage = (x.need(name, by=type(self).__name__) for name in ("logprob", "logprob_old", "advantage"))
        return ppo_clip_terms(logprob, old, advantage, x.mask, self.bounds())


@dataclass(frozen=True, slots=True)
class DAPO(ClippedLoss):
    """The loss of DAPO by name: `algorithm.loss_type: dapo`. It is `PPOClip` with the bounds of the paper.

    Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (2025), eq. 8, arXiv:2503.14476: a higher upper
    bound, and the mean over tokens. Its other two parts are not losses: dynamic sampling is a filter of groups, and overlong
    reward shaping a reward.
    """

    by_rows: ClassVar[bool] = True

    clip_ratio_high: float = 0.28
    """ε_high ≥ 0, how far the ratio may rise above 1."""

    def policy_terms(self, x: LossInputs) -> Terms:
        """The surrogate of each decision."""
        logprob, old, advantage = (x.need(name, by=type(self).__name__) for name in ("logprob", "logprob_old", "advantage"))
        return ppo_clip_terms(logprob, old, advantage, x.mask, self.bounds())
