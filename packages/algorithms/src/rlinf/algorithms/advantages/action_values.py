"""Returns for critics of states and actions, from what another policy did: Retrace(λ), Q(λ) and Peng's Q(λ)."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.algorithms.advantages.returns import lambda_returns
from rlinf.algorithms.advantages.transitions import transitions
from rlinf.algorithms.precision import precise
from rlinf.algorithms.shapes import expect_shape


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
    cut = precise(log_ratio).clamp(max=0.0).exp()
    return _corrected(
        "retrace", reward, action_value, value, terminated, truncated, cut, gamma=gamma, lam=lam, mask=mask, value_next=value_next
    )


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
    maximum over actions. Sure to converge where the policies are near enough for λ; `retrace` always is. What follows a decision
    is as in `retrace`.

    Args:
        reward: `[B, T]`, the reward of each decision.
        action_value: `[B, T]`, Q of each observation and what was decided there.
        value: `[B, T + 1]`, E_π Q(sₜ, ·), or maxₐ Q(sₜ, a); `[B, T]` serves with `value_next`.
        terminated: `[B, T]` bool, the task itself ended here.
        truncated: `[B, T]` bool, a limit cut the episode here.
        gamma: discount in [0, 1]; or `[B, T]`.
        lam: weight of going on, in [0, 1]; or `[B, T]`.
        mask: `[B, T]` bool, False where nothing was decided; None if something was everywhere.
        value_next: `[B, T]`, the same of the observation after each decision; None where `value` tells.

    Returns:
        `[B, T]`, float32 or finer; 0 where masked. Differentiable; whoever trains on it detaches it.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `gamma` or `lam` is outside [0, 1].
    """
    whole = torch.ones_like(precise(reward))
    return _corrected(
        "q_lambda",
        reward,
        action_value,
        value,
        terminated,
        truncated,
        whole,
        gamma=gamma,
        lam=lam,
        mask=mask,
        value_next=value_next,
    )


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

    Args:
        reward: `[B, T]`, the reward of each decision.
        value: `[B, T + 1]`, maxₐ Q(sₜ, a); `[B, T]` serves with `value_next`.
        terminated: `[B, T]` bool, the task itself ended here.
        truncated: `[B, T]` bool, a limit cut the episode here.
        gamma: discount in [0, 1]; or `[B, T]`.
        lam: weight of going on, in [0, 1]; or `[B, T]`.
        mask: `[B, T]` bool, False where nothing was decided; None if something was everywhere.
        value_next: `[B, T]`, maxₐ Q of the observation after each decision; None where `value` tells.

    Returns:
        `[B, T]`, float32 or finer; 0 where masked.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `gamma` or `lam` is outside [0, 1].
    """
    return lambda_returns(reward, value, terminated, truncated, gamma=gamma, lam=lam, mask=mask, value_next=value_next)


def _corrected(
    place: str,
    reward: Tensor,
    action_value: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    cut: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor,
    mask: Tensor | None,
    value_next: Tensor | None,
) -> Tensor:
    """Q plus the sum of temporal-difference errors to come, each under the traces λ `cut` of the decisions before it."""
    t = transitions(place, reward, value, terminated, truncated, gamma=gamma, mask=mask, value_next=value_next)
    expect_shape(f"{place}(action_value)", action_value, reward.shape)
    known, trace = (x if t.valid is None else torch.where(t.valid, x, 0.0) for x in (precise(action_value), cut))
    known, trace = known.to(torch.promote_types(known.dtype, t.reward.dtype)), trace.to(t.reward.dtype)
    trace = t.factor(f"{place}(lam)", lam) * trace
    following = t.next_of(trace, torch.zeros_like(trace))
    return known + t.scan(t.ahead(t.after) - known, t.gamma * following)
