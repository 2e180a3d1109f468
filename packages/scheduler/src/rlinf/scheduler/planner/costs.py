"""What a component costs: a straight line through what was measured, and how far it can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError

SURE = 1.96
"""Standard errors on either side that hold 95 % of a normal distribution."""
ROUNDING = 1e-9
"""Of the mean call; what is less away from the line is on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """Seconds of one call on n items by one process: fixed_s + item_s · n.

    Of items with lengths Lᵢ, relative to their mean, that are generated together: fixed_s · max Lᵢ + item_s · Σ Lᵢ. This is the
    time of a batch in which every decoding step costs the same for each sequence that goes on, plus something for the step itself.
    """

    fixed_s: float = 0.0
    """Seconds of a call whatever its size."""
    item_s: float = 0.0
    """Seconds of each item."""
    spread: float = 0.0
    """The standard deviation of measured calls around the line, as a share of what it predicts."""
    error: float = 0.0
    """Half the width of the 95 % confidence interval of a call as large as those measured, as a share of what is predicted."""
    samples: int = 0
    """Calls that were measured; 0 for a cost written by hand."""
    sizes: int = 0
    """Different numbers of items among them; with one of them, fixed_s is unknown, and taken as 0."""
    off_line: tuple[tuple[float, float], ...] = ()
    """Numbers of items that were measured, ascending, and by how many seconds the measurement is above the line there."""
    measured: tuple[float, ...] = ()
    """The least and the most items of a call that was measured; () for a cost written by hand."""

    def __post_init__(self) -> None:
        for name in ("fixed_s", "item_s", "spread", "error"):
            expect_range(name, getattr(self, name), 0.0, open_high=True)

    def seconds(self, items: float) -> float:
        """Of a call on `items` items; of as many as were measured, what was measured."""
        return max(0.0, self.fixed_s + self.item_s * items + self._off_line(items))

    @property
    def least_s(self) -> float:
        """Seconds below which no call is, whatever its size."""
        return max(0.0, self.fixed_s + min((seconds for _, seconds in self.off_line), default=0.0))

    def least_of(self, items: float, calls: float) -> float:
        """Seconds below which so many items are not done, in so many calls or more of whatever sizes."""
        base = self.fixed_s + min((seconds for _, seconds in self.off_line), default=0.0)
        if base >= 0:
            return base * calls + self.item_s * items
        # Further calls may cost less than nothing by the line: what an item takes at least, by the best size there is. Between two
        # measurements that is in between, too.
        measured = [self.seconds(size) / size for size, _ in self.off_line if size > 0]
        at_once = 0.0 if self.fixed_s + self.off_line[0][1] < 0 else self.item_s
        return items * min(self.item_s, at_once, *measured)

    def _off_line(self, items: float) -> float:
        if not self.off_line:
            return 0.0
        sizes, seconds = zip(*self.off_line, strict=True)
        return float(np.interp(items, sizes, seconds))

    def scaled(self, factor: float) -> LinearCost:
        """The same, `factor` times as slow."""
        off_line = tuple((items, seconds * factor) for items, seconds in self.off_line)
        return replace(self, fixed_s=self.fixed_s * factor, item_s=self.item_s * factor, off_line=off_line)


def fit(items: Sequence[float], seconds: Sequence[float]) -> LinearCost:
    """The line of least squares through the median call of each size, with both coefficients at least 0.

    Calls of a single size say nothing of the fixed part: it is then 0, and `sizes` says so. Where the best line of all would fall,
    as more processes that share cores take longer for fewer items, the medians are above and below the line, and `off_line` says
    by how much.

    Args:
        items: `[N]`, the sizes of the calls that were measured.
        seconds: `[N]`, what each took.

    Raises:
        ConfigError: nothing was measured, or the two do not have the same length.
    """
    if not items or len(items) != len(seconds):
        raise ConfigError("fit", f"expected as many sizes as seconds, found {len(items)} and {len(seconds)}", "Measure some calls.")
    every, measured = np.asarray(items, float), np.asarray(seconds, float)
    known = sorted(set(every.tolist()))
    # One slow call, as when the machine does something else, moves a mean and not a median.
    medians = {size: float(np.median(measured[every == size])) for size in known}
    n, t = every, np.array([medians[size] for size in every.tolist()])
    sizes = len(known)
    fixed, slope = _line(n, t) if sizes > 1 else (0.0, float(t.mean() / n.mean()) if n.mean() else 0.0)
    if sizes == 1 and not n.mean():
        fixed = float(t.mean())
    # A negative part is noise: the best line within the quadrant has that part at 0.
    if fixed < 0:
        fixed, slope = 0.0, float((n * t).sum() / (n * n).sum())
    if slope < 0:
        fixed, slope = float(t.mean()), 0.0
    away = tuple((size, medians[size] - fixed - slope * size) for size in known)
    scale = max(float(t.mean()), 1e-12)
    off = max(abs(seconds) for _, seconds in away) > ROUNDING * scale
    residual = measured - t
    freedom = max(1, len(t) - min(2, sizes))
    spread = math.sqrt(float((residual**2).sum()) / freedom) / scale
    return LinearCost(
        fixed_s=fixed,
        item_s=slope,
        spread=spread,
        error=SURE * spread / math.sqrt(len(t)),
        samples=len(t),
        sizes=sizes,
        off_line=away if off else (),
        measured=(known[0], known[-1]),
    )


def _line(n: np.ndarray, t: np.ndarray) -> tuple[float, float]:
    centred = n - n.mean()
    slope = float((centred * (t - t.mean())).sum() / (centred**2).sum())
    return float(t.mean() - slope * n.mean()), slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that a component takes while it is on its devices, by what they are for.

    `sharded` divides weights, gradients and optimizer over all its devices; otherwise over those of one process.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    cache: float = 0.0
    """Of a process whatever it holds: the KV cache that an engine reserves."""
    cache_per_item: float = 0.0
    """Of each item that a process holds: a KV cache, activations."""
    simulator: float = 0.0
    """Of a process whatever it holds: a simulator, its libraries and processes."""
    simulator_per_item: float = 0.0
    """Of each item that a process holds: environments."""
    fixed: float = 0.0
    """On each device whatever the placement: a CUDA context, and what else is not told apart."""
    sharded: bool = False

    def per_device(self, devices: int, parallel: int, items: float) -> float:
        """Bytes on each device.

        Args:
            devices: how many the component has.
            parallel: how many one process has.
            items: that one process holds.
        """
        state = (self.weights + self.gradients + self.optimizer) / (devices if self.sharded else parallel)
        held = self.cache + self.simulator + (self.cache_per_item + self.simulator_per_item) * items
        return self.fixed + state + held / parallel

    def __post_init__(self) -> None:
        for each in fields(self):
            expect_range(each.name, getattr(self, each.name), 0.0, open_high=True)
