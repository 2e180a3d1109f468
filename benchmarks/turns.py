"""Several ways to do one thing, measured in turns, so that a busy machine disturbs all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from torch import Tensor


def expect_same(ways: Mapping[str, Callable[[], Tensor]], tolerance: float) -> None:
    """Runs each way once.

    Raises:
        RuntimeError: one of them finds something else than the first.
    """
    found = {name: way() for name, way in ways.items()}
    first = next(iter(found.values()))
    for name, tensor in found.items():
        if (tensor - first).abs().max() > tolerance:
            raise RuntimeError(f"'{name}' finds something else")


def timed(
    ways: Mapping[str, Callable[[], object]], repeats: int, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each way, each time."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            started = clock()
            way()
            seconds[name].append(clock() - started)
    return seconds


def medians(
    ways: Mapping[str, Callable[[], object]], repeats: int, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds of each way."""
    return {name: statistics.median(taken) for name, taken in timed(ways, repeats, clock=clock).items()}
