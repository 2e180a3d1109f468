"""One ratio for a row, number by number."""

from __future__ import annotations

import math

from rlinf.algorithms.losses.aggregation import Aggregation
from rlinf.algorithms.reference.decisions import Mask, Nested, Rows, Summed, at, decided, summed
from rlinf.algorithms.reference.ppo import clip, observed_ratio, surrogate


def gspo(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
    token_level: bool = False,
    aggregation: Aggregation | None = None,
) -> Summed:
    """One ratio, s = exp(mean log-ratio of the row, within ±20), clipped as in PPO; `token_level` changes gradients alone."""
    columns = decided(mask)

    def decide(b: int, t: int) -> dict[str, float]:
        log = clip(sum(mean_log_ratio(logprob, logprob_old, b, k) for k in columns[b]) / len(columns[b]), -20, 20)
        found = surrogate(math.exp(log), advantage[b][t], clip_ratio_low, clip_ratio_high, clip_ratio_c)
        return {**found, **observed_ratio(log)}

    return summed(mask, decide, aggregation or Aggregation("seq-mean-token-mean"))


def mean_log_ratio(logprob: Nested, logprob_old: Nested, b: int, t: int) -> float:
    """The mean over a decision's elements of log π − log π_old."""
    pairs = list(zip(at(logprob, b, t), at(logprob_old, b, t), strict=True))
    return sum(new - old for new, old in pairs) / len(pairs)
