"""Log-probabilities and entropies of tokens, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

Rows = list[list[float]]
"""`[B, T]`."""


def log_softmax(
    logits: list[float], temperature: float = 1.0, top_k: int | None = None, allowed: Sequence[int] | None = None
) -> list[float]:
    """Each log π(v) = z_v − log Σ exp z of one distribution; −∞ for what is not allowed or not among the top k."""
    permitted = range(len(logits)) if allowed is None else allowed
    bar = -math.inf if top_k is None else sorted((logits[v] for v in permitted), reverse=True)[: min(top_k, len(permitted))][-1]
    z = [x / temperature if v in permitted and x >= bar else -math.inf for v, x in enumerate(logits)]
    largest = max(z)
    normaliser = largest + math.log(sum(math.exp(x - largest) for x in z))
    return [x - normaliser for x in z]


def logprob_from_logits(
    logits: list[Rows],
    tokens: list[list[int]],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    allowed: Sequence[int] | None = None,
) -> Rows:
    """The log-probability of each token."""
    return [
        [log_softmax(z, temperature, top_k, allowed)[a] for z, a in zip(row, chosen, strict=True)]
        for row, chosen in zip(logits, tokens, strict=True)
    ]


def entropy_from_logits(
    logits: list[Rows], *, temperature: float = 1.0, top_k: int | None = None, allowed: Sequence[int] | None = None
) -> Rows:
    """H = −Σ π log π of each distribution, over tokens that are possible."""
    return [
        [-sum(math.exp(p) * p for p in log_softmax(z, temperature, top_k, allowed) if p > -math.inf) for z in row] for row in logits
    ]


def logprob_and_entropy_from_logits(
    logits: list[Rows],
    tokens: list[list[int]],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    allowed: Sequence[int] | None = None,
) -> tuple[Rows, Rows]:
    """Both."""
    return (
        logprob_from_logits(logits, tokens, temperature=temperature, top_k=top_k, allowed=allowed),
        entropy_from_logits(logits, temperature=temperature, top_k=top_k, allowed=allowed),
    )


def last_layer(hidden: list[Rows], weight: Rows, bias: list[float] | None) -> list[Rows]:
    """The logits W h + b."""
    offsets = [0.0] * len(weight) if bias is None else bias
    return [
        [[sum(w * x for w, x in zip(row, h, strict=True)) + b for row, b in zip(weight, offsets, strict=True)] for h in sample]
        for sample in hidden
    ]


def logprob_from_hidden(
    hidden: list[Rows],
    weight: Rows,
    tokens: list[list[int]],
    *,
    bias: list[float] | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Rows:
    """The log-probability of each token under the logits W h + b."""
    return logprob_from_logits(last_layer(hidden, weight, bias), tokens, temperature=temperature, top_k=top_k)
