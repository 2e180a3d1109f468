"""GRPO for pass@k, one group at a time."""

from __future__ import annotations

import math
from fractions import Fraction

from rlinf.algorithms.reference.group import counts
from rlinf.algorithms.reference.masked import variance


def grpo_passk(
    score: list[float],
    group: list[int],
    *,
    valid: list[bool] | None = None,
    scale: str = "group",
    unbiased: bool = True,
    eps: float = 1e-6,
) -> list[float]:
    """What the maximum of the group would lose without the best row, over the deviation + ε; 0 for every other row."""
    everyone = [s for i, s in enumerate(score) if counts(valid, i)]
    found = [0.0 for _ in score]
    for name in set(group):
        rows = [i for i in range(len(score)) if group[i] == name and counts(valid, i)]
        if len(rows) < 2:
            continue
        best = max(rows, key=lambda i: score[i])
        gain = float(Fraction(score[best]) - max(Fraction(score[i]) for i in rows if i != best))
        compared = {"group": [score[i] for i in rows], "batch": everyone}.get(scale)
        if compared is not None and gain != 0:
            gain /= math.sqrt(variance(compared, unbiased=unbiased)) + eps
        found[best] = gain
    return found
