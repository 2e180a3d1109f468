"""Learning from stored data, on floats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reference.critics import Loss, aggregate_q, distance, summed


def expectile_loss(error: Sequence[float], *, expectile: float) -> list[float]:
    """τ u² for a positive u, (1 − τ) u² for a negative one."""
    return [(expectile if u > 0 else 1 - expectile) * u * u for u in error]


def iql_value_loss(
    value: Sequence[float],
    q: Sequence[Sequence[float]],
    *,
    expectile: float = 0.7,
    aggregate: str = "min",
    weight: Sequence[float] | None = None,
) -> Loss:
    """L = the expectile's loss of agg Q̄ − V."""
    error = [a - v for a, v in zip(aggregate_q(q, aggregate=aggregate), value, strict=True)]
    loss = expectile_loss(error, expectile=expectile)
    return summed(loss, weight, {"value_loss": loss, "value": list(value), "advantage": error})


def iql_actor_loss(
    logprob: Sequence[float],
    value: Sequence[float],
    q: Sequence[Sequence[float]],
    *,
    beta: float = 3.0,
    max_weight: float = 100.0,
    aggregate: str = "min",
    weight: Sequence[float] | None = None,
) -> Loss:
    """L = −min(exp(β A), c) log π."""
    advantage = [a - v for a, v in zip(aggregate_q(q, aggregate=aggregate), value, strict=True)]
    factor = [min(math.exp(beta * a), max_weight) for a in advantage]
    loss = [-f * lp for f, lp in zip(factor, logprob, strict=True)]
    clipped = [1.0 if math.exp(beta * a) >= max_weight else 0.0 for a in advantage]
    observed = {"actor_loss": loss, "advantage": advantage, "advantage_weight": factor, "advantage_clip_fraction": clipped}
    return summed(loss, weight, observed)


def uniform_log_density(low: Sequence[float], high: Sequence[float]) -> float:
    """One over the volume of the box, as a logarithm."""
    volume = 1.0
    for a, b in zip(low, high, strict=True):
        volume *= b - a
    return math.log(1 / volume)


def cql_penalty(
    q: Sequence[Sequence[float]],
    q_samples: Sequence[Sequence[Sequence[float]]],
    log_density: Sequence[Sequence[float]],
    *,
    temperature: float = 1.0,
    floor: Sequence[Sequence[float]] | None = None,
) -> list[list[float]]:
    """P = τ log mean exp((Q(aₛ) − log μ) / τ) − Q(a), for each row and critic."""
    out: list[list[float]] = []
    for i, row in enumerate(q):
        penalties: list[float] = []
        for n, q_data in enumerate(row):
            terms: list[float] = []
            for s, sample in enumerate(q_samples[i]):
                value = sample[n] if floor is None else max(sample[n], floor[i][s])
                terms.append(math.exp((value - log_density[i][s]) / temperature))
            penalties.append(temperature * math.log(sum(terms) / len(terms)) - q_data)
        out.append(penalties)
    return out


def cql_critic_loss(
    q: Sequence[Sequence[float]],
    target: Sequence[float],
    penalty: Sequence[Sequence[float]],
    *,
    alpha: float,
    gap: float = 0.0,
    huber_delta: float | None = None,
    weight: Sequence[float] | None = None,
) -> Loss:
    """L = Σₙ (½ (Qₙ − y)² + α (pₙ − g))."""
    bellman = [sum(distance(qn - y, huber_delta) for qn in row) for row, y in zip(q, target, strict=True)]
    loss = [b + sum(alpha * (p - gap) for p in row) for b, row in zip(bellman, penalty, strict=True)]
    observed = {
        "critic_loss": bellman,
        "cql_penalty": [sum(row) / len(row) for row in penalty],
        "q": [sum(row) / len(row) for row in q],
        "target": list(target),
        "td_error": [sum(abs(qn - y) for qn in row) / len(row) for row, y in zip(q, target, strict=True)],
    }
    return summed(loss, weight, observed)


def cql_alpha_loss(alpha: float, penalty: Sequence[Sequence[float]], *, gap: float, weight: Sequence[float] | None = None) -> Loss:
    """L = −α (mean p − g)."""
    loss = [-alpha * (sum(row) / len(row) - gap) for row in penalty]
    return summed(loss, weight, {"cql_alpha_loss": loss, "cql_alpha": [alpha] * len(loss)})


def cql_discrete_penalty(q_all: Sequence[Sequence[Sequence[float]]], action: Sequence[int]) -> list[list[float]]:
    """P = log Σₐ exp Q(a) − Q(a_data), for each row and critic."""
    out: list[list[float]] = []
    for actions, chosen in zip(q_all, action, strict=True):
        critics = range(len(actions[0]))
        out.append([math.log(sum(math.exp(a[n]) for a in actions)) - actions[chosen][n] for n in critics])
    return out


def awr_weights(advantage: Sequence[float], *, beta: float, max_weight: float = 20.0) -> list[float]:
    """W = min(exp(β A), c)."""
    return [min(math.exp(beta * a), max_weight) for a in advantage]


def awac_weights(advantage: Sequence[float], *, beta: float, mask: Sequence[bool] | None = None) -> list[float]:
    """W = n exp(β A) / Σ exp(β A)."""
    known = [a for i, a in enumerate(advantage) if mask is None or mask[i]]
    normaliser = sum(math.exp(beta * a) for a in known)
    return [len(known) * math.exp(beta * a) / normaliser if mask is None or mask[i] else 0.0 for i, a in enumerate(advantage)]


def weighted_bc_loss(logprob: Sequence[float], factor: Sequence[float], *, weight: Sequence[float] | None = None) -> Loss:
    """L = −w log π."""
    loss = [-f * lp for f, lp in zip(factor, logprob, strict=True)]
    return summed(loss, weight, {"actor_loss": loss, "advantage_weight": list(factor)})


def advantage_threshold(advantage: Sequence[float], *, positive_fraction: float = 0.3, mask: Sequence[bool] | None = None) -> float:
    """The quantile between the two neighbours of its position."""
    known = sorted(a for i, a in enumerate(advantage) if mask is None or mask[i])
    position = (1 - positive_fraction) * (len(known) - 1)
    below = min(int(position + 1e-9), len(known) - 1)
    above = min(below + 1, len(known) - 1)
    part = max(position - below, 0.0)
    return known[below] * (1 - part) + known[above] * part


def advantage_labels(
    advantage: Sequence[float],
    *,
    threshold: float,
    strict: bool = False,
    forced: Sequence[bool] | None = None,
    mask: Sequence[bool] | None = None,
) -> list[bool]:
    """Whether each advantage reaches, or exceeds, the threshold."""
    out: list[bool] = []
    for i, a in enumerate(advantage):
        good = a > threshold or (a == threshold and not strict) or (forced is not None and forced[i])
        out.append(good and (mask is None or mask[i]))
    return out


def worst_of_ensemble(advantage: Sequence[Sequence[float]]) -> list[float]:
    """The smallest of what critics say, of each decision."""
    return [min(of_one) for of_one in zip(*advantage, strict=True)]


def lookahead_advantages(reward: Sequence[float], value: Sequence[float], *, steps: int) -> list[float]:
    """What the next N steps earn, and the value after them, less the value before them; nothing is behind the end."""
    known = [*value, *[0.0] * steps]
    return [sum(reward[t : t + steps]) + known[t + steps] - v for t, v in enumerate(value)]
