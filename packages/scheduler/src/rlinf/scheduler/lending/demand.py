"""`Demand`: what a stage has to do at one moment of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlinf.scheduler.planner.workload import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a stage has to do at this moment."""

    name: str
    cost: Component
    """What the planner knows of it: seconds of a unit with n items on a device, `load_s`, `offload_s`, spread of lengths."""
    slots: int
    """Items that a device works on at a time."""
    devices: Mapping[int, int]
    """Device → its items; those that are on their way to the stage have none."""
    waiting: int
    """Items that no device works on."""
    work: float
    """Units of the items that wait or run, without what was done."""
    progress: Sequence[float] = ()
    """Units that were done of each running item, as far as is known."""
    coming: int = 0
    """Items that it will be given later in this step."""
    fixed: frozenset[int] = frozenset()
    """Devices on their way to it, or that came so recently that they stay."""

    @property
    def running(self) -> int:
        """Items on devices."""
        return sum(self.devices.values())

    @property
    def step_s(self) -> float:
        """Seconds of a unit with all items of a device, or one where there is none."""
        return self.cost.costs[1].seconds(max(1, min(self.slots, max(self.devices.values(), default=1))))
