"""Which device goes from one stage to another, and when: policies that know what the planner knows of costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlinf.core.config import expect_at_least
from rlinf.scheduler.lending.demand import Demand
from rlinf.scheduler.lending.forecast import Snapshot, forecast


@dataclass(frozen=True, slots=True)
class Move:
    """A device goes from a stage to another."""

    device: int
    giver: str
    taker: str


class MovePolicy(Protocol):
    """Decides one move at a time; asked again as soon as something has changed."""

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        """The next move, or None.

        Args:
            demands: of all stages, in the order in which items pass them.
        """
        ...


class Never:
    """Devices stay where they are: the off switch."""

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        """None."""
        del demands
        return None


class Phases:
    """The static collocated placement, to compare with: all devices change hands when the first of two stages is done."""

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        """Of the first device that has not changed yet."""
        first, second = demands
        if first.waiting or first.running or not first.devices:
            return None
        return Move(min(first.devices), first.name, second.name)


class Drained:
    """A device on which nothing is left goes to a stage where items wait. Items never leave a device before their end."""

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        """The idle device of the first stage that has no items waiting, to the stage with most items waiting for each device."""
        taker = _neediest(demands)
        if taker is None:
            return None
        for giver in demands:
            free = [device for device, items in giver.devices.items() if not items and device not in giver.fixed]
            if giver is not taker and not giver.waiting and free:
                return Move(min(free), giver.name, taker.name)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Moves a device if the step is predicted to end sooner with it, by more than `hysteresis` times what the move costs.

    For each number of devices that the giver could keep, the rest of the step is played forward from the planner's costs and from
    what is left of lengths that have come so far (`rlinf.scheduler.lending.forecast`). Of the best number's devices that leave, the
    one with fewest items goes first; its items go on elsewhere.
    """

    hysteresis: float = 1.5
    """The expected gain of a move must be this many times its cost; a larger value moves less."""

    def __post_init__(self) -> None:
        expect_at_least("hysteresis", self.hysteresis, 1, "1 moves whenever it pays.")

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        """The move that pays most, or None."""
        taker = _neediest(demands)
        if taker is None:
            return None
        for giver in demands:
            if giver is taker or giver.waiting or not giver.devices:
                continue
            move = self._from(giver, taker, len(giver.devices) + len(taker.devices))
            if move is not None:
                return move
        return None

    def _from(self, giver: Demand, taker: Demand, devices: int) -> Move | None:
        free = {device: items for device, items in giver.devices.items() if device not in giver.fixed}
        if not free:
            return None
        device = min(free, key=lambda device: (free[device], device))
        if not giver.running and not giver.coming:
            return Move(device, giver.name, taker.name) if self._pays_off(giver, taker) else None
        # A stage that something still comes to keeps a device.
        now = Snapshot.of(giver, taker, devices, move_s=self.hysteresis * _move_s(giver, taker))
        # Of equal forecasts the one with the fewest moves.
        kept = min(range(1, len(giver.devices) + 1), key=lambda kept: (forecast(now, kept), -kept))
        return Move(device, giver.name, taker.name) if kept < len(giver.devices) else None

    def _pays_off(self, giver: Demand, taker: Demand) -> bool:
        """Whether the taker's items end sooner on one device more, which comes later by the cost of the move."""
        held, unit = len(taker.devices), taker.step_s
        work = (taker.work + taker.coming) * unit / taker.slots
        cost = self.hysteresis * _move_s(giver, taker)
        # With one more from `cost` on, all end together at t, where held · t + (t − cost) = work.
        return not held or work / held > (work + cost) / (held + 1)


def _neediest(demands: Sequence[Demand]) -> Demand | None:
    """The stage with most items that wait for a place, for each device; None if none do."""
    short = {demand.name: demand.waiting - _free(demand) for demand in demands}
    needy = [demand for demand in demands if short[demand.name] > 0]
    # With the device that it would get: a stage may have none yet.
    return max(needy, key=lambda demand: short[demand.name] / (1 + len(demand.devices)), default=None)


def _free(demand: Demand) -> int:
    return sum(max(0, demand.slots - items) for items in demand.devices.values())


def _move_s(giver: Demand, taker: Demand) -> float:
    """Seconds in which a device does nothing when it moves."""
    return giver.cost.offload_s + taker.cost.load_s
