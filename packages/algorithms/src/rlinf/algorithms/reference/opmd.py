"""Online policy mirror descent, number by number."""

from __future__ import annotations

from rlinf.algorithms.losses.aggregation import TOKEN_MEAN, Aggregation
from rlinf.algorithms.reference.decisions import Mask, Nested, Rows, Summed, at, summed


def opmd(logprob: Nested, advantage: Rows, mask: Mask, *, tau: float = 1.0, aggregation: Aggregation = TOKEN_MEAN) -> Summed:
    """L = −Â log π / (1 + τ)."""

    def decide(b: int, t: int) -> dict[str, float]:
        elements = at(logprob, b, t)
        loss = -advantage[b][t] * sum(elements) / len(elements) / (1 + tau)
        return {"loss": loss, "policy_loss": loss}

    return summed(mask, decide, aggregation)
