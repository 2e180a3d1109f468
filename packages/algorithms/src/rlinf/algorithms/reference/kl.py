"""Divergences, one number at a time."""

from __future__ import annotations

import math
from typing import Any

from rlinf.algorithms.reference.terms import aggregate, leaves, per_decision


def kl_penalty(logprob: Any, logprob_ref: Any, kind: str) -> Any:
    """An estimate of KL(π ‖ π_ref) for each pair of numbers; a `+` changes the gradient alone."""
    if isinstance(logprob, list):
        return [kl_penalty(p, q, kind) for p, q in zip(logprob, logprob_ref, strict=True)]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    kind = kind.rstrip("+")
    ratio_log = logprob_ref - logprob
    if kind in ("k1", "kl"):
        return logprob - logprob_ref
    if kind == "abs":
        return abs(logprob - logprob_ref)
    if kind in ("k2", "mse"):
        return (logprob - logprob_ref) ** 2 / 2
    if kind == "k3":
        return math.exp(ratio_log) - 1 - ratio_log
    if kind == "low_var_kl":
        near = max(-20.0, min(20.0, ratio_log))
        return max(-10.0, min(10.0, math.exp(near) - 1 - near))
    raise ValueError(kind)


def kl_loss(
    logprob: list[list[Any]],
    logprob_ref: list[list[Any]],
    mask: list[list[bool]],
    kind: str = "k3",
    mode: str = "token-mean",
    length: int | None = None,
) -> tuple[float, float]:
    """The sum of the estimates and its weight; a reference without elements is compared with the sum over elements."""
    loss: list[list[float]] = []
    for row, row_ref, valid in zip(logprob, logprob_ref, mask, strict=True):
        found: list[float] = []
        for decision, reference, counts in zip(row, row_ref, valid, strict=True):
            if not counts:
                found.append(0.0)
            elif isinstance(reference, list):
                found.append(per_decision([[kl_penalty(decision, reference, kind)]])[0][0])
            else:
                found.append(kl_penalty(sum(leaves(decision)), reference, kind))
        loss.append(found)
    return aggregate(loss, mask, mode, length)


def reward_with_kl(
    reward: list[list[float]],
    logprob: list[list[float]],
    logprob_ref: list[list[float]],
    mask: list[list[bool]],
    beta: float,
    kind: str = "k1",
) -> list[list[float]]:
    """The reward minus β times the estimate, where something was decided."""
    result = [list(row) for row in reward]
    for b, row in enumerate(mask):
        for t, valid in enumerate(row):
            if valid:
                result[b][t] -= beta * kl_penalty(logprob[b][t], logprob_ref[b][t], kind)
    return result


def kl_categorical(logits: list[float], logits_ref: list[float]) -> float:
    """The sum over choices of p log(p / q)."""
    p, q = _softmax(logits), _softmax(logits_ref)
    total = 0.0
    for p_v, q_v in zip(p, q, strict=True):
        if p_v > 0:
            total += p_v * math.log(p_v / q_v) if q_v > 0 else math.inf
    return total


def _softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    return [power / sum(powers) for power in powers]


def kl_gaussian(mean: float, std: float, mean_ref: float, std_ref: float) -> float:
    """The divergence of two normal distributions of one dimension."""
    return math.log(std_ref / std) + (std**2 + (mean - mean_ref) ** 2) / (2 * std_ref**2) - 0.5


def adaptive_kl(beta: float, target: float, horizon: float, kl: float, episodes: int) -> float:
    """β after one batch of Ziegler's controller."""
    error = kl / target - 1
    if error > 0.2:
        error = 0.2
    if error < -0.2:
        error = -0.2
    return max(0.0, beta + beta * error * episodes / horizon)
