"""What no layout can beat: lower bounds of the seconds of a step, which tell the search what it need not look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rlinf.scheduler.planner.generation_bounds import GenerationBounds
from rlinf.scheduler.planner.layout import Layout, Machine, Slot, beside
from rlinf.scheduler.planner.simulation.batching import Floats
from rlinf.scheduler.planner.simulation.cores import cores_of_a_process
from rlinf.scheduler.planner.simulation.device_timelines import Options
from rlinf.scheduler.planner.workload import Channel, Workload


class Share(NamedTuple):
    """What one component takes of a step at least."""

    call_s: float
    """Seconds of a call, of one stage and one round of a loop."""
    total_s: float
    """Seconds of all its calls, one after another; of items with lengths the mean over the steps that wait for each other."""
    first_s: float
    """The same of the first step."""
    load_s: float
    """Seconds for which each of its devices works at least, averaged over them."""
    busiest_s: float
    """Seconds for which one of its devices works at least."""


class _Paths(NamedTuple):
    """By who waits for whom."""

    step_s: float
    begins: Mapping[str, float]
    """Component → seconds before which it has nothing to do in the first step."""
    tails: Mapping[str, float]
    """Component → seconds from the end of its last work to the end of the run."""


class Bounds:
    """Lower bounds for one workload and one way to work together.

    Three things bound a step. A component that waits for another is not done before it, and each step waits for the training of
    the one `max_lag` + 1 before. A device does one call at a time, so that no run is shorter than the mean work of any set of
    devices. And before a device works, somebody has made what it works on, and afterwards somebody takes it in. The bounds hold
    for what the simulator says, `makespan / steps`.

    Args:
        workload: what a step consists of.
        options: how the components work together.
        machine: whose components may keep nobody from their devices, and share cores.
    """

    def __init__(self, workload: Workload, options: Options, machine: Machine) -> None:
        self._workload, self.options, self._machine = workload, options, machine
        self.beside = beside(workload, machine)
        self._shared_cores = machine.cores * machine.nodes if machine.virtual else 0
        self._steps = options.simulated(workload)
        self._generation = {
            name: GenerationBounds(component, name, options, self._steps)
            for name, component in workload.components.items()
            if component.varies
        }
        self._moves = {name: (c.load_s + c.offload_s) * c.leaves for name, c in workload.components.items()}
        self._known: dict[tuple[str, int, int], Share] = {}
        self._rough: dict[tuple[str, int, int], Share] = {}
        self._rows: dict[tuple[str, int, int, bool], Floats] = {}
        self._cores: dict[tuple[str, int, int], float] = {}
        self._paths: dict[tuple[int, ...], tuple[list[Share], _Paths]] = {}
        self._order = workload.order

    def share(self, name: str, slot: Slot) -> Share:
        """What a component takes of a step, with so many processes of that size."""
        key = (name, slot.processes, slot.parallel)
        if key not in self._known:
            if name in self._generation:
                rows = self._rows_of(name, slot, shared=False)
                ends = self._generation[name].ends(slot.processes, slot.parallel)
                self._known[key] = Share(0.0, *ends, float(rows.mean()), float(rows.max()))
            else:
                self._known[key] = self._calls(name, slot)
        return self._known[key]

    def rough_share(self, name: str, slot: Slot) -> Share:
        """The same or less, found at once whatever the number of items."""
        if name not in self._generation:
            return self.share(name, slot)
        key = (name, slot.processes, slot.parallel)
        if key not in self._rough:
            total_s, first_s, load_s = self._generation[name].rough(slot.processes, slot.parallel)
            load_s += self._moves[name]
            self._rough[key] = Share(0.0, total_s, first_s, load_s, load_s)
        return self._rough[key]

    def _rows_of(self, name: str, slot: Slot, *, shared: bool) -> Floats:
        """`[processes]`, seconds of a step for which each works on items with lengths."""
        key = (name, slot.processes, slot.parallel, shared)
        if key not in self._rows:
            self._rows[key] = self._generation[name].rows(slot.processes, slot.parallel, shared=shared) + self._moves[name]
        return self._rows[key]

    def _calls(self, name: str, slot: Slot) -> Share:
        component, options = self._workload.components[name], self.options
        cost, processes = component.costs[slot.parallel], slot.processes
        loop = self._workload.loop_of(name)
        calls = options.chunks * (options.stages * loop.rounds if loop else 1)
        call_s = cost.seconds(component.items / processes / calls)
        all_s = call_s * calls
        if loop is not None and loop.singly and name == loop.second:
            # How many requests there are is the other component's: of each no more than the least is known, of all together the
            # items.
            call_s, all_s = cost.least_s, cost.least_of(component.items / processes, calls)
        load_s = all_s + self._moves[name]
        return Share(call_s, all_s, all_s, load_s, load_s)

    def step_s(self, shares: Mapping[str, Share]) -> float:
        """By who waits for whom, whatever shares devices."""
        return self._by_paths(shares).step_s

    def _by_paths(self, shares: Mapping[str, Share]) -> _Paths:
        each = [shares[name] for name in self._order]
        # They are the same objects again and again; one that is remembered keeps its number.
        key = tuple(map(id, each))
        if key not in self._paths:
            self._paths[key] = (each, self._follow(shares))
        return self._paths[key][1]

    def _follow(self, shares: Mapping[str, Share]) -> _Paths:
        steps, sync_s = self._steps, self._workload.sync_s
        _, finish = self._forward(shares)
        # Every step waits for the training of the one `max_lag + 1` before it, and for its weights.
        chains = -(-steps // (self.options.max_lag + 1))
        step_s = (max(finish.values()) + sync_s) * chains / steps
        first = {name: share._replace(total_s=share.first_s) for name, share in shares.items()}
        begins, _ = self._forward(first)
        tails: dict[str, float] = {}
        for name in reversed(self._order):
            after = [self._taken_in(channel, shares) + tails[channel.consumer] for channel in self._between(name, into=False)]
            tails[name] = max(after, default=sync_s)
        # Who has items with lengths leaves its devices when the last of them are on their way.
        tails = {name: max(0.0, tail - self._moves[name] * (name in self._generation)) for name, tail in tails.items()}
        busy_s = max((begins[name] + tails[name]) / steps + shares[name].busiest_s for name in self._order)
        return _Paths(max(step_s, busy_s), begins, tails)

    def _forward(self, shares: Mapping[str, Share]) -> tuple[dict[str, float], dict[str, float]]:
        """When each component can begin a step, and when it is done with it, if the devices are its own."""
        begins, early, finish = dict[str, float](), dict[str, float](), dict[str, float]()
        for name in self._order:
            names = self._unit(name)
            if name != names[0]:
                continue
            first, last = 0.0, 0.0
            for channel in self._between(name, into=True):
                first = max(first, finish[channel.producer] if self._waits_for_all(channel) else early[channel.producer])
                last = max(last, finish[channel.producer])
            total, part = self._together(names, shares)
            for each in names:
                begins[each], early[each], finish[each] = first, first + part, max(first + total, last + part)
        return begins, finish

    def _taken_in(self, channel: Channel, shares: Mapping[str, Share]) -> float:
        """Seconds of what a consumer does behind the last work of a producer, whichever step that is of."""
        names = self._unit(channel.consumer)
        if any(self._workload.components[each].varies for each in names):
            return 0.0
        total, part = self._together(names, shares)
        return total if self._waits_for_all(channel) else part

    def _unit(self, name: str) -> tuple[str, ...]:
        """It, or the two of its loop, of which nothing is complete before the last answer."""
        loop = self._workload.loop_of(name)
        return (name,) if loop is None else (loop.first, loop.second)

    def _between(self, name: str, *, into: bool) -> list[Channel]:
        """The channels of a component, or of the two of its loop, from others, or to them."""
        names = self._unit(name)
        ends = [(c, c.consumer, c.producer) if into else (c, c.producer, c.consumer) for c in self._workload.channels]
        return [channel for channel, here, there in ends if here in names and there not in names]

    def _waits_for_all(self, channel: Channel) -> bool:
        return channel.whole or self._workload.components[channel.consumer].varies

    def _together(self, names: Sequence[str], shares: Mapping[str, Share]) -> tuple[float, float]:
        """Seconds of a step of a component, or of the two of a loop; and of a chunk."""
        options, loop = self.options, self._workload.loop_of(names[0])
        if loop is None:
            total = shares[names[0]].total_s
            part = total / options.chunks
        else:
            total = loop.rounds * options.chunks * sum(shares[each].call_s for each in names)
            part = total / options.chunks
            total = max(total, *(shares[each].total_s for each in names))
        return total, 0.0 if any(self._workload.components[each].varies for each in names) else part

    def crowded_s(self, layout: Layout, shares: Mapping[str, Share]) -> float:
        """By what each device has to do.

        Args:
            layout: components and their devices; of all, or of some.
            shares: of all components; of those that are not placed the least.
        """
        placed = [(slot.start, slot.start + slot.count, name) for name, slot in layout.items() if name not in self.beside]
        waits = self._waits(shares) if len(layout) == len(self._order) else None
        cuts = sorted({cut for start, end, _ in placed for cut in (start, end)})
        found = 0.0
        for low, high in pairwise(cuts):
            here = [name for start, end, name in placed if start <= low < end]
            work = sum([shares[name].load_s for name in here if name not in self._generation])
            if self._generation:
                rows = [self._rows_on(name, layout, low, high) for name in here if name in self._generation]
                # Each device does all that is placed there, and the busiest ends last.
                work += float(np.sum(rows, axis=0).max()) if rows else 0.0
            # Who is not placed yet may come, and begin at once.
            if waits is not None and here:
                work += min([waits[name][0] for name in here]) + min([waits[name][1] for name in here])
            found = max(found, work)
        return max(found, sum([self.core_s(name, slot, shares[name]) for name, slot in layout.items()]))

    def _waits(self, shares: Mapping[str, Share]) -> Mapping[str, tuple[float, float]]:
        """Component → seconds of a step, as a part of all, before its first work and after its last one."""
        paths = self._by_paths(shares)
        return {name: (paths.begins[name] / self._steps, paths.tails[name] / self._steps) for name in self._order}

    def core_s(self, name: str, slot: Slot, share: Share) -> float:
        """Seconds of a step for which a component keeps all cores busy at least, if they are shared."""
        if not self._shared_cores:
            return 0.0
        key = (name, slot.count, slot.parallel)
        if key not in self._cores:
            taken = cores_of_a_process(self._workload, self._machine, name, slot.parallel, slot.processes)
            self._cores[key] = slot.processes * taken / self._shared_cores
        return share.load_s * self._cores[key]

    def _rows_on(self, name: str, layout: Layout, start: int, end: int) -> Floats:
        """`[devices]`, seconds of a step for which each of those from `start` on works on items with lengths."""
        slot = layout[name]
        shared = any(slot.meets(other) for each, other in layout.items() if each != name and each not in self.beside)
        rows = self._rows_of(name, slot, shared=shared)
        rows = np.repeat(rows, slot.parallel) if slot.parallel > 1 else rows
        return rows[start - slot.start : end - slot.start]
