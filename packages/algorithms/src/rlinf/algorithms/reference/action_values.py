"""Returns for critics of states and actions, as the sums over the future that define them."""

from __future__ import annotations

import math

from rlinf.algorithms.reference.returns import lambda_returns
from rlinf.algorithms.reference.transitions import Bools, Factor, Floats, at, steps, zeros


def retrace(
    reward: Floats,
    action_value: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    log_ratio: Floats,
    *,
    gamma: Factor,
    lam: Factor = 1.0,
    mask: Bools | None = None,
    value_next: Floats | None = None,
) -> Floats:
    """Q + Σₖ (Π γ λ min(1, π / μ)) δ."""
    trace = [[at(lam, b, t) * min(1.0, math.exp(x)) for t, x in enumerate(row)] for b, row in enumerate(log_ratio)]
    return _corrected(reward, action_value, value, terminated, truncated, trace, gamma, mask, value_next)


def q_lambda(
    reward: Floats,
    action_value: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    *,
    gamma: Factor,
    lam: Factor,
    mask: Bools | None = None,
    value_next: Floats | None = None,
) -> Floats:
    """Q + Σₖ (Π γ λ) δ."""
    trace = [[at(lam, b, t) for t in range(len(row))] for b, row in enumerate(reward)]
    return _corrected(reward, action_value, value, terminated, truncated, trace, gamma, mask, value_next)


def peng_q_lambda(
    reward: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    *,
    gamma: Factor,
    lam: Factor,
    mask: Bools | None = None,
    value_next: Floats | None = None,
) -> Floats:
    """Gₜ = rₜ + γ [(1 − λ) max Q + λ Gₜ₊₁]."""
    return lambda_returns(reward, value, terminated, truncated, gamma=gamma, lam=lam, mask=mask, value_next=value_next)


def _corrected(
    reward: Floats,
    action_value: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    trace: Floats,
    gamma: Factor,
    mask: Bools | None,
    value_next: Floats | None,
) -> Floats:
    found = zeros(reward)
    for b in range(len(reward)):
        row = steps(b, reward, value, terminated, truncated, gamma, mask, value_next)
        for i, step in enumerate(row):
            total, weight = action_value[b][step.column], 1.0
            for k in range(i, len(row)):
                later = row[k]
                total += weight * (later.reward + later.gamma * later.after - action_value[b][later.column])
                if not later.goes_on:
                    break
                weight *= later.gamma * trace[b][row[k + 1].column]
            found[b][step.column] = total
    return found
