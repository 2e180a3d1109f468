"""A surrogate that saturates, number by number."""

from __future__ import annotations

import math

from rlinf.algorithms.losses.aggregation import Aggregation
from rlinf.algorithms.reference.decisions import Mask, Nested, Rows, Summed, at, average, decided, summed
from rlinf.algorithms.reference.gspo import mean_log_ratio
from rlinf.algorithms.reference.ppo import clip, observed_ratio


def sapo(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    sequence_level: bool = False,
    aggregation: Aggregation | None = None,
) -> Summed:
    """L = −4/τ σ(τ (ρ − 1)) Â, with the geometric mean of a row's ratios for ρ if `sequence_level`."""
    columns = decided(mask)

    def decide(b: int, t: int) -> dict[str, float]:
        tau = tau_pos if advantage[b][t] > 0 else tau_neg
        parts: list[dict[str, float]] = []
        logs = [new - old for new, old in zip(at(logprob, b, t), at(logprob_old, b, t), strict=True)]
        if sequence_level:
            logs = [sum(mean_log_ratio(logprob, logprob_old, b, k) for k in columns[b]) / len(columns[b])]
        for log in (clip(x, -20, 20) for x in logs):
            gate = _sigmoid(tau * (math.exp(log) - 1))
            loss = -4 / tau * gate * advantage[b][t]
            parts.append({"loss": loss, "policy_loss": loss, "gate": 4 * gate * (1 - gate), **observed_ratio(log)})
        return average(parts)

    return summed(mask, decide, aggregation or Aggregation("seq-mean-token-mean"))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
