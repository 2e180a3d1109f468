"""How a step would go on: what is left of items whose lengths are known only in distribution, and when all is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rlinf.scheduler.lending.demand import Demand
from rlinf.scheduler.planner.costs import LinearCost

QUANTILES = 199
GOLDEN = 0.6180339887
"""Its multiples modulo 1 are spread evenly, so that items alike in progress stand for different lengths; nothing is drawn."""
SHRINKS = 0.3
"""Later in the step a device is taken to leave as soon as the others would be so full with its items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A giver and a taker at this moment."""

    left: tuple[float, ...]
    """Units that are left of each item of the giver, ascending."""
    lengths: tuple[float, ...]
    """The whole length of each of them, in the same order."""
    cost: LinearCost
    """The giver's: seconds of a unit with n items on a device."""
    slots: int
    held: int
    """Devices of the giver."""
    devices: int
    """Of both together."""
    work_s: float
    """Device-seconds that the taker has at hand."""
    unit_s: float
    """Device-seconds of the taker for a unit of an item that comes."""
    move_s: float
    """Device-seconds that a move costs."""

    @classmethod
    def of(cls, giver: Demand, taker: Demand, devices: int, *, move_s: float) -> Snapshot:
        """What two stages say of themselves.

        Args:
            giver: has devices.
            taker: has items that wait.
            devices: of both together.
            move_s: device-seconds that a move costs.
        """
        progress = [*giver.progress, *[0.0] * (giver.running - len(giver.progress))]
        rest = sorted(remaining(progress, giver.cost.length_sigma, giver.cost.longest))
        unit_s = taker.step_s / taker.slots
        return cls(
            left=tuple(left for left, _ in rest),
            lengths=tuple(length for _, length in rest),
            cost=giver.cost.costs[1],
            slots=giver.slots,
            held=len(giver.devices),
            devices=devices,
            work_s=taker.work * unit_s,
            unit_s=unit_s,
            move_s=move_s,
        )


def remaining(progress: Sequence[float], sigma: float, longest: float) -> list[tuple[float, float]]:
    """What is left of items, and how long they are then: quantiles of a lognormal of mean 1, given what was done already.

    Args:
        progress: units that were done of each.
        sigma: standard deviation of the logarithm of lengths; 0 for all alike.
        longest: where they are cut.
    """
    quantiles = _lengths(sigma, longest)
    found: list[tuple[float, float]] = []
    for at, done in enumerate(sorted(progress)):
        longer = quantiles[quantiles > done]
        # Who has outlived all quantiles goes to the limit; without one, for as long again (Lindy's law).
        limit = longest if math.isfinite(longest) else 2 * max(done, 0.5)
        length = float(longer[int(at * GOLDEN % 1 * len(longer))]) if len(longer) else max(limit, done)
        found.append((max(length - done, 0.01), length))
    return found


@cache
def _lengths(sigma: float, longest: float) -> NDArray[np.float64]:
    normal = NormalDist()
    at = np.array([normal.inv_cdf((i + 0.5) / QUANTILES) for i in range(QUANTILES)])
    return np.minimum(np.exp(sigma * at - sigma**2 / 2), longest)


def forecast(now: Snapshot, kept: int) -> float:
    """Seconds until the taker is done with everything, if the giver keeps so many devices; infinite if they have no room.

    The giver's items are spread evenly over its devices, and go on together; as they end, the taker gets them, and further devices
    if that pays. Its devices never wait for each other: its work is a fluid, but for the last item, which one of them does alone.
    """
    return min(_forecast(now, kept, shrinks=True), _forecast(now, kept, shrinks=False))


def _forecast(now: Snapshot, kept: int, *, shrinks: bool) -> float:
    held, done, seconds = kept, 0.0, 0.0
    work = now.work_s + (now.held - kept) * now.move_s
    for at, (left, length) in enumerate(zip(now.left, now.lengths, strict=True)):
        alive = len(now.left) - at
        if math.ceil(alive / held) > now.slots:
            return math.inf
        passed = (left - done) * now.cost.seconds(math.ceil(alive / held))
        work = max(0.0, work - (now.devices - held) * passed) + now.unit_s * length
        seconds, done = seconds + passed, left
        while shrinks and held > 1 and alive - 1 <= SHRINKS * now.slots * (held - 1):
            held, work = held - 1, work + now.move_s
    last = now.unit_s * now.lengths[-1] if now.lengths else 0.0
    # Without further moves the giver's devices are no help after its end, either.
    return seconds + max(work / (now.devices if shrinks else max(now.devices - held, 1)), last)
