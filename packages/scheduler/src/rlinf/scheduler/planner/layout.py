"""Where components are, and whether that is allowed: devices, nodes, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError, PlacementError
from rlinf.scheduler.placement.grammar import PLACE
from rlinf.scheduler.planner.workload import Workload


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """The devices of one component: `count` of them from `start` on, `parallel` for each process."""

    start: int
    count: int
    parallel: int = 1

    @property
    def end(self) -> int:
        """The first device after them."""
        return self.start + self.count

    @property
    def processes(self) -> int:
        """How many processes there are."""
        return self.count // self.parallel

    def text(self) -> str:
        """As `cluster.component_placement` writes it."""
        devices = str(self.start) if self.count == 1 else f"{self.start}-{self.end - 1}"
        if self.parallel == 1:
            return devices
        return f"{devices}:0" if self.processes == 1 else f"{devices}:0-{self.processes - 1}"

    def meets(self, other: Slot) -> int:
        """How many devices both have."""
        return max(0, min(self.end, other.end) - max(self.start, other.start))


Layout = Mapping[str, Slot]
"""Component → its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The devices that there are."""

    devices: int
    per_node: int = 0
    """Devices of a node; 0: all are on one."""
    memory: float | None = None
    """Bytes of a device; None does not look at memory."""
    virtual: bool = False
    """The devices are names, as virtual accelerators are: components share one at a time only where they take its lock."""
    cores: int = 0
    """CPU cores of a node, which the processes on its virtual devices share; 0: as many as they need."""

    def __post_init__(self) -> None:
        if self.devices < 1:
            problem = f"expected at least 1, found {self.devices}"
            raise ConfigError("devices", problem, "There is nothing to plan without accelerators.")
        expect_at_least("cores", self.cores, 0, "0 does not look at cores.")
        if self.per_node and self.devices % self.per_node:
            problem = f"{self.devices} devices are no whole number of nodes of {self.per_node}"
            raise ConfigError("per_node", problem, "Plan for nodes that are alike.")

    @property
    def nodes(self) -> int:
        """How many there are."""
        return self.devices // self.per_node if self.per_node else 1

    def on_nodes(self, start: int, end: int) -> list[tuple[int, int]]:
        """The nodes of a range of devices, and how many of them each has."""
        if not self.per_node:
            return [(0, end - start)]
        firsts = ((node, node * self.per_node) for node in range(self.node(start), self.node(end - 1) + 1))
        return [(node, min(end, first + self.per_node) - max(start, first)) for node, first in firsts]

    def node(self, device: int) -> int:
        """The node of a device."""
        return device // self.per_node if self.per_node else 0

    def splits(self, slot: Slot) -> bool:
        """Whether a process of the slot would have devices of two nodes."""
        border = (self.node(slot.start) + 1) * self.per_node
        if not self.per_node or border >= slot.end:
            return False
        # A border must be between two processes; all others are if the first one is and a node holds a whole number of them.
        return bool((border - slot.start) % slot.parallel or (border + self.per_node < slot.end and self.per_node % slot.parallel))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a layout takes, and who must leave its devices for others."""

    per_device: tuple[float, ...]
    """Bytes at the peak."""
    offloaded: frozenset[str]
    """Components that take turns, as together they do not fit."""


def check(workload: Workload, machine: Machine, layout: Layout) -> None:
    """Refuses a layout that the machine or the workload does not allow.

    Raises:
        PlacementError: with the component.
    """
    for name, slot in layout.items():
        place, component = f"{PLACE}.{name}", workload.components[name]
        if slot.start < 0 or slot.count < 1 or slot.end > machine.devices:
            raise PlacementError(place, f"'{slot.text()}' is not within the {machine.devices} devices", "Name fewer.")
        if slot.parallel not in component.costs:
            known = ", ".join(map(str, sorted(component.costs)))
            problem = f"the profile has no cost for {slot.parallel} devices per process, only for {known}"
            raise PlacementError(place, problem, "Profile a run with as many, or write their cost into the profile.")
        if slot.count % slot.parallel:
            raise PlacementError(place, f"{slot.count} devices are no whole number of processes of {slot.parallel}")
        if component.processes and slot.processes not in component.processes:
            allowed = ", ".join(map(str, component.processes))
            raise PlacementError(place, f"{slot.processes} processes, where the profile allows {allowed}")
        if machine.splits(slot):
            raise PlacementError(place, f"'{slot.text()}' spreads a process over two nodes", "A process runs on one node.")
    missing = [name for name in workload.components if name not in layout]
    if missing:
        raise PlacementError(f"{PLACE}.{missing[0]}", "this component is not placed", f"Placed: {', '.join(layout) or 'none'}.")


def memory_use(workload: Workload, machine: Machine, layout: Layout) -> MemoryUse | None:
    """Peak memory by device, and who is offloaded for it; None if it does not fit even so.

    What fits together stays. Where it does not, those that can be offloaded take turns, each for its whole share of a step; the two
    of a loop cannot, as each waits for the other.
    """
    each = {name: _bytes(workload, name, slot) for name, slot in layout.items()}
    limit = machine.memory
    # Between two cuts every device has the same components, so that one stands for all.
    cuts = sorted({0, machine.devices, *(s.start for s in layout.values()), *(s.end for s in layout.values())})
    peaks: list[float] = []
    offloaded: set[str] = set()
    for start, end in pairwise(cuts):
        here = [name for name, slot in layout.items() if slot.start <= start < slot.end]
        peak = sum(each[name] for name in here)
        if limit is not None and peak > limit:
            turns = [name for name in here if workload.components[name].offload]
            kept = sum(each[name] for name in here if name not in turns)
            peak = kept + max((each[name] for name in turns), default=0.0)
            if peak > limit or any(loop.first in turns and loop.second in turns for loop in workload.loops):
                return None
            offloaded |= set(turns)
        peaks += [peak] * (end - start)
    return MemoryUse(per_device=tuple(peaks), offloaded=frozenset(offloaded))


def beside(workload: Workload, machine: Machine) -> frozenset[str]:
    """The components that keep nobody from their devices: those that take no locks of virtual ones."""
    return frozenset(name for name, component in workload.components.items() if machine.virtual and not component.locks)


def overlapping(layout: Layout, names: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs among some components, in their order, that have a device in common."""
    return [(a, b) for at, a in enumerate(names) for b in names[at + 1 :] if layout[a].meets(layout[b])]


def _bytes(workload: Workload, name: str, slot: Slot) -> float:
    component = workload.components[name]
    return component.memory.per_device(slot.count, slot.parallel, component.items / slot.processes)
