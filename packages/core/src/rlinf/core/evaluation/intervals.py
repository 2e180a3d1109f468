"""How sure a rate or a mean of independent episodes is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf.core.errors import RLinfError

_LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A success rate and how sure it is."""

    n: int
    """Episodes or problems; responses to one problem are not independent, so that a problem counts once."""
    successes: float
    """How many were solved; a problem of which half the responses are right counts half."""
    low: float
    """The lower end of the 95 % Wilson interval."""
    high: float

    @property
    def rate(self) -> float:
        """Successes by number; not a number if there are none."""
        return self.successes / self.n if self.n else math.nan

    @classmethod
    def of(cls, outcomes: Iterable[float]) -> Rate:
        """The rate of some outcomes, each from 0 to 1."""
        done = list(outcomes)
        successes = math.fsum(done)
        low, high = wilson_interval(successes, len(done))
        return cls(n=len(done), successes=successes, low=low, high=high)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"n": self.n, "successes": self.successes, "rate": self.rate, "wilson_95": [self.low, self.high]}

    def __str__(self) -> str:
        return f"{self.rate:.1%} [{self.low:.1%}, {self.high:.1%}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean, such as of returns, and how sure it is."""

    n: int
    mean: float
    """Not a number if there are no values."""
    low: float
    """The lower end of Student's 95 % interval; −∞ for fewer than two values, which say nothing of their spread."""
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        """The mean of some values."""
        found = list(values)
        mean = math.fsum(found) / len(found) if found else math.nan
        low, high = t_interval(found)
        return cls(n=len(found), mean=mean, low=low, high=high)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinite numbers: without an interval where there is none."""
        interval = [self.low, self.high] if math.isfinite(self.low) else None
        return {"n": self.n, "mean": self.mean, "t_95": interval}

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]" if math.isfinite(self.low) else f"{self.mean:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much better one policy is than another on the same episodes, and how sure that is."""

    n: int
    """Pairs: episodes or problems."""
    better: int
    """In how many of them it did better."""
    worse: int
    mean: float
    """The mean difference; not a number without pairs."""
    low: float
    """The lower end of the 95 % interval; −∞ where nothing is known of the spread."""
    high: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> Difference:
        """The difference of some pairs, each of its own outcome and that of the other policy.

        Where every outcome is 0 or 1, the interval is that of Agresti and Min, "Simple improved confidence intervals for comparing
        matched proportions" (2005): half a pair is added to each of the four cells of the table, so that it has a width even where
        no pair differs. Else it is Student's, of the differences.
        """
        found = list(pairs)
        gains = [own - other for own, other in found]
        n, better, worse = len(found), sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
        low, high = t_interval(gains)
        if n and all(value in (0.0, 1.0) for pair in found for value in pair):
            # (b + ½) − (c + ½) of n + 2, and its variance; z = 1.96.
            total, gain = n + 2, (better - worse) / (n + 2)
            half = 1.96 * math.sqrt((better + worse + 1) / total - gain**2) / math.sqrt(total)
            low, high = max(-1.0, gain - half), min(1.0, gain + half)
        return cls(n=n, better=better, worse=worse, mean=math.fsum(gains) / n if n else math.nan, low=low, high=high)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinite numbers and no NaN: without what is not known."""
        interval = [self.low, self.high] if math.isfinite(self.low) else None
        mean = self.mean if self.n else None
        return {"n": self.n, "better": self.better, "worse": self.worse, "mean": mean, "interval_95": interval}

    def told(self, *, rate: bool) -> str:
        """In words, as a rate or as a number."""
        unit, scale = ("%", 100.0) if rate else ("", 1.0)
        digits = 1 if rate else 2
        mean, low, high = (f"{value * scale:+.{digits}f}{unit}" for value in (self.mean, self.low, self.high))
        interval = f" [{low}, {high}]" if math.isfinite(self.low) else ""
        return f"{mean}{interval} of {self.n} pairs: better in {self.better}, worse in {self.worse}"


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """The 95 % confidence interval of a success rate; [0, 1] without trials.

    (p̂ + z²/2n ± z √(p̂ (1 − p̂)/n + z²/4n²)) / (1 + z²/n),   p̂ = successes / n,   z = 1.96

    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference" (1927).
    """
    if not 0 <= successes <= n:
        raise RLinfError("wilson_interval", f"expected 0 to {n} successes of {n} trials, found {successes}")
    if n == 0:
        return 0.0, 1.0
    p, z = successes / n, 1.96
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # Rounding may leave the ends a little outside of [0, 1].
    return max(0.0, centre - half), min(1.0, centre + half)


def t_interval(values: Iterable[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the mean of independent values; everything for fewer than two of them.

    m ± t s / √n,   s² = Σ (x − m)² / (n − 1),   t the quantile of Student's distribution with n − 1 degrees of freedom

    Student, "The Probable Error of a Mean" (1908).
    """
    found = list(values)
    n = len(found)
    if n < 2:
        return -math.inf, math.inf
    mean = math.fsum(found) / n
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in found) / (n - 1))
    half = t_quantile(0.5 + _LEVEL / 2, n - 1) * spread / math.sqrt(n)
    return mean - half, mean + half


def t_quantile(p: float, freedom: int) -> float:
    """Below which a share p ≥ ½ of Student's distribution lies.

    With x = √ν tan θ its density is that of cos^(ν − 1) θ on (−π/2, π/2), which is added up.
    """
    # All but 10⁻¹⁵ of the mass lies within 8 standard deviations of 1 / √ν.
    end = min(math.pi / 2, 8.0 / math.sqrt(freedom)) if freedom > 30 else math.pi / 2
    theta = np.linspace(0.0, end, 20_001)
    density = np.cos(theta) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    return math.sqrt(freedom) * math.tan(float(np.interp(2.0 * p - 1.0, mass / mass[-1], theta)))
