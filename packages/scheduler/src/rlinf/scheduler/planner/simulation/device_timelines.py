"""The timelines of the devices in a simulation, and how long a call takes on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np

from rlinf.core.config import expect_at_least
from rlinf.core.random import keyed_generator
from rlinf.scheduler.planner.costs import LinearCost
from rlinf.scheduler.planner.layout import Layout, Machine, Slot, beside
from rlinf.scheduler.planner.simulation.batching import ContinuousBatch, Floats, ends_of_chunks, generated
from rlinf.scheduler.planner.workload import Component, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the components work together, wherever they are."""

    chunks: int = 1
    """Into how many parts the items of a step are cut, of which each goes on by itself."""
    stages: int = 1
    """Into how many parts the items of a loop are cut, so that one is simulated while another is decided for."""
    max_lag: int = 0
    """How many weight versions the items may be behind; 0 is synchronous."""
    steps: int = 0
    """Steps to simulate; 0: one of a synchronous run, in which all are alike, and else 4 for each version that may be ahead."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("chunks", 1), ("stages", 1), ("max_lag", 0), ("steps", 0)):
            expect_at_least(name, getattr(self, name), least)

    def simulated(self, workload: Workload) -> int:
        """How many steps of a workload are simulated."""
        alike = not self.max_lag and not any(component.varies for component in workload.components.values())
        return self.steps or (1 if alike else 4 * (self.max_lag + 1))


@dataclass(slots=True)
class Call:
    """A call of all processes of a component at once."""

    component: str
    step: int
    chunk: int
    seconds: float
    """0 of items with lengths, which follow from those."""
    waits: int = 0
    """Calls that must end first."""
    ready: float = 0.0
    next: list[tuple[Call, float, int]] = field(default_factory=list)  # pyright: ignore[reportUnknownVariableType]
    """Who waits for it, seconds of the transfer between them, and the chunk that it waits for; -1: for all."""
    starts: Floats = field(default_factory=lambda: np.empty(0))
    """`[timelines]`; empty before it is placed."""
    ends: Floats = field(default_factory=lambda: np.empty(0))
    """`[timelines]`"""


def lengths(component: Component, name: str, step: int, seed: int) -> Floats:
    """`[items]`, the lengths of a step's items, of mean 1 before the longest are cut."""
    return _drawn(name, max(1, round(component.items)), component.length_sigma, component.longest, step, seed)


@lru_cache(maxsize=64)
def _drawn(name: str, items: int, sigma: float, longest: float, step: int, seed: int) -> Floats:
    if not sigma:
        drawn = np.full(items, min(1.0, longest))
    else:
        normal = keyed_generator(seed, f"lengths/{name}", step).standard_normal(items)
        drawn = np.minimum(np.exp(sigma * normal - sigma**2 / 2), longest)
    # Whoever asks for them again gets the same array.
    drawn.flags.writeable = False
    return drawn


@lru_cache(maxsize=1024)
def _generated_alone(
    cost: LinearCost,
    places: int,
    name: str,
    items: int,
    sigma: float,
    longest: float,
    step: int,
    seed: int,
    processes: int,
    chunks: int,
) -> tuple[Floats, Floats]:
    """Of processes that are alike and begin at 0: when each has its items of a step, and when each chunk is full."""
    drawn = _drawn(name, items, sigma, longest, step, seed)
    return generated(cost, places, drawn, np.zeros(processes), np.ones(processes), chunks)


def generated_alone(
    component: Component, name: str, parallel: int, step: int, options: Options, processes: int
) -> tuple[Floats, Floats]:
    """When each process has its items of a step, and when each chunk is full, if all begin at 0 with nothing else under way."""
    items, cost = max(1, round(component.items)), component.costs[parallel]
    cut = (component.length_sigma, component.longest)
    return _generated_alone(cost, component.places, name, items, *cut, step, options.seed, processes, options.chunks)


def completions(component: Component, parallel: int, drawn: Floats, processes: int) -> Floats:
    """`[processes, most items]`, when each item of a step is done after its process began, ascending; of items in excess 0.

    Item i of a process that generates all of its items together: fixed_s · Lᵢ + item_s · Σⱼ min(Lⱼ, Lᵢ).
    """
    ordered = np.sort(of_processes(drawn, processes).T, axis=1)
    left: Floats = np.arange(ordered.shape[1] - 1.0, -1.0, -1.0)
    cost = component.costs[parallel]
    return cost.fixed_s * ordered + cost.item_s * (np.cumsum(ordered, axis=1) + left * ordered)


def of_processes(drawn: Floats, processes: int) -> Floats:
    """`[most items, processes]`, the lengths of the items of each; item i goes to process i mod processes. 0: none."""
    most = -(-len(drawn) // processes)
    if most * processes == len(drawn):
        return drawn.reshape(most, processes)
    table = np.zeros(most * processes)
    table[: len(drawn)] = drawn
    return table.reshape(most, processes)


class DeviceTimelines:
    """When each device is free, and what it did. Processes that are alike in everything share a timeline."""

    def __init__(self, workload: Workload, machine: Machine, layout: Layout, slowdown: Sequence[float]) -> None:
        self.workload, self.layout = workload, layout
        cuts = sorted({0, machine.devices, *(s.start for s in layout.values()), *(s.end for s in layout.values())})
        apart = any(component.varies for component in workload.components.values()) or len(slowdown) > 0
        # A cut within a process: its devices are not alike, and must not share a timeline.
        apart = apart or any((cut - s.start) % s.parallel for s in layout.values() for cut in cuts if s.start < cut < s.end)
        self.apart = apart
        if apart:
            cuts = list(range(machine.devices + 1))
        self.cuts = np.asarray(cuts)
        self.widths = np.diff(self.cuts)
        self._free: Floats = np.zeros(len(self.widths))
        # Who keeps nobody from its devices has only itself to wait for there.
        self._own = {name: np.zeros(len(self.widths)) for name in beside(workload, machine)}
        self._busy: Floats = np.zeros(len(self.widths))
        self.work = dict.fromkeys(layout, 0.0)
        self.slow = {name: self._slow(slot, slowdown) for name, slot in layout.items()}
        at = {cut: number for number, cut in enumerate(cuts)}
        self.cells = {name: slice(at[slot.start], at[slot.end]) for name, slot in layout.items()}
        self.each = {name: slot.parallel if apart else 1 for name, slot in layout.items()}
        self._lengths: dict[tuple[str, int], Floats] = {}

    @property
    def busy(self) -> Floats:
        """Seconds of work, `[devices]`."""
        return np.repeat(self._busy, self.widths)

    @property
    def end(self) -> float:
        """When the last call ends."""
        return max(float(free.max()) for free in (self._free, *self._own.values()))

    def ranges(self, name: str) -> list[tuple[int, int]]:
        """The devices of each timeline of a component."""
        cuts = self.cuts[self.cells[name].start : self.cells[name].stop + 1 : self.each[name]].tolist()
        return list(pairwise(cuts))

    def work_on(self, call: Call, options: Options) -> Floats:
        """Places a call on the devices of its component; returns when its chunks are done, and at last all of it."""
        name, component = call.component, self.workload.components[call.component]
        cells, each = self.cells[name], self.each[name]
        timeline = self._own.get(name, self._free)
        free = timeline[cells]
        starts = free.reshape(-1, each).max(axis=1) if each > 1 else free
        starts = np.maximum(starts, call.ready)
        if component.lockstep and len(starts) > 1:
            starts = np.full_like(starts, starts.max())
        if component.varies:
            generate = self._generated if component.places else self._together
            ends, done = generate(name, component, call, starts, options)
            # Of such a call these are the seconds to come to the devices and to leave them.
            ends = ends + call.seconds
            done = np.append(done, ends.max())
        else:
            ends = starts + call.seconds * self.slow[name]
            done = np.array([ends.max()])
        call.starts, call.ends = starts, ends
        timeline[cells] = np.repeat(ends, each) if each > 1 else ends
        spent = np.repeat(ends - starts, each) if each > 1 else ends - starts
        self._busy[cells] += spent
        self.work[name] += float((spent * self.widths[cells]).sum())
        return done

    def _generated(self, name: str, component: Component, call: Call, starts: Floats, options: Options) -> tuple[Floats, Floats]:
        """When each process has the items of a step, and when each chunk is full, if nothing else is under way there."""
        parallel, slow = self.layout[name].parallel, self.slow[name]
        together = bool((starts == starts[0]).all()) and bool((slow == 1).all())
        # A search meets the same processes again and again, with others beside them.
        if together:
            ends, done = generated_alone(component, name, parallel, call.step, options, len(starts))
            return starts[0] + ends, starts[0] + done
        drawn = lengths(component, name, call.step, options.seed)
        return generated(component.costs[parallel], component.places, drawn, starts, slow, options.chunks)

    def stream(self, name: str, whole: ContinuousBatch) -> None:
        """Adds what a component did that went on from step to step."""
        cells, each = self.cells[name], self.each[name]
        spent = np.repeat(whole.busy, each)
        self._own.get(name, self._free)[cells] = np.repeat(whole.ends, each)
        self._busy[cells] += spent
        self.work[name] += float((spent * self.widths[cells]).sum())

    def _together(self, name: str, component: Component, call: Call, starts: Floats, options: Options) -> tuple[Floats, Floats]:
        """The same of processes that generate all of their items together."""
        slot, slow = self.layout[name], self.slow[name]
        drawn = lengths(component, name, call.step, options.seed)
        if options.chunks == 1:
            cost, table = component.costs[slot.parallel], of_processes(drawn, slot.processes)
            ends = starts + (cost.fixed_s * table.max(axis=0) + cost.item_s * table.sum(axis=0)) * slow
            return ends, ends[: len(drawn)].max(keepdims=True)
        table = completions(component, slot.parallel, drawn, slot.processes) * slow[:, None]
        return starts + table[:, -1], _chunks_done(table, starts, len(drawn), options.chunks)

    def _slow(self, slot: Slot, slowdown: Sequence[float]) -> Floats:
        if not len(slowdown):
            return np.ones(slot.processes if self.apart else 1)
        factors = np.asarray(slowdown[slot.start : slot.end], float)
        return factors.reshape(-1, slot.parallel).max(axis=1)


def _chunks_done(table: Floats, starts: Floats, items: int, chunks: int) -> Floats:
    """`[chunks]`, when so many items of all processes are done that each chunk is full."""
    times = np.sort((table + starts[:, None])[table > 0])
    return times[ends_of_chunks(items, chunks, len(times))] if len(times) else np.full(chunks, starts.max())
