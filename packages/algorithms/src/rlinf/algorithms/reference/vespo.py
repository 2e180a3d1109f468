"""A soft weight of whole rows, number by number."""

from __future__ import annotations

import math

from rlinf.algorithms.losses.aggregation import TOKEN_MEAN, Aggregation
from rlinf.algorithms.reference.decisions import Mask, Nested, Rows, Summed, at, decided, summed
from rlinf.algorithms.reference.gspo import mean_log_ratio
from rlinf.algorithms.reference.ppo import clip


def vespo(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    c1_pos: float = 2.0,
    c2_pos: float = 3.0,
    c1_neg: float = 3.0,
    c2_neg: float = 2.0,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = −W^c₁ exp(c₂ (1 − W)) Â log π, with W the product of a row's ratios."""
    columns = decided(mask)

    def decide(b: int, t: int) -> dict[str, float]:
        log = clip(sum(mean_log_ratio(logprob, logprob_old, b, k) for k in columns[b]), -20, 20)
        c1, c2 = (c1_pos, c2_pos) if advantage[b][t] >= 0 else (c1_neg, c2_neg)
        weight = math.exp(log) ** c1 * math.exp(c2 * (1 - math.exp(log)))
        elements = at(logprob, b, t)
        loss = -weight * advantage[b][t] * sum(elements) / len(elements)
        return {"loss": loss, "policy_loss": loss, "sequence_weight": weight, "sequence_log_ratio": log}

    return summed(mask, decide, aggregation)
