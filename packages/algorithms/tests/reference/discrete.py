"""Q-learning of countable actions and distributional critics, on floats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reference.critics import Loss, Rows, aggregate_q, critic_loss, distance, summed, td_target


def double_q_target(
    reward: Sequence[float],
    terminated: Sequence[bool],
    q_next: Rows,
    q_next_selector: Rows,
    *,
    gamma: float | Sequence[float],
    bootstrap: str = "standard",
) -> list[float]:
    """Y = r + γ Q̄(s′, the action that the other network finds best)."""
    chosen = [row[list(other).index(max(other))] for row, other in zip(q_next, q_next_selector, strict=True)]
    return td_target(reward, terminated, chosen, gamma=gamma, bootstrap=bootstrap)


def q_learning_loss(
    q: Rows,
    action: Sequence[int],
    target: Sequence[float],
    *,
    huber_delta: float | None = None,
    weight: Sequence[float] | None = None,
) -> Loss:
    """L = ℓ(Q(s, a) − y)."""
    taken = [[row[int(a)]] for row, a in zip(q, action, strict=True)]
    return critic_loss(taken, target, huber_delta=huber_delta, weight=weight)


def expected_logprob(logprob: Rows) -> list[float]:
    """Σ π log π over actions that are allowed."""
    return [sum(math.exp(lp) * lp for lp in row if lp > -math.inf) for row in logprob]


def expected_q(logprob: Rows, q: Sequence[Rows], aggregate: str) -> list[float]:
    """Σ π agg Q."""
    out: list[float] = []
    for row, critics in zip(logprob, q, strict=True):
        out.append(sum(math.exp(lp) * v for lp, v in zip(row, aggregate_q(critics, aggregate=aggregate), strict=True)))
    return out


def discrete_sac_target(
    reward: Sequence[float],
    terminated: Sequence[bool],
    q_next: Sequence[Rows],
    logprob_next: Rows,
    *,
    gamma: float | Sequence[float],
    alpha: float,
    aggregate: str = "min",
    backup_entropy: bool = True,
    bootstrap: str = "standard",
) -> list[float]:
    """Y = r + γ Σ π (agg Q̄ − α log π) where the task went on."""
    value = expected_q(logprob_next, q_next, aggregate)
    if backup_entropy:
        value = [v - alpha * lp for v, lp in zip(value, expected_logprob(logprob_next), strict=True)]
    return td_target(reward, terminated, value, gamma=gamma, bootstrap=bootstrap)


def discrete_sac_actor_loss(
    logprob: Rows, q: Sequence[Rows], *, alpha: float, aggregate: str = "min", weight: Sequence[float] | None = None
) -> Loss:
    """L = Σ π (α log π − agg Q)."""
    value, known = expected_q(logprob, q, aggregate), expected_logprob(logprob)
    loss = [alpha * lp - v for lp, v in zip(known, value, strict=True)]
    return summed(loss, weight, {"actor_loss": loss, "entropy": [-lp for lp in known], "actor_q": value})


def categorical_projection(position: Rows, prob: Rows, atoms: Sequence[float]) -> list[list[float]]:
    """Each mass goes to the atoms on its left and right, more to the nearer."""
    out: list[list[float]] = []
    for xs, ps in zip(position, prob, strict=True):
        mass = [0.0] * len(atoms)
        for x, p in zip(xs, ps, strict=True):
            if x <= atoms[0]:
                mass[0] += p
            elif x >= atoms[-1]:
                mass[-1] += p
            else:
                left = max(i for i, z in enumerate(atoms) if z <= x)
                part = (x - atoms[left]) / (atoms[left + 1] - atoms[left])
                mass[left] += p * (1 - part)
                mass[left + 1] += p * part
        out.append(mass)
    return out


def categorical_target(
    reward: Sequence[float],
    terminated: Sequence[bool],
    prob_next: Rows,
    atoms: Sequence[float],
    *,
    gamma: float | Sequence[float],
) -> list[list[float]]:
    """The projection of r + γ z, or of r where the task ended."""
    position: list[list[float]] = []
    for i, r in enumerate(reward):
        discount = gamma if isinstance(gamma, int | float) else gamma[i]
        position.append([r if terminated[i] else r + discount * z for z in atoms])
    return categorical_projection(position, prob_next, atoms)


def categorical_loss(logit: Rows, target: Rows, *, weight: Sequence[float] | None = None) -> Loss:
    """L = −Σ m log softmax x."""
    loss: list[float] = []
    for xs, ms in zip(logit, target, strict=True):
        normaliser = sum(math.exp(x) for x in xs)
        loss.append(-sum(m * math.log(math.exp(x) / normaliser) for x, m in zip(xs, ms, strict=True)))
    return summed(loss, weight, {"critic_loss": loss})


def quantile_huber_loss(
    quantile: Rows,
    target: Rows,
    *,
    kappa: float = 1.0,
    tau: Rows | None = None,
    weight: Sequence[float] | None = None,
) -> Loss:
    """L = Σᵢ mean over j of |τᵢ − 1(u < 0)| ℓ(u)."""
    loss: list[float] = []
    for b, (thetas, ys) in enumerate(zip(quantile, target, strict=True)):
        total = 0.0
        for i, theta in enumerate(thetas):
            level = (2 * i + 1) / (2 * len(thetas)) if tau is None else tau[b][i]
            for y in ys:
                size = distance(y - theta, kappa) if kappa > 0 else abs(y - theta)
                total += (level if y >= theta else 1 - level) * size / len(ys)
        loss.append(total)
    means = [sum(row) / len(row) for row in quantile], [sum(row) / len(row) for row in target]
    return summed(loss, weight, {"critic_loss": loss, "q": means[0], "target": means[1]})
