"""Metrics as sums and weights, so that merging micro-batches, ranks and steps never averages averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """A weighted mean that can still be merged."""

    sum: float
    """The sum of weighted values."""
    weight: float = 1.0
    """The sum of weights; 0 means that nothing was observed."""

    def __add__(self, other: Metric) -> Metric:
        return Metric(self.sum + other.sum, self.weight + other.weight)

    @property
    def mean(self) -> float:
        """The weighted mean; NaN when nothing was observed."""
        return self.sum / self.weight if self.weight else float("nan")


Metrics = Mapping[str, Metric]


def merge(parts: Iterable[Metrics]) -> dict[str, Metric]:
    """Adds metrics by name, in order of first appearance."""
    total: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            total[name] = total[name] + metric if name in total else metric
    return total


def means(metrics: Metrics, prefix: str = "") -> dict[str, float]:
    """The mean of each metric, its name prefixed."""
    return {f"{prefix}{name}": metric.mean for name, metric in metrics.items()}
