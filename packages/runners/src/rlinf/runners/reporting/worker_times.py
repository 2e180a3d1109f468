"""What the workers' own timers say of an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf.core.protocols import WorkerGroup


def slowest_times(groups: Sequence[WorkerGroup[Any]], results: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """`time/<group>/<timer>`, the seconds of the slowest rank.

    Args:
        groups: the groups.
        results: of each group, what `pop_execution_times` returned on each rank.
    """
    slowest: dict[str, float] = {}
    for group, per_rank in zip(groups, results, strict=True):
        for times in per_rank:
            for timer, seconds in times.items():
                name = f"time/{group.name}/{timer}"
                slowest[name] = max(seconds, slowest.get(name, 0.0))
    return slowest
