"""Returns and advantages of a critic, each as the sum over the future that defines it."""

from __future__ import annotations

import math
from dataclasses import dataclass

Floats = list[list[float]]


Bools = list[list[bool]]


Factor = float | Floats


@dataclass(frozen=True)
class Step:
    """One decision of a row and what follows it."""

    column: int
    reward: float
    now: float
    after: float
    """The value of what followed; 0 after a termination."""
    gamma: float
    goes_on: bool
    """Whether the next step of the list is of the same episode."""


def steps(
    b: int,
    reward: Floats,
    value: Floats | None,
    terminated: Bools,
    truncated: Bools,
    gamma: Factor,
    mask: Bools | None,
    value_next: Floats | None,
) -> list[Step]:
    """The decisions of row b, in order; masked columns are left out."""
    columns = [t for t in range(len(reward[b])) if mask is None or mask[b][t]]
    found: list[Step] = []
    for i, t in enumerate(columns):
        last = i == len(columns) - 1
        end = terminated[b][t] or truncated[b][t]
        if terminated[b][t]:
            after = 0.0
        elif value_next is not None:
            after = value_next[b][t]
        elif value is None:
            after = 0.0
        elif end or last:
            after = value[b][t + 1]
        else:
            after = value[b][columns[i + 1]]
        now = 0.0 if value is None else value[b][t]
        found.append(Step(t, reward[b][t], now, after, at(gamma, b, t), not end and not last))
    return found


def at(factor: Factor, b: int, t: int) -> float:
    """One number for all decisions, or one for each."""
    return factor[b][t] if isinstance(factor, list) else factor


def zeros(reward: Floats) -> Floats:
    """A list of the same shape."""
    return [[0.0 for _ in row] for row in reward]


def scan_from_right(x: list[list[float]], decay: list[list[float]]) -> list[list[float]]:
    """yₜ = xₜ + decayₜ yₜ₊₁, with nothing after the last column."""
    rows: list[list[float]] = []
    for x_row, decay_row in zip(x, decay, strict=True):
        y: list[float] = []
        following = 0.0
        for x_t, decay_t in zip(reversed(x_row), reversed(decay_row), strict=True):
            following = x_t + decay_t * following
            y.append(following)
        rows.append(y[::-1])
    return rows


def td_errors(
    reward: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    *,
    gamma: Factor,
    mask: Bools | None = None,
    value_next: Floats | None = None,
) -> Floats:
    """δₜ = rₜ + γ Vₜ₊₁ − Vₜ."""
    found = zeros(reward)
    for b in range(len(reward)):
        for step in steps(b, reward, value, terminated, truncated, gamma, mask, value_next):
            found[b][step.column] = step.reward + step.gamma * step.after - step.now
    return found


def lambda_returns(
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
    """Gₜ = rₜ + γ [(1 − λ) Vₜ₊₁ + λ Gₜ₊₁], from the right."""
    return _of_rows(reward, value, terminated, truncated, gamma, lam, mask, value_next, len(reward[0]) if reward else 0)


def discounted_returns(
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    *,
    gamma: Factor,
    value: Floats | None = None,
    mask: Bools | None = None,
    value_next: Floats | None = None,
) -> Floats:
    """Gₜ = rₜ + γ rₜ₊₁ + γ² rₜ₊₂ + … and, where the rewards stop before the task does, the value of what follows."""
    found = zeros(reward)
    for b in range(len(reward)):
        row = steps(b, reward, value, terminated, truncated, gamma, mask, value_next)
        for i, step in enumerate(row):
            total, weight = 0.0, 1.0
            for later in row[i:]:
                total += weight * later.reward
                weight *= later.gamma
                if not later.goes_on:
                    total += weight * later.after
                    break
            found[b][step.column] = total
    return found


def n_step_returns(
    reward: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    *,
    gamma: Factor,
    n: int,
    lam: Factor = 1.0,
    mask: Bools | None = None,
    value_next: Floats | None = None,
) -> Floats:
    """The λ-return of the next n decisions alone."""
    return _of_rows(reward, value, terminated, truncated, gamma, lam, mask, value_next, n)


def _of_rows(
    reward: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    gamma: Factor,
    lam: Factor,
    mask: Bools | None,
    value_next: Floats | None,
    n: int,
) -> Floats:
    found = zeros(reward)
    for b in range(len(reward)):
        row = steps(b, reward, value, terminated, truncated, gamma, mask, value_next)
        for i, step in enumerate(row):
            found[b][step.column] = _look_ahead(row[i:], [at(lam, b, later.column) for later in row[i:]], n)
    return found


def _look_ahead(row: list[Step], lam: list[float], n: int) -> float:
    step = row[0]
    if n == 1 or not step.goes_on:
        return step.reward + step.gamma * step.after
    rest = _look_ahead(row[1:], lam[1:], n - 1)
    return step.reward + step.gamma * ((1.0 - lam[0]) * step.after + lam[0] * rest)


def gae(
    reward: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    *,
    gamma: Factor,
    lam: Factor,
    mask: Bools | None = None,
    value_next: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Âₜ = Σₖ (Π γ λ) δₜ₊ₖ up to the end of the episode, and Âₜ + Vₜ."""
    advantage, target = zeros(reward), zeros(reward)
    for b in range(len(reward)):
        row = steps(b, reward, value, terminated, truncated, gamma, mask, value_next)
        for i, step in enumerate(row):
            total, weight = 0.0, 1.0
            for later in row[i:]:
                total += weight * (later.reward + later.gamma * later.after - later.now)
                if not later.goes_on:
                    break
                weight *= later.gamma * at(lam, b, later.column)
            advantage[b][step.column] = total
            target[b][step.column] = total + step.now
    return advantage, target


def vtrace(
    reward: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    log_ratio: Floats,
    *,
    gamma: Factor,
    lam: Factor = 1.0,
    clip_rho: float | None = 1.0,
    clip_c: float | None = 1.0,
    clip_pg_rho: float | None = 1.0,
    mask: Bools | None = None,
    value_next: Floats | None = None,
) -> tuple[Floats, Floats]:
    """vₜ = Vₜ + Σₖ (Π γ λ c) ρ δ, and ρ' (rₜ + γ [(1 − λ) Vₜ₊₁ + λ vₜ₊₁] − Vₜ)."""
    advantage, target = zeros(reward), zeros(reward)
    for b in range(len(reward)):
        row = steps(b, reward, value, terminated, truncated, gamma, mask, value_next)
        ratio = [math.exp(log_ratio[b][step.column]) for step in row]
        lams = [at(lam, b, step.column) for step in row]
        corrected = [step.now + _correction(row[i:], ratio[i:], lams[i:], clip_rho, clip_c) for i, step in enumerate(row)]
        for i, step in enumerate(row):
            after = step.after
            if step.goes_on:
                after = (1.0 - lams[i]) * row[i + 1].now + lams[i] * corrected[i + 1]
            advantage[b][step.column] = _cap(ratio[i], clip_pg_rho) * (step.reward + step.gamma * after - step.now)
            target[b][step.column] = corrected[i]
    return advantage, target


def _correction(row: list[Step], ratio: list[float], lam: list[float], clip_rho: float | None, clip_c: float | None) -> float:
    total, weight = 0.0, 1.0
    for i, step in enumerate(row):
        total += weight * _cap(ratio[i], clip_rho) * (step.reward + step.gamma * step.after - step.now)
        if not step.goes_on:
            break
        weight *= step.gamma * lam[i] * _cap(ratio[i], clip_c)
    return total


def _cap(ratio: float, cap: float | None) -> float:
    return ratio if cap is None else min(ratio, cap)


peng_q_lambda = lambda_returns
"""The λ-return of the greedy value is Peng's Q(λ)."""


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
