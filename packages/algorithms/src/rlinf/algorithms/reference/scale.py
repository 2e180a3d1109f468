"""Scales of losses, unit by unit."""

from __future__ import annotations


def loss_scale(unit: list[int], mask: list[list[bool]]) -> list[float]:
    """(N / U) / n_u for each row; 0 for a unit without decisions."""
    decisions = dict.fromkeys(unit, 0)
    for name, row in zip(unit, mask, strict=True):
        decisions[name] += sum(row)
    counted = [n for n in decisions.values() if n]
    return [sum(counted) / len(counted) / decisions[name] if decisions[name] else 0.0 for name in unit]
