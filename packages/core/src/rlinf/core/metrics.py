"""Metrics as sums, so that merging micro-batches, ranks and steps never averages averages."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

S = TypeVar("S", bound="Statistic")


@dataclass(frozen=True, slots=True)
class Statistic(ABC):
    """Numbers that add up over micro-batches and ranks, and what is read from their totals; every field is such a number."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """What is logged; NaN when nothing was observed."""

    @property
    def parts(self) -> tuple[float, ...]:
        """The numbers, in the order of the fields; `type(statistic)(*parts)` makes a statistic of them again."""
        # Not `astuple`, which copies each number: metrics are added for every micro-batch.
        return tuple([getattr(self, name) for name in _field_names(type(self))])

    def __add__(self: S, other: S) -> S:
        if type(self) is not type(other):
            raise TypeError(f"{type(self).__name__} and {type(other).__name__} can't be added: one name, one kind of statistic")
        return type(self)(*(a + b for a, b in zip(self.parts, other.parts, strict=True)))


@dataclass(frozen=True, slots=True)
class Metric(Statistic):
    """A weighted mean."""

    sum: float
    """The sum of weighted values."""
    weight: float = 1.0
    """The sum of weights; 0 means that nothing was observed."""

    @property
    def mean(self) -> float:
        """The weighted mean; NaN when nothing was observed."""
        return self.sum / self.weight if self.weight else float("nan")


@dataclass(frozen=True, slots=True)
class ExplainedVariance(Statistic):
    """The share of a target's variance that a prediction explains: 1 − Var(error) / Var(target), of the population."""

    weight: float
    """How many pairs there are."""
    error: float
    """Σ (target − prediction)."""
    error_square: float
    """Σ (target − prediction)²."""
    target: float
    """Σ target."""
    target_square: float
    """Σ target²."""

    @property
    def mean(self) -> float:
        """The share; NaN when nothing was observed or the target never varies."""
        if not self.weight:
            return float("nan")
        variance = self.target_square - self.target**2 / self.weight
        # A difference of two sums that are so much larger is rounding only.
        if variance <= 1e-12 * self.target_square:
            return float("nan")
        return 1.0 - (self.error_square - self.error**2 / self.weight) / variance


@cache
def _field_names(kind: type[Statistic]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


Metrics = Mapping[str, Statistic]


def merge(parts: Iterable[Mapping[str, S]]) -> dict[str, S]:
    """Adds metrics by name, in order of first appearance."""
    total: dict[str, S] = {}
    for part in parts:
        for name, metric in part.items():
            total[name] = total[name] + metric if name in total else metric
    return total


def means(metrics: Metrics, prefix: str = "") -> dict[str, float]:
    """What is logged of each metric, its name prefixed."""
    return {f"{prefix}{name}": metric.mean for name, metric in metrics.items()}
