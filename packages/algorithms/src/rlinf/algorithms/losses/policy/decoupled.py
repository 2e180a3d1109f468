"""The clipped surrogate for decisions of weights older than those that the update starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from rlinf.algorithms.checks import expect_choice, expect_shape, takes_tensors
from rlinf.algorithms.elementwise import above, at_least_float32, difference, keep
from rlinf.algorithms.lazy import no_grad, torch
from rlinf.algorithms.losses.policy.ppo import Clip, ClippedLoss, critic_terms
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.algorithms.losses.ratio import check_logprobs, observed_ratio, ratio_of
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, counted, in_tiles, like, per_decision
from rlinf.algorithms.losses.value import check_critic
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.declarations import Need

if TYPE_CHECKING:
    from torch import Tensor

Proximal = Literal["given", "interpolated"]
Cap = Literal["drop", "truncate"]


@takes_tensors
def decoupled_ppo(
    logprob: Tensor,
    logprob_old: Tensor,
    logprob_proximal: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
    behave_weight_threshold: float | None = None,
    behave_weight_cap: Cap = "drop",
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """PPO whose clip is around a proximal policy, and whose importance weight is that of the policy that decided.

    L = w max(−ρ Â, −clip(ρ, 1 − ε_low, 1 + ε_high) Â),   ρ = π / π_prox,   w = sg[π_prox / π_old]

    Hilton et al., "Batch size-invariance for policy optimization" (2022), arXiv:2110.00641; for asynchronous training of
    language models Fu et al., "AReaL" (2025), arXiv:2505.24298. With π_prox = π_old it is `ppo_clip`.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, under the current weights; differentiable.
        logprob_old: the same shape, under the weights that decided.
        logprob_proximal: the same shape, under the weights before the update, or `interpolated_proximal`; without gradient.
        advantage: `[B, T]`; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        clip_ratio_low: ε_low in [0, 1].
        clip_ratio_high: ε_high ≥ 0.
        clip_ratio_c: c > 1, the bound of the dual clip; None for none.
        behave_weight_threshold: the greatest w, above 0; None for no cap.
        behave_weight_cap: what becomes of an element whose w is greater: it adds nothing ("drop"), or w is the threshold
            ("truncate"). It counts in the weight of the loss all the same, so that dropping never makes the others louder.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `policy_loss`; of ρ `proximal_ratio`, `clipped_proximal_ratio`,
        `proximal_approx_kl`, `clip_fraction` and `dual_clip_fraction`; of w before its cap `behave_ratio` and
        `behave_approx_kl`; `behave_clip_fraction`, the share of elements whose w is above the threshold.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a bound is out of its range, or `behave_weight_cap` is unknown.
    """
    clip = Clip(clip_ratio_low, clip_ratio_high, clip_ratio_c)
    cap = BehaveCap(behave_weight_threshold, behave_weight_cap)
    terms = partial(decoupled_ppo_terms, clip=clip, cap=cap)
    tensors = {"logprob": logprob, "logprob_old": logprob_old, "logprob_proximal": logprob_proximal, "advantage": advantage}
    return in_tiles(terms, aggregation, mask=mask, **tensors)


@dataclass(frozen=True, slots=True)
class BehaveCap:
    """How great the weight of the policy that decided may be."""

    threshold: float | None
    """The greatest weight, above 0; None for any."""
    mode: Cap
    """What becomes of a greater one."""

    def __post_init__(self) -> None:
        expect_range("behave_weight_threshold", self.threshold, 0.0, float("inf"), open_low=True)
        expect_choice("behave_weight_cap", self.mode, get_args(Cap))

    def apply(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Capped weights, and 1 or 0 for whether they were too great."""
        if self.threshold is None:
            return weight, torch.zeros_like(weight)
        over = above(weight, self.threshold)
        return weight * (1.0 - over) if self.mode == "drop" else weight.clamp(max=self.threshold), over


def decoupled_ppo_terms(
    logprob: Tensor,
    logprob_old: Tensor,
    logprob_proximal: Tensor,
    advantage: Tensor,
    mask: Tensor,
    clip: Clip,
    cap: BehaveCap,
) -> Terms:
    """`decoupled_ppo` before it is summed."""
    check_logprobs("decoupled_ppo", advantage, mask, logprob=logprob, logprob_old=logprob_old, logprob_proximal=logprob_proximal)
    low, high = clip.log_bounds
    # A point of reference: a gradient through it would take away from that of the ratio.
    proximal = logprob_proximal.detach()
    ratio = ratio_of("decoupled_ppo", logprob, proximal, advantage, mask, low=low, high=high)
    behave = ratio_of("decoupled_ppo", proximal, logprob_old.detach(), advantage, mask)
    weight, over = cap.apply(behave.value)
    surrogate, shares = clip.surrogate(ratio.value, ratio.gain)
    loss = per_decision(weight * surrogate)
    near, far = observed_ratio(ratio.log, mask), observed_ratio(behave.log, mask)
    clipped = keep(ratio.value.detach().clamp(1.0 - clip.low, 1.0 + clip.high), ratio.valid)
    # Where masked the weight is 1, which a threshold below 1 would count.
    shares["behave_clip_fraction"] = keep(over, ratio.valid)
    observed = {
        "policy_loss": loss.detach(),
        "proximal_ratio": near["ratio"],
        "clipped_proximal_ratio": per_decision(clipped),
        "proximal_approx_kl": near["approx_kl"],
        "behave_ratio": far["ratio"],
        "behave_approx_kl": far["approx_kl"],
    }
    return Terms(loss, observed | counted(shares))


@takes_tensors
@no_grad
def interpolated_proximal(logprob: Tensor, logprob_old: Tensor, version: Tensor, *, version_now: int) -> Tensor:
    """The log-probability under the weights one version ago, guessed from those of now and those that decided.

    log π_prox = log π_old + α (log π − log π_old),   α = (v − 1 − v_old) / (v − v_old), and 0 where v_old ≥ v

    The log-linear approximation of AReaL (2025), arXiv:2505.24298, which spares a pass through the model. Decisions of the
    weights of now, or of those one version ago, keep what they were decided with.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, under the current weights.
        logprob_old: the same shape, under the weights that decided.
        version: `[B, T]` int, v_old, the version of the weights that decided.
        version_now: v, the version of the current weights.

    Returns:
        The shape of `logprob`, without gradient.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    expect_shape("interpolated_proximal(logprob_old)", logprob_old, logprob.shape)
    expect_shape("interpolated_proximal(version)", version, logprob.shape[:2])
    new, old = at_least_float32(logprob), at_least_float32(logprob_old)
    # Decisions of the current version would divide by 0; with a lag of 1 they keep what they were decided with.
    lag = (version_now - version).clamp(min=1).to(new.dtype)
    return old + like((lag - 1.0) / lag, new) * difference(new, old)


@dataclass(frozen=True, slots=True)
class DecoupledLoss(ClippedLoss):
    """What losses around a proximal policy have in common."""

    proximal: Proximal = "given"
    """Whether the proximal policy's log-probabilities are given, recomputed by the trainer before the update, or interpolated from
    the versions of the weights (see `interpolated_proximal`)."""
    behave_weight_threshold: float | None = None
    """The greatest importance weight of the policy that decided, above 0; None for any."""
    behave_weight_cap: Cap = "drop"
    """Whether an element of a greater weight adds nothing, or has the threshold for a weight."""

    def __post_init__(self) -> None:
        ClippedLoss.__post_init__(self)
        BehaveCap(self.behave_weight_threshold, self.behave_weight_cap)
        expect_choice("proximal", self.proximal, get_args(Proximal))

    def own_needs(self) -> Mapping[Need, str]:
        return {"proximal": ""} if self.proximal == "given" else {"version": "proximal"}

    def policy_terms(self, x: LossInputs) -> Terms:
        logprob, old, advantage, mask = x.decisions(by=type(self).__name__)
        cap = BehaveCap(self.behave_weight_threshold, self.behave_weight_cap)
        terms = decoupled_ppo_terms(logprob, old, self._proximal(x), advantage, mask, self.bounds(), cap)
        return Terms(terms.loss, {**terms.observed, **_observed_versions(x)})

    def _proximal(self, x: LossInputs) -> Tensor:
        if self.proximal == "given":
            return x.need("logprob_proximal", by=type(self).__name__)
        names = ("logprob", "logprob_old", "version", "version_now")
        logprob, old, version, now = (x.need(name, by=type(self).__name__) for name in names)
        return interpolated_proximal(logprob, old, version, version_now=now)


@dataclass(frozen=True, slots=True)
class DecoupledPPO(DecoupledLoss):
    """Decoupled PPO by name: `algorithm.loss_type: decoupled_ppo`. No critic."""


@dataclass(frozen=True, slots=True)
class DecoupledActorCritic(DecoupledLoss):
    """Decoupled PPO with its critic by name: `algorithm.loss_type: decoupled_actor_critic`.

    L = L_decoupled + c_V L_V − c_H H
    """

    value_clip: float | None = None
    """How far a value may move, in units of value; None for any distance."""
    huber_delta: float | None = None
    """Where the critic's loss turns from square to linear, in units of value; None for never."""
    value_loss_coef: float = 0.5
    """c_V, the weight of the critic's loss."""

    def __post_init__(self) -> None:
        DecoupledLoss.__post_init__(self)
        check_critic(self.value_clip, self.huber_delta, self.value_loss_coef)

    def own_needs(self) -> Mapping[Need, str]:
        return {**DecoupledLoss.own_needs(self), "value": "", "target": ""}

    def other_terms(self, x: LossInputs) -> list[Terms]:
        clip, delta, coef = self.value_clip, self.huber_delta, self.value_loss_coef
        return [critic_terms(x, by="DecoupledActorCritic", value_clip=clip, huber_delta=delta, coef=coef)]


def _observed_versions(x: LossInputs) -> dict[str, Tensor]:
    """The mean version of the weights that decided, and that of the current ones, where somebody counts them."""
    valid = x.mask.bool()
    found: dict[str, Tensor] = {}
    if x.version is not None:
        found["average_version"] = torch.where(valid, x.version, 0).float()
    if x.version_now is not None:
        found["current_version"] = valid.float() * x.version_now
    return found
