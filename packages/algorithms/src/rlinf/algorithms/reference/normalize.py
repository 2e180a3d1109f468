"""Normalised advantages, one decision at a time."""

from __future__ import annotations

from rlinf.algorithms.reference.moments import moments


def normalize_advantages(
    advantage: list[list[float]],
    mask: list[list[bool]],
    *,
    over: str = "batch",
    group: list[int] | None = None,
    unbiased: bool = False,
    eps: float = 1e-8,
) -> list[list[float]]:
    """(Â − μ) / (σ + ε) over the rows that are compared: all of them, or those of the group; 0 where masked."""
    found = [[0.0 for _ in row] for row in advantage]
    for b, row in enumerate(advantage):
        compared = [i for i in range(len(advantage)) if over == "batch" or (group is not None and group[i] == group[b])]
        mean, deviation = moments([advantage[i] for i in compared], [mask[i] for i in compared], unbiased=unbiased)
        for t, value in enumerate(row):
            if mask[b][t]:
                found[b][t] = value if over == "none" else (value - mean) / (deviation + eps)
    return found
