"""How far a policy is from its reference: estimates, exact values, in the loss and in the reward."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Literal

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.compat.words import KL_TYPES
from rlinf.algorithms.elementwise import at_least_float32, bounded
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.losses.ratio import LOG_RATIO_BOUND, at_granularity
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, in_tiles, per_decision, zero_masked
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.errors import ConfigError, ShapeError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

KLType = Literal["k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl", "k1+", "kl+", "abs+", "k3+", "low_var_kl+"]
"""Estimates of the divergence by name; those with `+` have the gradient of k2. `kl_penalty` has the formulas."""

_KINDS = ("k1", "abs", "k2", "k3", "low_var_kl")


@takes_tensors
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
    toward = at_least_float32(logprob_ref) - at_least_float32(logprob)
    base = kind.removesuffix("+")
    value = _estimate(toward, KL_TYPES.get(base, base))
    if not kind.endswith("+"):
        return value
    # Adds exactly 0 to the value, and the gradient of k2.
    square = _estimate(toward, "k2")
    return value.detach() + (square - square.detach())


def check_kl_type(kind: str, *, place: str) -> None:
    """Refuses an estimate that does not exist.

    Raises:
        ConfigError: the message has the nearest.
    """
    kinds = [*_KINDS, *KL_TYPES]
    if kind.removesuffix("+") not in kinds:
        raise ConfigError(place, f"no estimate '{kind}'", did_you_mean(kind, kinds))


def _estimate(toward: Tensor, kind: str) -> Tensor:
    if kind == "k1":
        return -toward
    if kind == "abs":
        return toward.abs()
    if kind == "k2":
        return 0.5 * toward.square()
    if kind == "k3":
        # expm1: near 0, where d² / 2 is far below 1, eᵈ − 1 would lose all digits in float32.
        return toward.expm1() - toward
    near = bounded(toward, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return bounded(near.expm1() - near, high=10.0)


@takes_tensors
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
        ConfigError: there is no such kind; the message has the nearest.
    """
    return in_tiles(partial(kl_terms, kind=kind), aggregation, logprob=logprob, logprob_ref=logprob_ref, mask=mask)


def kl_terms(logprob: Tensor, logprob_ref: Tensor, mask: Tensor, kind: KLType) -> Terms:
    """`kl_loss` before it is summed."""
    if not 2 <= logprob.dim() <= 4:
        raise ShapeError("kl_loss(logprob)", f"expected [B, T], [B, T, K] or [B, T, K, A], found {tuple(logprob.shape)}")
    expect_shape("kl_loss(mask)", mask, logprob.shape[:2])
    expect_shape("kl_loss(logprob_ref)", logprob_ref, mask.shape if logprob_ref.dim() == 2 else logprob.shape)
    logprob, logprob_ref = (zero_masked(x, mask) for x in (logprob, logprob_ref))
    # A reference that scored whole decisions can only be compared with whole decisions.
    if logprob_ref.dim() == 2:
        logprob = at_granularity(logprob, "chunk_level")
    loss = per_decision(kl_penalty(logprob, logprob_ref, kind))
    return Terms(loss, {"kl_ref": loss.detach()})


@takes_tensors
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
        ConfigError: `beta` is negative, or there is no such kind.
    """
    expect_range("beta", beta, 0.0, math.inf)
    for name, tensor in (("logprob", logprob), ("logprob_ref", logprob_ref), ("mask", mask)):
        expect_shape(f"reward_with_kl({name})", tensor, reward.shape)
    with torch.no_grad():
        return at_least_float32(reward) - beta * kl_terms(logprob, logprob_ref, mask, kind).loss
