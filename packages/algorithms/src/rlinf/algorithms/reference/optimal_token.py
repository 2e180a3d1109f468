"""The optimal token baseline, one token at a time."""

from __future__ import annotations

import math

from rlinf.algorithms.reference.returns import discounted_returns


def optimal_token_baseline(
    reward: list[list[float]],
    mask: list[list[bool]],
    group: list[int],
    logprob: list[list[float]],
    sum_pi_squared: list[list[float]],
    *,
    gamma: float = 1.0,
    handle_zero_tail: bool = True,
    eps: float = 1e-8,
) -> list[list[float]]:
    """Gᵢₜ − Σⱼ Wⱼₜ Gⱼₜ / (Σⱼ Wⱼₜ + ε) over the rows j of the group that are at work in column t."""
    never = [[False for _ in row] for row in reward]
    returns = discounted_returns(reward, never, never, gamma=gamma, mask=mask)
    found = [[0.0 for _ in row] for row in reward]
    for i, row in enumerate(reward):
        for t in range(len(row)):
            rows = [j for j in range(len(reward)) if group[j] == group[i] and mask[j][t]]
            if not mask[i][t]:
                continue
            weight = {j: sum(_energy(logprob[j][k], sum_pi_squared[j][k]) for k in range(t + 1) if mask[j][k]) for j in rows}
            baseline = sum(weight[j] * returns[j][t] for j in rows) / (sum(weight.values()) + eps)
            found[i][t] = returns[i][t] - (0.0 if handle_zero_tail and len(rows) == 1 else baseline)
    return found


def _energy(logprob: float, sum_pi_squared: float) -> float:
    return max(0.0, 1.0 - 2.0 * math.exp(logprob) + sum_pi_squared)
