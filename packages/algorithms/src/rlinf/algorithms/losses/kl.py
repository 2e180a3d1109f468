"""How far a policy is from its reference: estimates, exact values, in the loss and in the reward."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rlinf.algorithms.elementwise import bounded
from rlinf.algorithms.losses.aggregation import TOKEN_MEAN, Aggregation
from rlinf.algorithms.losses.granularity import at_granularity
from rlinf.algorithms.losses.known import known
from rlinf.algorithms.losses.ratio import LOG_RATIO_BOUND
from rlinf.algorithms.losses.terms import Terms, per_decision
from rlinf.algorithms.losses.tiles import in_tiles
from rlinf.algorithms.precision import precise
from rlinf.algorithms.shapes import expect_range, expect_shape
from rlinf.core.data import LossOutput
from rlinf.core.errors import ConfigError, NonFiniteError, ShapeError, did_you_mean

KLType = Literal["k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl", "k1+", "kl+", "abs+", "k3+", "low_var_kl+"]
"""See `kl_penalty`."""

_CANONICAL: dict[str, str] = {
    "k1": "k1", "kl": "k1", "abs": "abs", "k2": "k2", "mse": "k2", "k3": "k3", "low_var_kl": "low_var_kl",
}  # fmt: skip


def kl_penalty(logprob: Tensor, logprob_ref: Tensor, kind: KLType) -> Tensor:
    """Estimates KL(π ‖ π_ref) from one sample of π each.

    With d = log π_ref(a) − log π(a) and a ~ π, so that E[−d] = KL(π ‖ π_ref):

    | kind | estimate | |
    |---|---|---|
    | `k1`, `kl` | −d | unbiased, of either sign |
    | `abs` | abs(d) | biased |
    | `k2`, `mse` | ½ d² | biased; its *gradient* is unbiased |
    | `k3` | eᵈ − 1 − d | unbiased, never negative |
    | `low_var_kl` | min(eᵈ − 1 − d, 10), d within ±20 | k3 with the bounds of verl, beyond which it has no gradient |
    | any of them with `+` | its value | with the gradient of k2 |

    Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html. As a loss, k1 has a gradient whose
    expectation is 0; hence the straight-through forms with `+`.

    Args:
        logprob: any shape, log π of actions that π took (or π_old, if nearly the same); differentiable.
        logprob_ref: the same shape, log π_ref of the same actions.
        kind: the estimate.

    Returns:
        The shape of `logprob`, in nats, at least float32.

    Raises:
        ShapeError: the shapes disagree.
        ConfigError: there is no such kind; the message has the nearest.
    """
    expect_shape("kl_penalty(logprob_ref)", logprob_ref, logprob.shape)
    check_kl_type(kind, place="kl_penalty(kind)")
    toward = precise(logprob_ref) - precise(logprob)
    value = _estimate(toward, _CANONICAL[kind.removesuffix("+")])
    if not kind.endswith("+"):
        return value
    square = _estimate(toward, "k2")
    return value.detach() + (square - square.detach())


def check_kl_type(kind: str, *, place: str) -> None:
    """Refuses an estimate that does not exist.

    Raises:
        ConfigError: the message has the nearest.
    """
    if kind.removesuffix("+") not in _CANONICAL:
        raise ConfigError(place, f"no estimate '{kind}'", did_you_mean(kind, list(_CANONICAL)))


def _estimate(toward: Tensor, kind: str) -> Tensor:
    if kind == "k1":
        return -toward
    if kind == "abs":
        return toward.abs()
    if kind == "k2":
        return 0.5 * toward.square()
    if kind == "k3":
        return toward.expm1() - toward
    near = bounded(toward, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return bounded(near.expm1() - near, high=10.0)


def kl_loss(
    logprob: Tensor, logprob_ref: Tensor, mask: Tensor, *, kind: KLType = "k3", aggregation: Aggregation = TOKEN_MEAN
) -> LossOutput[Tensor]:
    """The divergence from a reference policy, to be minimised.

    L = estimate of KL(π ‖ π_ref), see `kl_penalty`

    Shao et al., "DeepSeekMath" (2024), eq. 4, arXiv:2402.03300 puts k3 into the loss.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, under the current weights; differentiable.
        logprob_ref: `[B, T]`, compared with the sum over what a decision consists of; or the shape of `logprob`, where the
            estimates of one decision's elements are averaged.
        mask: `[B, T]` bool.
        kind: the estimate.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `kl_ref`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    return in_tiles(partial(kl_terms, kind=kind), aggregation, logprob=logprob, logprob_ref=logprob_ref, mask=mask)


def kl_terms(logprob: Tensor, logprob_ref: Tensor, mask: Tensor, kind: KLType) -> Terms:
    """`kl_loss` before it is summed."""
    if not 2 <= logprob.dim() <= 4:
        raise ShapeError("kl_loss(logprob)", f"expected [B, T], [B, T, K] or [B, T, K, A], found {tuple(logprob.shape)}")
    expect_shape("kl_loss(mask)", mask, logprob.shape[:2])
    expect_shape("kl_loss(logprob_ref)", logprob_ref, mask.shape if logprob_ref.dim() == 2 else logprob.shape)
    logprob, logprob_ref = (known(x, mask) for x in (logprob, logprob_ref))
    if logprob_ref.dim() == 2:
        logprob = at_granularity(logprob, "chunk_level")
    loss = per_decision(kl_penalty(logprob, logprob_ref, kind))
    return Terms(loss, {"kl_ref": loss.detach()})


def reward_with_kl(
    reward: Tensor, logprob: Tensor, logprob_ref: Tensor, mask: Tensor, *, beta: float, kind: KLType = "k1"
) -> Tensor:
    """Rewards from which the divergence of each decision is taken.

    r′ₜ = rₜ − β · estimate of KL(π ‖ π_ref) at t

    Ziegler et al., "Fine-Tuning Language Models from Human Preferences" (2019), eq. 2, arXiv:1909.08593.

    Args:
        reward: `[B, T]`.
        logprob: `[B, T]`, under the weights that decided.
        logprob_ref: `[B, T]`, under the reference policy.
        mask: `[B, T]` bool; where it is False the reward stays as it is.
        beta: β ≥ 0, in reward per nat.
        kind: the estimate, see `kl_penalty`.

    Returns:
        `[B, T]`, without a gradient.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    expect_range("beta", beta, 0.0, math.inf)
    for name, tensor in (("logprob", logprob), ("logprob_ref", logprob_ref), ("mask", mask)):
        expect_shape(f"reward_with_kl({name})", tensor, reward.shape)
    with torch.no_grad():
        return precise(reward) - beta * kl_terms(logprob, logprob_ref, mask, kind).loss


def kl_categorical(logits: Tensor, logits_ref: Tensor) -> Tensor:
    """The divergence of two distributions over V choices, exactly.

    KL(π ‖ π_ref) = Σᵥ πᵥ (log πᵥ − log π_refᵥ)

    Kullback and Leibler, "On Information and Sufficiency" (1951), doi:10.1214/aoms/1177729694.

    Args:
        logits: `[*, V]`, log-probabilities of π up to a constant; −∞ where a choice is impossible; differentiable.
        logits_ref: `[*, V]`, the same of π_ref.

    Returns:
        `[*]` in nats; +∞ where π may choose what π_ref can't.

    Raises:
        ShapeError: the shapes disagree.
    """
    expect_shape("kl_categorical(logits_ref)", logits_ref, logits.shape)
    log_p, log_q = precise(logits).log_softmax(-1), precise(logits_ref).log_softmax(-1)
    gap = torch.where(log_p > -torch.inf, log_p - log_q, 0.0)
    return (log_p.exp() * gap).sum(-1)


def kl_gaussian(mean: Tensor, std: Tensor, mean_ref: Tensor, std_ref: Tensor) -> Tensor:
    """The divergence of two normal distributions, exactly, dimension by dimension.

    KL(π ‖ π_ref) = log(σ_ref / σ) + (σ² + (μ − μ_ref)²) / (2 σ_ref²) − ½

    Independent dimensions add up (`at_granularity`).

    Args:
        mean: any shape, μ; differentiable.
        std: the same shape, σ > 0; differentiable.
        mean_ref: the same shape, μ_ref.
        std_ref: the same shape, σ_ref > 0.

    Returns:
        The shape of `mean`, in nats.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    for name, tensor in (("std", std), ("mean_ref", mean_ref), ("std_ref", std_ref)):
        expect_shape(f"kl_gaussian({name})", tensor, mean.shape)
    mean, std, mean_ref, std_ref = (precise(x) for x in (mean, std, mean_ref, std_ref))
    scale = std / std_ref
    return 0.5 * (scale.square() + ((mean - mean_ref) / std_ref).square() - 1.0) - scale.log()


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedKL:
    """A coefficient β of the divergence that stays as it is."""

    beta: float
    """β ≥ 0."""

    def __post_init__(self) -> None:
        expect_range("beta", self.beta, 0.0, math.inf)

    def updated(self, kl: float, episodes: int) -> FixedKL:
        """Itself, whatever was measured."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveKL:
    """A coefficient β of the divergence that steers it towards a target.

    e = clip(KL / target − 1, ±0.2),   β′ = max(0, β (1 + e · n / horizon))

    Ziegler et al., "Fine-Tuning Language Models from Human Preferences" (2019), section 2.2, arXiv:1909.08593, where n counts
    episodes.
    """

    beta: float
    """β ≥ 0 of the next batch."""
    target: float
    """The divergence wanted, in nats, > 0."""
    horizon: float
    """After how many episodes a divergence of 1.2 targets has made β e^0.2 times as large, > 0."""

    def __post_init__(self) -> None:
        expect_range("beta", self.beta, 0.0, math.inf)
        expect_range("target", self.target, 0.0, math.inf, open_low=True)
        expect_range("horizon", self.horizon, 0.0, math.inf, open_low=True)

    def updated(self, kl: float, episodes: int) -> AdaptiveKL:
        """The controller after a batch.

        Args:
            kl: the divergence measured, in nats.
            episodes: n, how many it was measured on.

        Raises:
            NonFiniteError: the divergence is infinite or not a number.
        """
        if not math.isfinite(kl):
            raise NonFiniteError("AdaptiveKL.updated(kl)", f"expected a finite divergence, found {kl}")
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        return replace(self, beta=max(0.0, self.beta * (1.0 + error * episodes / self.horizon)))
