"""Returns from what another policy did: V-trace for states; Retrace(λ), Q(λ) and Peng's Q(λ) for states and actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlinf.algorithms.advantages.estimator import CreditInputs, Estimator
from rlinf.algorithms.advantages.returns import lambda_returns
from rlinf.algorithms.advantages.transitions import Transitions, transitions
from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.declarations import Need
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def vtrace(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    log_ratio: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor = 1.0,
    clip_rho: float | None = 1.0,
    clip_c: float | None = 1.0,
    clip_pg_rho: float | None = 1.0,
    mask: Tensor | None = None,
    value_next: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """V-trace advantages and value targets.

    ρₜ = min(ρ̄, πₜ / μₜ),   cₜ = λ min(c̄, πₜ / μₜ),   δₜ = ρₜ (rₜ + γ (1 − terminatedₜ) Vₜ₊₁ − Vₜ)

    vₜ − Vₜ = δₜ + γ cₜ (1 − endₜ) (vₜ₊₁ − Vₜ₊₁),   Âₜ = ρₜ' (rₜ + γ (1 − terminatedₜ) [(1 − λ) Vₜ₊₁ + λ vₜ₊₁] − Vₜ)

    Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures" (2018), eq. 1 and
    §4.2, arXiv:1802.01561; ρ' is the ratio under a cap of its own, and λ mixes the bootstrap of Â as it does elsewhere. With π = μ
    and caps of 1 or more, v is the λ-return. What follows a decision at an end, at a reset and before masked columns is as in
    `gae`; after a truncation and where the row stops, vₜ₊₁ = Vₜ₊₁.

    Args:
        reward: `[B, T]`, the reward of each decision.
        value: `[B, T + 1]`, the critic's value; `[B, T]` serves with `value_next`.
        terminated: `[B, T]` bool, the task itself ended here.
        truncated: `[B, T]` bool, a limit cut the episode here.
        log_ratio: `[B, T]`, log π − log μ of each decision: under the policy to learn, less under the one that decided.
        gamma: discount in [0, 1]; or `[B, T]`.
        lam: weight of going on, in [0, 1]; or `[B, T]`.
        clip_rho: ρ̄ > 0, which decides whose value is learnt; None for no cap.
        clip_c: c̄ > 0, which decides how fast; None for no cap.
        clip_pg_rho: the cap of ρ', > 0; None for no cap.
        mask: `[B, T]` bool, False where nothing was decided; None if something was everywhere.
        value_next: `[B, T]`, the value of the observation after each decision; None where `value` tells.

    Returns:
        Policy-gradient advantages Â and value targets v, each `[B, T]`; both are 0 where masked. They are differentiable; whoever
        trains on them detaches them.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: a cap is not positive, or `gamma` or `lam` outside [0, 1].
    """
    for name, cap in (("clip_rho", clip_rho), ("clip_c", clip_c), ("clip_pg_rho", clip_pg_rho)):
        expect_range(f"vtrace({name})", cap, 0.0, math.inf, open_low=True)
    t = transitions("vtrace", reward, value, terminated, truncated, gamma=gamma, mask=mask, value_next=value_next)
    expect_shape("vtrace(log_ratio)", log_ratio, reward.shape)
    exact = at_least_float32(log_ratio).to(t.reward.dtype)
    # Masked log-ratios may be anything, and 0 · NaN is NaN.
    log_ratio = exact if t.valid is None else torch.where(t.valid, exact, torch.zeros_like(exact))
    onward = t.factor("vtrace(lam)", lam)
    delta = _capped(log_ratio, clip_rho) * (t.ahead(t.after) - t.now)
    correction = t.scan(delta, t.gamma * onward * _capped(log_ratio, clip_c))
    # (1 − λ) V + λ v is V + λ (v − V), and `correction` is v − V.
    after = t.next_of(t.now, t.after) + onward * t.next_of(correction, torch.zeros_like(correction))
    advantage = _capped(log_ratio, clip_pg_rho) * (t.ahead(after) - t.now)
    return advantage, t.now + correction


def _capped(log_ratio: Tensor, cap: float | None) -> Tensor:
    """The ratio under its cap, which is applied to the logarithm: a ratio that overflows has a gradient of 0, not NaN."""
    return (log_ratio if cap is None else log_ratio.clamp(max=math.log(cap))).exp()


@dataclass(frozen=True, slots=True)
class VTrace(Estimator):
    """V-trace by name: `algorithm.adv_type: vtrace`.

    The ratio of a decision is that of its joint probability, under `logprob_proximal` over `logprob`. Without
    `logprob_proximal` the batch is on-policy and every ratio is 1.
    """

    needs: ClassVar[Mapping[Need, str]] = {"value": ""}
    has_targets: ClassVar[bool] = True

    gamma: float = 0.99
    """Discount of one decision, in [0, 1]."""
    lam: float = 1.0
    """Weight of going on, in [0, 1]."""
    clip_rho: float | None = 1.0
    """Cap of the ratio in the temporal-difference error, > 0; None for none."""
    clip_c: float | None = 1.0
    """Cap of the ratio in the trace, > 0; None for none."""
    clip_pg_rho: float | None = 1.0
    """Cap of the ratio in the advantage, > 0; None for none."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_range("gamma", self.gamma, 0.0, 1.0)
        expect_range("lam", self.lam, 0.0, 1.0)
        for name in ("clip_rho", "clip_c", "clip_pg_rho"):
            expect_range(name, getattr(self, name), 0.0, math.inf, open_low=True)

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor]:
        given = x.transitions(by="VTrace")
        log_ratio = torch.zeros_like(at_least_float32(given["reward"]))
        if x.logprob_proximal is not None:
            log_ratio = x.log_ratio("logprob_proximal", "logprob", by="VTrace")
        return vtrace(
            **given,
            log_ratio=log_ratio,
            gamma=self.gamma,
            lam=self.lam,
            clip_rho=self.clip_rho,
            clip_c=self.clip_c,
            clip_pg_rho=self.clip_pg_rho,
        )


@takes_tensors
def retrace(
    reward: Tensor,
    action_value: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    log_ratio: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor = 1.0,
    mask: Tensor | None = None,
    value_next: Tensor | None = None,
) -> Tensor:
    """Retrace(λ) returns: targets for Q, safe for any policy that acted.

    cₜ = λ min(1, π(aₜ|sₜ) / μ(aₜ|sₜ)),   δₜ = rₜ + γ (1 − terminatedₜ) E_π Q(sₜ₊₁, ·) − Q(sₜ, aₜ)

    Gₜ − Q(sₜ, aₜ) = δₜ + γ cₜ₊₁ (1 − endₜ) (Gₜ₊₁ − Q(sₜ₊₁, aₜ₊₁))

    Munos et al., "Safe and Efficient Off-Policy Reinforcement Learning" (2016), §3, arXiv:1606.02647. With λ = 0 it is expected
    SARSA. What follows a decision at an end, at a reset and before masked columns is as in `gae`; after a truncation and where the
    row stops, the trace ends and E_π Q bootstraps.

    Args:
        reward: `[B, T]`, the reward of each decision.
        action_value: `[B, T]`, Q of each observation and what was decided there.
        value: `[B, T + 1]`, the mean of Q over what π would decide, E_π Q(sₜ, ·); `[B, T]` serves with `value_next`.
        terminated: `[B, T]` bool, the task itself ended here.
        truncated: `[B, T]` bool, a limit cut the episode here.
        log_ratio: `[B, T]`, log π − log μ of each decision: under the policy to learn about, less under the one that decided.
        gamma: discount in [0, 1]; or `[B, T]`.
        lam: weight of going on, in [0, 1]; or `[B, T]`.
        mask: `[B, T]` bool, False where nothing was decided; None if something was everywhere.
        value_next: `[B, T]`, E_π Q of the observation after each decision; None where `value` tells.

    Returns:
        `[B, T]`, float32 or finer; 0 where masked. Differentiable; whoever trains on it detaches it.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `gamma` or `lam` is outside [0, 1].
    """
    expect_shape("retrace(log_ratio)", log_ratio, reward.shape)
    # min(1, ρ) as exp(min(0, log ρ)): it cannot overflow.
    cut = at_least_float32(log_ratio).clamp(max=0.0).exp()
    t = transitions("retrace", reward, value, terminated, truncated, gamma=gamma, mask=mask, value_next=value_next)
    return _corrected("retrace", t, action_value, cut, lam)


@takes_tensors
def q_lambda(
    reward: Tensor,
    action_value: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor,
    mask: Tensor | None = None,
    value_next: Tensor | None = None,
) -> Tensor:
    """Q(λ) returns with off-policy corrections: targets for Q without importance weights.

    δₜ = rₜ + γ (1 − terminatedₜ) E_π Q(sₜ₊₁, ·) − Q(sₜ, aₜ),   Gₜ − Q(sₜ, aₜ) = δₜ + γ λ (1 − endₜ) (Gₜ₊₁ − Q(sₜ₊₁, aₜ₊₁))

    Harutyunyan et al., "Q(λ) with Off-Policy Corrections" (2016), arXiv:1602.04951: Q^π(λ), and Q*(λ) where `value` is the
    maximum over actions. Sure to converge where the policies are near enough for λ; `retrace` always is. Arguments, errors
    and what follows a decision are as in `retrace`; `value` and `value_next` are of whichever of the two.

    Returns:
        `[B, T]`, float32 or finer; 0 where masked. Differentiable; whoever trains on it detaches it.
    """
    t = transitions("q_lambda", reward, value, terminated, truncated, gamma=gamma, mask=mask, value_next=value_next)
    return _corrected("q_lambda", t, action_value, torch.ones_like(at_least_float32(reward)), lam)


@takes_tensors
def peng_q_lambda(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor,
    mask: Tensor | None = None,
    value_next: Tensor | None = None,
) -> Tensor:
    """Peng's Q(λ) returns: `lambda_returns` of the greedy value, whatever was done instead.

    Gₜ = rₜ + γ (1 − terminatedₜ) [(1 − λ) maxₐ Q(sₜ₊₁, a) + λ Gₜ₊₁]

    Peng and Williams, "Incremental Multi-Step Q-Learning" (1994); Kozuno et al., "Revisiting Peng's Q(λ) for Modern Reinforcement
    Learning" (2021), arXiv:2103.00107. It cuts no trace, so that its fixed point lies between the values of both policies.
    Arguments and errors are those of `lambda_returns`, with maxₐ Q for V in `value` and `value_next`.

    Returns:
        `[B, T]`, float32 or finer; 0 where masked.
    """
    return lambda_returns(reward, value, terminated, truncated, gamma=gamma, lam=lam, mask=mask, value_next=value_next)


def _corrected(place: str, t: Transitions, action_value: Tensor, cut: Tensor, lam: float | Tensor) -> Tensor:
    """Q plus the sum of temporal-difference errors to come, each under the traces λ `cut` of the decisions before it."""
    expect_shape(f"{place}(action_value)", action_value, t.reward.shape)
    q, trace = (x if t.valid is None else torch.where(t.valid, x, 0.0) for x in (at_least_float32(action_value), cut))
    q, trace = q.to(torch.promote_types(q.dtype, t.reward.dtype)), trace.to(t.reward.dtype)
    trace = t.factor(f"{place}(lam)", lam) * trace
    # The trace of the decision that follows, c of t + 1; that of V-trace is the decision's own.
    following = t.next_of(trace, torch.zeros_like(trace))
    return q + t.scan(t.ahead(t.after) - q, t.gamma * following)
