"""Preferences between pairs, pair by pair."""

from __future__ import annotations

import math

from rlinf.algorithms.reference.decisions import Summed, summed


def dpo(
    logprob_chosen: list[float],
    logprob_rejected: list[float],
    logprob_ref_chosen: list[float],
    logprob_ref_rejected: list[float],
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    mask: list[bool] | None = None,
) -> Summed:
    """L = −(1 − ε) log σ(h) − ε log σ(−h)."""

    def decide(b: int, _: int) -> dict[str, float]:
        chosen = beta * (logprob_chosen[b] - logprob_ref_chosen[b])
        rejected = beta * (logprob_rejected[b] - logprob_ref_rejected[b])
        h = chosen - rejected
        loss = (1 - label_smoothing) * _softplus(-h) + label_smoothing * _softplus(h)
        rewards = {"reward_chosen": chosen, "reward_rejected": rejected, "reward_margin": h, "reward_accuracy": float(h > 0)}
        return {"loss": loss, "dpo_loss": loss, **rewards}

    return summed([[valid] for valid in mask or [True] * len(logprob_chosen)], decide)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
