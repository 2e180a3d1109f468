"""Imitation, on floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference.critics import Loss, counted, mean, summed


def rows_that_count(rows: int, executed: Sequence[Sequence[bool]] | None, weight: Sequence[float] | None) -> list[float]:
    """The weight of each row; 0 of a row in which no step counts."""
    w = [1.0] * rows if weight is None else list(weight)
    return w if executed is None else [x if any(steps) else 0.0 for x, steps in zip(w, executed, strict=True)]


def bc_loss(logprob: Sequence[Any], *, executed: Sequence[Sequence[bool]] | None = None, weight: Any = None) -> Loss:
    """L = −mean of log π over the elements that count."""
    loss = [-mean(counted(row, None if executed is None else executed[i])) for i, row in enumerate(logprob)]
    return summed(loss, rows_that_count(len(loss), executed, weight), {"bc_loss": loss})


def action_loss(
    action: Sequence[Any],
    action_data: Sequence[Any],
    *,
    norm: str = "l2",
    executed: Sequence[Sequence[bool]] | None = None,
    weight: Any = None,
) -> Loss:
    """L = mean of the square, or of the absolute value, of what differs."""
    loss: list[float] = []
    for i, (row, data) in enumerate(zip(action, action_data, strict=True)):
        steps = None if executed is None else executed[i]
        pairs = zip(counted(row, steps), counted(data, steps), strict=True)
        loss.append(mean([(a - b) ** 2 if norm == "l2" else abs(a - b) for a, b in pairs]))
    return summed(loss, rows_that_count(len(loss), executed, weight), {"bc_loss": loss})


def linear_weight(update: int, *, initial: float, final: float | None, updates: int) -> float:
    """From the first number to the last one in equal steps; the first one stays where there is no last one."""
    if final is None:
        return initial
    return final if update >= updates else initial + update * (final - initial) / updates


def reference_dropout(rows: Sequence[Any], *, prob: float, draw: Sequence[float]) -> list[bool]:
    """Where the number drawn is below p."""
    return [u < prob for _, u in zip(rows, draw, strict=True)]
