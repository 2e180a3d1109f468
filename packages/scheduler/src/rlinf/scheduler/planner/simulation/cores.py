"""CPU cores that the processes on virtual accelerators share: where more of them work than there are cores, all slow down.

A process that works takes a core for each of its accelerators, as it has a thread for each. While those of a node want n > c
cores, whatever they do takes n / c times as long: all of them alike, so that what happens keeps its order, and only the clock goes
faster than it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf.scheduler.planner.layout import Layout, Machine
from rlinf.scheduler.planner.simulation.batching import Floats
from rlinf.scheduler.planner.simulation.device_timelines import Call
from rlinf.scheduler.planner.workload import Workload

ROUNDING = 1e-12
Ranges = Mapping[str, Sequence[tuple[int, int]]]
"""Component → the devices of each of its timelines."""


def cores_of_a_process(workload: Workload, machine: Machine, name: str, parallel: int, processes: int) -> float:
    """How many cores a process takes while it works.

    Fewer than its accelerators where costs were measured with more processes than cores: they say what a call takes with a part of
    a core.
    """
    measured = workload.measured_processes(name, parallel)
    if measured is None:
        return float(parallel)
    beside = min(max(processes, measured[0]), measured[1])
    return min(float(parallel), (workload.cores or machine.cores) / max(1, beside))


Period = tuple[float, float, int, int]
"""When the processes of a timeline work: from, until, the first of their devices, and the first after them."""


def periods(calls: Sequence[Call], ranges: Ranges) -> dict[str, list[Period]]:
    """Component → when its processes work; where calls of two steps overlap in one, it is said once."""
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for call in calls:
        for (first, end), start, stop in zip(ranges[call.component], call.starts.tolist(), call.ends.tolist(), strict=True):
            if stop > start:
                found.setdefault((call.component, first, end), []).append((start, stop))
    merged: dict[str, list[Period]] = {name: [] for name in ranges}
    for (name, first, end), each in found.items():
        until = 0.0
        for start, stop in sorted(each):
            if stop > until:
                merged[name].append((max(start, until), stop, first, end))
                until = stop
    return merged


@dataclass(frozen=True, slots=True)
class Sharing:
    """What time it is when, on cores that are shared, a run has come as far as it would be at some time with enough of them."""

    times: Floats
    """Ascending, from 0 on."""
    seconds: Floats
    """What time it is then."""
    core_s: float
    """Seconds for which its processes keep one core busy, together."""

    def at(self, time: float | Floats) -> Floats:
        """When a run has come so far."""
        last = self.times[-1]
        # After the last change nothing works, and both clocks go alike.
        return np.interp(np.minimum(time, last), self.times, self.seconds) + np.maximum(0.0, np.asarray(time) - last)


def sharing(workload: Workload, machine: Machine, layout: Layout, worked: Mapping[str, Sequence[Period]]) -> Sharing | None:
    """What becomes of a run that was simulated with enough cores; None where there are enough.

    Args:
        workload: what a step consists of.
        machine: the devices.
        layout: which of them each component has.
        worked: component → when its processes worked.
    """
    if not machine.cores or not machine.virtual:
        return None
    changes: list[tuple[float, int, float]] = []
    for name, each in worked.items():
        slot = layout[name]
        taken = cores_of_a_process(workload, machine, name, slot.parallel, slot.processes) / slot.parallel
        for start, stop, first, end in each:
            for node, devices in machine.on_nodes(first, end):
                changes += [(start, node, taken * devices), (stop, node, -taken * devices)]
    changes.sort()
    busy, now, late, core_s, slowest = [0.0] * machine.nodes, 0.0, 0.0, 0.0, 1.0
    times, seconds = [0.0], [0.0]
    for time, node, cores in changes:
        if time > now:
            late += (time - now) * slowest
            core_s += (time - now) * sum(busy)
            now = time
            times.append(now)
            seconds.append(late)
        busy[node] += cores
        # What is left of sums of shares is no work.
        crowd = max(busy) / machine.cores
        slowest = crowd if crowd > 1 + ROUNDING else 1.0
    return Sharing(np.array(times), np.array(seconds), core_s)
