"""Which devices the components may have: what a search looks at, and which layouts come to the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from rlinf.scheduler.planner.layout import Layout, Machine, Slot
from rlinf.scheduler.planner.workload import Workload

APART, SAME, PARTLY = range(3)


class Choices:
    """The ranges of devices of a workload's components on a machine.

    Args:
        workload: what a step consists of.
        machine: the devices.
        pinned: components that stay where they are.
    """

    def __init__(self, workload: Workload, machine: Machine, pinned: Mapping[str, Slot]) -> None:
        self._workload, self._machine, self._pinned = workload, machine, pinned
        self._varies = any(component.varies for component in workload.components.values())
        distances = any(channel.bytes_per_item for channel in workload.channels)
        self._anywhere = not distances and not (machine.cores and machine.nodes > 1)
        """It makes no difference which devices are near each other."""

    def ranges(self, name: str) -> int:
        """About how many ranges a component may have."""
        devices = self._machine.devices
        return 1 if name in self._pinned else devices * (devices + 1) // 2 * len(self._workload.components[name].costs)

    def sizes(self, name: str) -> list[Slot]:
        """One range of each size that a component may have."""
        if name in self._pinned:
            return [self._pinned[name]]
        sizes = range(1, self._machine.devices + 1)
        found = [Slot(0, size, parallel) for size in sizes for parallel in self._workload.components[name].costs]
        return [slot for slot in found if self.allowed(name, slot)]

    def slots(self, name: str, grid: int) -> list[Slot]:
        """The ranges that a component may have, of which the ends are multiples of `grid`.

        Of one that may have a few processes only, so that they would never fill such a range, one end is a multiple.
        """
        if name in self._pinned:
            return [self._pinned[name]]
        component, devices = self._workload.components[name], self._machine.devices
        cuts = sorted({*range(0, devices, grid), devices})
        ranges = set(itertools.combinations(cuts, 2))
        for parallel, processes in itertools.product(component.costs, component.processes):
            size = parallel * processes
            ranges |= {(cut, cut + size) for cut in cuts} | {(cut - size, cut) for cut in cuts}
        found = [Slot(start, end - start, parallel) for start, end in sorted(ranges) for parallel in component.costs]
        return [slot for slot in found if self.allowed(name, slot)]

    def firsts(self, slots: Sequence[Slot]) -> list[Slot]:
        """Of the ranges of the component that is placed first, those that are not the same as another, seen from the other end."""
        if self._pinned or self._varies or not self._anywhere:
            return list(slots)
        return [slot for slot in slots if slot.start <= self._machine.devices - slot.end]

    def allowed(self, name: str, slot: Slot) -> bool:
        """Whether a component may have that range."""
        component = self._workload.components[name]
        if slot.start < 0 or slot.end > self._machine.devices or slot.count < 1 or slot.count % slot.parallel:
            return False
        return not self._machine.splits(slot) and (not component.processes or slot.processes in component.processes)

    def by_hand(self) -> Iterator[dict[str, Slot]]:
        """What anybody would write: all components together, each apart with devices by its work, and those that train on all."""
        devices, names = self._machine.devices, self._workload.order
        together = dict.fromkeys(names, (0, devices))
        work = [self.least_work(name) for name in names]
        ends = [0]
        for at in range(len(names)):
            fair = round(devices * sum(work[: at + 1]) / (sum(work) or 1))
            # At least one device for each, and for each that is still to come.
            ends.append(min(devices - (len(names) - 1 - at), max(ends[-1] + 1, fair)))
        apart = {name: (ends[at], ends[at + 1]) for at, name in enumerate(names)}
        hybrid = {name: (0, devices) if name in self._workload.sinks else apart[name] for name in names}
        for ranges in (together, apart, hybrid):
            for size in sorted({size for component in self._workload.components.values() for size in component.costs}):
                layout = {name: self._near(name, *ranges[name], size) for name in names}
                if all(slot is not None and self.allowed(name, slot) for name, slot in layout.items()):
                    yield {name: slot for name, slot in layout.items() if slot is not None}

    def _near(self, name: str, start: int, end: int, size: int) -> Slot | None:
        """About that range, with processes of that size if the component knows it."""
        if name in self._pinned:
            return self._pinned[name]
        costs = self._workload.components[name].costs
        size = size if size in costs else min(costs)
        start = -(-start // size) * size
        return Slot(start, (end - start) // size * size, size) if end - start >= size else None

    def least_work(self, name: str) -> float:
        """About how many device-seconds a component takes of a step."""
        component = self._workload.components[name]
        if component.places:
            return min((cost.fixed_s / component.places + cost.item_s) * component.items * s for s, cost in component.costs.items())
        return min(cost.seconds(component.items) * size for size, cost in component.costs.items())

    def neighbours(self, layout: Layout, step: int) -> Iterator[dict[str, Slot]]:
        """Layouts in which one border is that many devices elsewhere."""
        free = [name for name in layout if name not in self._pinned]
        edges = sorted({edge for name in free for edge in (layout[name].start, layout[name].end)} - {0, self._machine.devices})
        for edge, by in itertools.product(edges, (-step, step)):
            ending = [name for name in free if edge in (layout[name].start, layout[name].end)]
            # A border is moved for all that end at it, or for one of them.
            for names in [ending, *([name] for name in ending if len(ending) > 1)]:
                moved = {name: self._moved(name, layout[name], edge, by) if name in names else layout[name] for name in layout}
                if all(self.allowed(name, slot) for name, slot in moved.items()):
                    yield moved

    def _moved(self, name: str, slot: Slot, edge: int, by: int) -> Slot:
        """With another border; who can have no other number of processes goes there as it is."""
        if edge not in (slot.start, slot.end):
            return slot
        resized = (
            Slot(slot.start + by, slot.count - by, slot.parallel)
            if edge == slot.start
            else Slot(slot.start, slot.count + by, slot.parallel)
        )
        shifted = Slot(slot.start + by, slot.count, slot.parallel)
        return shifted if self._workload.components[name].processes and not self.allowed(name, resized) else resized

    def same(self, layout: Layout) -> object:
        """Equal for layouts that take the same time."""
        if not self._anywhere:
            return tuple(sorted(layout.items()))
        if self._varies or any(slot.parallel > 1 for slot in layout.values()):
            return frozenset(_shape(layout, names) for names in _touching(layout))
        # With processes that are alike, and of one device, only how many devices have whom makes a difference.
        cuts = sorted({edge for slot in layout.values() for edge in (slot.start, slot.end)})
        sizes: dict[tuple[str, ...], int] = {}
        for start, end in itertools.pairwise(cuts):
            here = tuple(name for name, slot in layout.items() if slot.start <= start < slot.end)
            sizes[here] = sizes.get(here, 0) + end - start
        sizes.pop((), None)
        return tuple(sorted(sizes.items()))


def kind(layout: Layout) -> tuple[int, ...]:
    """Who shares devices with whom: layouts of a kind are about as far from their bounds."""
    # By name: layouts are made in different orders, and their pairs must be comparable.
    return tuple(relation(a, b) for a, b in itertools.combinations([layout[name] for name in sorted(layout)], 2))


def relation(a: Slot, b: Slot) -> int:
    """Of the devices of two components."""
    if a.start == b.start and a.count == b.count:
        return SAME
    return PARTLY if a.start < b.start + b.count and b.start < a.start + a.count else APART


def _touching(layout: Layout) -> list[list[str]]:
    """The components in groups that share no device with each other."""
    groups: list[list[str]] = []
    for name in layout:
        met = [group for group in groups if any(layout[name].meets(layout[other]) for other in group)]
        groups = [group for group in groups if group not in met] + [[name, *itertools.chain(*met)]]
    return groups


def _shape(layout: Layout, names: list[str]) -> object:
    """Of a group of components, wherever its first device is."""
    first = min(layout[name].start for name in names)
    return tuple(sorted((name, layout[name].start - first, layout[name].count, layout[name].parallel) for name in names))
