"""The clipped surrogate of proximal policy optimisation: its bounds, the function, and the losses by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.losses.policy_loss import LossInputs, PolicyLoss
from rlinf.algorithms.losses.ratio import LOG_RATIO_BOUND, observed_ratio, ratio_of
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, counted, in_tiles, per_decision
from rlinf.algorithms.losses.value import check_critic, value_terms
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.declarations import Need

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
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


def pessimistic(ratio: Tensor, gain: Tensor, low: float, high: float, dual: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """max(−ρ Â, −clip(ρ, low, high) Â), at most `dual` |Â|; with 1 or 0 for whether the clip held it, and whether the dual one.

    Args:
        ratio: ρ, of a shape that broadcasts to that of `gain`, or the other way round; differentiable, once.
        gain: Â, without a gradient.
        low: the least ρ that has a gradient where Â < 0.
        high: the greatest one where Â > 0.
        dual: None for no such bound.
    """
    # Here, as its base class is torch's: a loss is read as a configuration without torch.
    from rlinf.algorithms.losses.policy._ppo import Pessimistic

    return Pessimistic.apply(ratio, gain, low, high, dual)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class Clip:
    """Between which bounds a ratio may move a loss.

    L = max(−ρ Â, −clip(ρ, 1 − ε_low, 1 + ε_high) Â), and with c at most −c Â where Â < 0
    """

    low: float
    """ε_low in [0, 1]."""
    high: float
    """ε_high ≥ 0."""
    dual: float | None = None
    """c > 1; None for no such bound."""
    log_min: float | None = None
    """The least log-ratio, in [−20, 0]; None for −20."""
    log_max: float | None = None
    """The greatest log-ratio, in [0, 20]; None for 20."""

    def __post_init__(self) -> None:
        infinity = float("inf")
        expect_range("clip_ratio_low", self.low, 0.0, 1.0)
        expect_range("clip_ratio_high", self.high, 0.0, infinity)
        expect_range("clip_ratio_c", self.dual, 1.0, infinity, open_low=True)
        expect_range("clip_log_ratio_min", self.log_min, -LOG_RATIO_BOUND, 0.0)
        expect_range("clip_log_ratio_max", self.log_max, 0.0, LOG_RATIO_BOUND)

    @property
    def log_bounds(self) -> tuple[float, float]:
        """The least and the greatest log-ratio."""
        low, high = self.log_min, self.log_max
        return -LOG_RATIO_BOUND if low is None else low, LOG_RATIO_BOUND if high is None else high

    def surrogate(self, ratio: Tensor, gain: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each ratio; and 1 or 0 for whether it lost its gradient to the bounds, and to the dual clip."""
        loss, clipped, capped = pessimistic(ratio, gain, 1.0 - self.low, 1.0 + self.high, self.dual)
        return loss, {"clip_fraction": clipped, "dual_clip_fraction": capped}


@dataclass(frozen=True, slots=True)
class ClippedLoss(PolicyLoss):
    """PPO's clipped surrogate with its bounds, for a subclass to name or to add to."""

    by_rows: ClassVar[bool] = True

    clip_ratio_low: float = 0.2
    """ε_low in [0, 1], how far the ratio may fall below 1."""
    clip_ratio_high: float = 0.2
    """ε_high ≥ 0, how far the ratio may rise above 1."""
    clip_ratio_c: float | None = None
    """The bound c > 1 of the dual clip; None for none."""
    clip_log_ratio_min: float | None = None
    """The least log-ratio, in [−20, 0]; None for −20."""
    clip_log_ratio_max: float | None = None
    """The greatest log-ratio, in [0, 20]; None for 20."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        self.bounds()

    def bounds(self) -> Clip:
        """The bounds as one thing, checked."""
        low, high = self.clip_ratio_low, self.clip_ratio_high
        return Clip(low, high, self.clip_ratio_c, self.clip_log_ratio_min, self.clip_log_ratio_max)

    def policy_terms(self, x: LossInputs) -> Terms:
        return ppo_clip_terms(*x.decisions(by=type(self).__name__), self.bounds())


@dataclass(frozen=True, slots=True)
class PPOClip(ClippedLoss):
    """The clipped surrogate by name: `algorithm.loss_type: ppo_clip`, or `actor` as RLinf's users know it. No critic.

    With an advantage in groups it is the loss of GRPO (`loss_agg_func: seq-mean-token-mean`) and of Dr. GRPO
    (`loss_agg_func: constant-length`).
    """


@dataclass(frozen=True, slots=True)
class DAPO(ClippedLoss):
    """The loss of DAPO by name: `algorithm.loss_type: dapo`. It is `PPOClip` with the bounds of the paper.

    Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (2025), eq. 8, arXiv:2503.14476: a higher upper
    bound, and the mean over tokens. Its other two parts are not losses: dynamic sampling is a filter of groups, and overlong
    reward shaping a reward.
    """

    clip_ratio_high: float = 0.28
    """ε_high ≥ 0, how far the ratio may rise above 1."""


@dataclass(frozen=True, slots=True)
class ActorCritic(ClippedLoss):
    """PPO's whole loss by name: `algorithm.loss_type: actor_critic`.

    L = L_clip + c_V L_V − c_H H

    Schulman et al., "Proximal Policy Optimization Algorithms" (2017), eq. 9, arXiv:1707.06347. All three count decisions, so
    one weight divides them all.
    """

    value_clip: float | None = None
    """How far a value may move, in units of value; None for any distance."""
    huber_delta: float | None = None
    """Where the critic's loss turns from square to linear, in units of value; None for never."""
    value_loss_coef: float = 0.5
    """c_V, the weight of the critic's loss."""

    def __post_init__(self) -> None:
        ClippedLoss.__post_init__(self)
        check_critic(self.value_clip, self.huber_delta, self.value_loss_coef)

    def own_needs(self) -> Mapping[Need, str]:
        return {"value": "", "target": ""}

    def other_terms(self, x: LossInputs) -> list[Terms]:
        clip, delta, coef = self.value_clip, self.huber_delta, self.value_loss_coef
        return [critic_terms(x, by="ActorCritic", value_clip=clip, huber_delta=delta, coef=coef)]


def critic_terms(x: LossInputs, *, by: str, value_clip: float | None, huber_delta: float | None, coef: float) -> Terms:
    """c_V L_V of a policy loss that has a critic; its metric is L_V."""
    value, old, target = (x.need(name, by=by) for name in ("value", "value_old", "target"))
    critic = value_terms(value, old, target, x.mask, value_clip, huber_delta)
    return replace(critic, loss=coef * critic.loss)
