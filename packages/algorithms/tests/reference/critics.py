"""Targets and losses of critics, and of the actors that climb them, on floats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Sequence[float]]


Loss = tuple[float, float, dict[str, float]]
"""Total, weight, and the means of metrics."""


def aggregate_q(q: Rows, *, aggregate: str = "min", subset: Sequence[int] | None = None) -> list[float]:
    """The least or the mean of the critics that are asked, row by row."""
    out: list[float] = []
    for row in q:
        asked = list(row) if subset is None else [row[n] for n in subset]
        out.append(min(asked) if aggregate == "min" else sum(asked) / len(asked))
    return out


def td_target(
    reward: Sequence[float],
    terminated: Sequence[bool],
    value_next: Sequence[float],
    *,
    gamma: float | Sequence[float],
    bootstrap: str = "standard",
) -> list[float]:
    """Y = r + γ V(s′), and y = r where the task ended, unless one always bootstraps."""
    out: list[float] = []
    for i, r in enumerate(reward):
        discount = gamma if isinstance(gamma, int | float) else gamma[i]
        if terminated[i] and bootstrap == "standard":
            out.append(r)
        else:
            out.append(r + discount * value_next[i])
    return out


def critic_loss(
    q: Rows,
    target: Sequence[float],
    *,
    huber_delta: float | None = None,
    weight: Sequence[float] | None = None,
) -> Loss:
    """L = Σₙ ℓ(Qₙ − y)."""
    loss = [sum(distance(qn - y, huber_delta) for qn in row) for row, y in zip(q, target, strict=True)]
    observed = {
        "critic_loss": loss,
        "q": [sum(row) / len(row) for row in q],
        "target": list(target),
        "td_error": td_error(q, target),
    }
    return summed(loss, weight, observed)


def td_error(q: Rows, target: Sequence[float]) -> list[float]:
    """|δ| = 1/N Σₙ |Qₙ − y|."""
    return [sum(abs(qn - y) for qn in row) / len(row) for row, y in zip(q, target, strict=True)]


def distance(error: float, huber_delta: float | None) -> float:
    """½ e², or linear beyond δ."""
    if huber_delta is None or abs(error) <= huber_delta:
        return error * error / 2
    return huber_delta * (abs(error) - huber_delta / 2)


def summed(loss: Sequence[float], weight: Sequence[float] | None, observed: dict[str, list[float]]) -> Loss:
    """Σ w ℓ, the number of rows that count, and means over them."""
    w = [1.0] * len(loss) if weight is None else [float(x) for x in weight]
    rows = [i for i, x in enumerate(w) if x != 0.0]
    total = sum(w[i] * loss[i] for i in rows)
    means = {name: sum(x[i] for i in rows) / len(rows) if rows else float("nan") for name, x in observed.items()}
    return total, float(len(rows)), means


def flat(x: Any) -> list[float]:
    """All numbers of a nest of lists."""
    if isinstance(x, int | float):
        return [float(x)]
    return [number for part in x for number in flat(part)]


def counted(row: Any, executed: Sequence[bool] | None) -> list[float]:
    """The numbers of one row that count."""
    if executed is None:
        return flat(row)
    return [number for step, counts in zip(row, executed, strict=True) if counts for number in flat(step)]


def mean(numbers: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(numbers) / len(numbers) if numbers else 0.0


def sac_target(
    reward: Sequence[float],
    terminated: Sequence[bool],
    q_next: Rows,
    logprob_next: Sequence[float],
    *,
    gamma: float | Sequence[float],
    alpha: float,
    aggregate: str = "min",
    subset: Sequence[int] | None = None,
    backup_entropy: bool = True,
    bootstrap: str = "standard",
) -> list[float]:
    """Y = r + γ (agg Q̄ − α log π) where the task went on."""
    soft = aggregate_q(q_next, aggregate=aggregate, subset=subset)
    if backup_entropy:
        soft = [v - alpha * lp for v, lp in zip(soft, logprob_next, strict=True)]
    return td_target(reward, terminated, soft, gamma=gamma, bootstrap=bootstrap)


def redq_subset(num_critics: int, size: int, draw: Sequence[float]) -> list[int]:
    """The indices of the smallest of the numbers drawn."""
    ranked = sorted(range(num_critics), key=lambda n: draw[n])
    return sorted(ranked[:size])


def sac_actor_loss(
    logprob: Sequence[float],
    q: Rows,
    *,
    alpha: float,
    aggregate: str = "min",
    weight: Sequence[float] | None = None,
) -> Loss:
    """L = α log π − agg Q."""
    value = aggregate_q(q, aggregate=aggregate)
    loss = [alpha * lp - v for lp, v in zip(logprob, value, strict=True)]
    return summed(loss, weight, {"actor_loss": loss, "entropy": [-lp for lp in logprob], "actor_q": value})


def temperature(raw: float, *, parametrisation: str = "exp") -> float:
    """Exp x, log(1 + exp x), or x."""
    if parametrisation == "exp":
        return math.exp(raw)
    if parametrisation == "softplus":
        return math.log(1.0 + math.exp(raw))
    return raw


def initial_temperature(alpha: float, *, parametrisation: str = "exp") -> float:
    """The x whose temperature is α."""
    if parametrisation == "exp":
        return math.log(alpha)
    if parametrisation == "softplus":
        return math.log(math.exp(alpha) - 1.0)
    return alpha


def temperature_loss(
    alpha: float, logprob: Sequence[float], *, target_entropy: float, weight: Sequence[float] | None = None
) -> Loss:
    """L = −α (log π + H̄)."""
    loss = [-alpha * (lp + target_entropy) for lp in logprob]
    return summed(loss, weight, {"alpha_loss": loss, "alpha": [alpha] * len(loss)})


def smoothed_action(
    action: Rows,
    *,
    std: float,
    noise_clip: float,
    low: Sequence[float],
    high: Sequence[float],
    draw: Rows,
) -> list[list[float]]:
    """clip(μ + clip(σ ε)), number by number; `draw` is ε."""
    out: list[list[float]] = []
    for row, noise in zip(action, draw, strict=True):
        moved = [a + min(max(std * e, -noise_clip), noise_clip) for a, e in zip(row, noise, strict=True)]
        out.append([min(max(a, low[j]), high[j]) for j, a in enumerate(moved)])
    return out


def td3_target(
    reward: Sequence[float],
    terminated: Sequence[bool],
    q_next: Rows,
    *,
    gamma: float | Sequence[float],
    aggregate: str = "min",
    subset: Sequence[int] | None = None,
    bootstrap: str = "standard",
) -> list[float]:
    """Y = r + γ min Q̄ where the task went on."""
    return td_target(reward, terminated, aggregate_q(q_next, aggregate=aggregate, subset=subset), gamma=gamma, bootstrap=bootstrap)


def followed(q: Rows, aggregate: str) -> list[float]:
    """What the actor climbs."""
    return [row[0] for row in q] if aggregate == "first" else aggregate_q(q, aggregate=aggregate)


def td3_actor_loss(q: Rows, *, scale: float = 1.0, aggregate: str = "first", weight: Sequence[float] | None = None) -> Loss:
    """L = −λ Q₁."""
    value = followed(q, aggregate)
    loss = [-scale * v for v in value]
    return summed(loss, weight, {"actor_loss": loss, "actor_q": value})


def td3_bc_scale(q: Rows, *, alpha: float = 2.5, aggregate: str = "first", weight: Sequence[float] | None = None) -> float:
    """λ = α / mean |Q₁|."""
    size = [abs(v) for i, v in enumerate(followed(q, aggregate)) if weight is None or weight[i] != 0]
    return alpha / mean(size) if mean(size) > 0 else alpha


def td3_bc_actor_loss(
    q: Rows,
    action: Sequence[Any],
    action_data: Sequence[Any],
    *,
    scale: float,
    bc_weight: float = 1.0,
    executed: Sequence[Sequence[bool]] | None = None,
    aggregate: str = "first",
    weight: Sequence[float] | None = None,
) -> Loss:
    """L = −λ Q₁ + β mean (μ − a)²."""
    value = followed(q, aggregate)
    clone: list[float] = []
    for i, (row, data) in enumerate(zip(action, action_data, strict=True)):
        steps = None if executed is None else executed[i]
        clone.append(mean([(a - b) ** 2 for a, b in zip(counted(row, steps), counted(data, steps), strict=True)]))
    loss = [-scale * v + bc_weight * c for v, c in zip(value, clone, strict=True)]
    return summed(loss, weight, {"actor_loss": loss, "actor_q": value, "bc_loss": clone})


def joint_batch(now: Any, after: Any) -> Any:
    """The rows of both, one after the other, leaf by leaf."""
    if isinstance(now, Mapping):
        return {key: joint_batch(now[key], after[key]) for key in now}  # pyright: ignore[reportUnknownVariableType]
    return [*now, *after]


def joint_parts(q_joint: Rows) -> tuple[list[Sequence[float]], list[Sequence[float]]]:
    """The first half of the rows, and the second."""
    half = len(q_joint) // 2
    return list(q_joint[:half]), list(q_joint[half:])


def crossq_critic_loss(
    q_joint: Rows,
    reward: Sequence[float],
    terminated: Sequence[bool],
    logprob_next: Sequence[float],
    *,
    gamma: float | Sequence[float],
    alpha: float,
    aggregate: str = "min",
    backup_entropy: bool = True,
    bootstrap: str = "standard",
    huber_delta: float | None = None,
    weight: Sequence[float] | None = None,
) -> Loss:
    """The first half against a target made of the second."""
    q, q_next = joint_parts(q_joint)
    target = sac_target(
        reward,
        terminated,
        q_next,
        logprob_next,
        gamma=gamma,
        alpha=alpha,
        aggregate=aggregate,
        backup_entropy=backup_entropy,
        bootstrap=bootstrap,
    )
    return critic_loss(q, target, huber_delta=huber_delta, weight=weight)


def polyak(target: Mapping[str, Sequence[float]], online: Mapping[str, Sequence[float]], *, tau: float) -> dict[str, list[float]]:
    """θ̄′ = (1 − τ) θ̄ + τ θ, number by number."""
    return {name: [(1 - tau) * old + tau * new for old, new in zip(target[name], online[name], strict=True)] for name in target}


def update_due(step: int, *, every: int) -> bool:
    """Whether `step` is a multiple of the period."""
    return any(step == every * i for i in range(step + 1))
