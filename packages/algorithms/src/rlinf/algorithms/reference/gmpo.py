"""The geometric mean of clipped ratios, number by number."""

from __future__ import annotations

import math

from rlinf.algorithms.losses.aggregation import Aggregation
from rlinf.algorithms.reference.decisions import Mask, Nested, Rows, Summed, at, average, decided, summed
from rlinf.algorithms.reference.ppo import clip, observed_ratio


def gmpo(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    clip_log_ratio_low: float = 0.4,
    clip_log_ratio_high: float = 0.4,
    aggregation: Aggregation | None = None,
) -> Summed:
    """L = −Â exp(mean over the row of pessimistically clipped log-ratios)."""
    columns = decided(mask)

    def logs(b: int, t: int) -> list[float]:
        return [new - old for new, old in zip(at(logprob, b, t), at(logprob_old, b, t), strict=True)]

    def kept(b: int, t: int) -> list[float]:
        good = advantage[b][t] > 0
        return [min(log, clip_log_ratio_high) if good else max(log, -clip_log_ratio_low) for log in logs(b, t)]

    def decide(b: int, t: int) -> dict[str, float]:
        row = [sum(kept(b, k)) / len(kept(b, k)) for k in columns[b]]
        loss = -advantage[b][t] * math.exp(clip(sum(row) / len(row), -20, 20))
        lost = [float(one != two and advantage[b][t] != 0) for one, two in zip(logs(b, t), kept(b, t), strict=True)]
        near = [clip(log, -20, 20) for log in logs(b, t)]
        observed = [{"clip_fraction": share, **observed_ratio(log)} for share, log in zip(lost, near, strict=True)]
        return {"loss": loss, "policy_loss": loss, **average(observed)}

    return summed(mask, decide, aggregation or Aggregation("seq-mean-token-mean"))
