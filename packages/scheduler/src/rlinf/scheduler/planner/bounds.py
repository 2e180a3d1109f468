"""What no layout can beat: lower bounds of the seconds of a step, which tell the search what it need not look at."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlinf.scheduler.planner.device_timelines import Options, lengths
from rlinf.scheduler.planner.layout import Layout, Slot
from rlinf.scheduler.planner.workload import Workload


class Share(NamedTuple):
    """What one component takes of a step at least."""

    call_s: float
    """Seconds of a call, of one stage and one round of a loop."""
    total_s: float
    """Seconds of all its calls, one after another."""
    load_s: float
    """Seconds for which each of its devices works at least, averaged over them."""


class Bounds:
    """Lower bounds for one workload and one way to work together.

    Two things bound a step: a device does one call at a time, so that no step is shorter than the mean work of any set of devices;
    and a component that waits for another is not done before it. The bounds hold for what the simulator says, `makespan / steps`.

    Args:
        workload: what a step consists of.
        options: how the components work together.
        beside: the components that keep nobody from their devices.
    """

    def __init__(self, workload: Workload, options: Options, beside: Collection[str] = ()) -> None:
        self._workload, self.options, self.beside = workload, options, frozenset(beside)
        self._drawn = {
            name: [lengths(component, name, step, options.seed) for step in range(options.simulated(workload))]
            for name, component in workload.components.items()
            if component.varies
        }
        self._ahead = options.simulated(workload)
        """Steps of which a process may have items at a time."""
        self._known: dict[tuple[str, int, int], Share] = {}
        self._steps: dict[tuple[Share, ...], float] = {}
        self._order = workload.order
        self._varies = {name: component.varies for name, component in workload.components.items()}

    def share(self, name: str, slot: Slot) -> Share:
        """What a component takes of a step, with so many processes of that size."""
        key = (name, slot.processes, slot.parallel)
        if key not in self._known:
            share, component = self._share(name, slot.processes, slot.parallel), self._workload.components[name]
            # It comes to its devices and leaves them in every step.
            moves = component.load_s + component.offload_s if component.leaves else 0.0
            self._known[key] = share._replace(load_s=share.load_s + moves)
        return self._known[key]

    def _share(self, name: str, processes: int, parallel: int) -> Share:
        component, options = self._workload.components[name], self.options
        cost = component.costs[parallel]
        if component.varies:
            worked = [self._generated(name, drawn, processes, parallel) for drawn in self._drawn[name]]
            # Of chains that skip steps the shortest counts, of all steps together the mean.
            longest = [longest for longest, _ in worked]
            path = float(np.mean(longest) if not options.max_lag else min(longest))
            # A step that is done with whichever items end first may have been begun long before its own.
            path = path if component.in_order or not options.max_lag else 0.0
            return Share(0.0, path, float(np.mean([mean for _, mean in worked])))
        loop = self._workload.loop_of(name)
        calls = options.chunks * (options.stages * loop.rounds if loop else 1)
        call_s = cost.seconds(component.items / processes / calls)
        if loop is None or not loop.singly or name != loop.second:
            return Share(call_s, call_s * calls, call_s * calls)
        # How many requests there are is the other component's: of each no more than the least is known, of all together the items.
        all_s = cost.least_of(component.items / processes, calls)
        return Share(cost.least_s, all_s, all_s)

    def _generated(self, name: str, drawn: np.ndarray, processes: int, parallel: int) -> tuple[float, float]:
        """Seconds of the slowest process, and of the mean one; at least."""
        component = self._workload.components[name]
        cost, places = component.costs[parallel], component.places
        most = -(-len(drawn) // processes)
        table = np.zeros(processes * most)
        table[: len(drawn)] = drawn
        table = table.reshape(most, processes)
        if not places:
            seconds = cost.fixed_s * table.max(axis=0) + cost.item_s * table.sum(axis=0)
            return float(seconds.max()), float(seconds.mean())
        # Nothing is faster than with all places full, and an item alone; what other steps have there only holds up this one.
        full = (cost.fixed_s / min(places, most * self._ahead) + cost.item_s) * table.sum(axis=0)
        together = cost.fixed_s * table.max(axis=0) + cost.item_s * table.sum(axis=0) if most <= places else full
        alone = (cost.fixed_s + cost.item_s) * table.max()
        return max(float(together.max()), float(alone)), float(full.mean() if self.options.max_lag else together.mean())

    def step_s(self, shares: Mapping[str, Share]) -> float:
        """By who waits for whom, whatever shares devices."""
        key = tuple(shares[name] for name in self._order)
        if key not in self._steps:
            self._steps[key] = self._longest_path(shares)
        return self._steps[key]

    def _longest_path(self, shares: Mapping[str, Share]) -> float:
        options = self.options
        early: dict[str, float] = {}
        finish: dict[str, float] = {}
        for name in self._order:
            loop = self._workload.loop_of(name)
            if loop is not None and name == loop.second:
                continue
            names = (name,) if loop is None else (loop.first, loop.second)
            first, last = 0.0, 0.0
            for channel in self._workload.channels:
                if channel.consumer in names and channel.producer not in names:
                    whole = channel.whole or self._workload.components[channel.consumer].varies
                    first = max(first, finish[channel.producer] if whole else early[channel.producer])
                    last = max(last, finish[channel.producer])
            if loop is None:
                total = shares[name].total_s
                part = total / options.chunks
            else:
                total = loop.rounds * options.chunks * (shares[loop.first].call_s + shares[loop.second].call_s)
                part = total / options.chunks
                total = max(total, *(shares[each].total_s for each in names))
            if any(self._workload.components[each].varies for each in names):
                part = 0.0
            for each in names:
                early[each] = first + part
                finish[each] = max(first + total, last + part)
        steps = options.simulated(self._workload)
        # Every step waits for the training of the one `max_lag + 1` before it, and for its weights.
        chains = -(-steps // (options.max_lag + 1))
        return (max(finish.values()) + self._workload.sync_s) * chains / steps

    def crowded_s(self, layout: Layout) -> float:
        """By what the devices of each component have to do."""
        placed = [
            (slot.start, slot.start + slot.count, self.share(name, slot).load_s, self._varies[name])
            for name, slot in layout.items()
            if name not in self.beside
        ]
        found = 0.0
        for start, end, _, _ in placed:
            work = 0.0
            for low, high, load, varies in placed:
                common = min(end, high) - max(start, low)
                # The work of items with lengths is not the same on all devices: only its mean is known.
                if common > 0 and (not varies or common == high - low):
                    work += load * common
            found = max(found, work / (end - start))
        return found

    def spread_s(self, device_seconds: Sequence[float], devices: int) -> float:
        """By all work together, if it were spread over all devices evenly."""
        return sum(device_seconds) / devices
