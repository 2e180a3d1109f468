"""A training run as discrete events: when each component works on which devices, before anything is started.

A step is a graph of calls. A call is ready when what it consumes is there; a device does one call at a time, in the order in which
they became ready, and in that of the workload among those ready at once. Nothing is random but the lengths of items, which are
keyed by seed, step and component, and therefore the same wherever the components are placed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rlinf.core.errors import PlacementError
from rlinf.scheduler.placement.grammar import PLACE
from rlinf.scheduler.planner.layout import Layout, Machine, MemoryUse, beside, check, memory_use, overlapping
from rlinf.scheduler.planner.simulation.batching import Floats
from rlinf.scheduler.planner.simulation.cores import Sharing, periods, sharing
from rlinf.scheduler.planner.simulation.device_timelines import Call, DeviceTimelines
from rlinf.scheduler.planner.simulation.device_timelines import Options as Options
from rlinf.scheduler.planner.simulation.events import CALL, ENDED, FORESEE, Queue, after, join
from rlinf.scheduler.planner.simulation.streams import Ended, Stream, streaming
from rlinf.scheduler.planner.workload import Loop, Workload

ROUNDS = 16
"""Rounds of a loop that are simulated; of more, each simulated one stands for several."""


class Cores(NamedTuple):
    """CPU cores that all processes share."""

    of_a_node: int
    use: float
    """The share of the time in which each works, on average."""
    slower: float
    """How many times as long the run takes as with a core for each process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What a run would do."""

    steps: int
    makespan_s: float
    """From the first call until the weights of the last step are where items are made, from a cold start."""
    ends_s: tuple[float, ...]
    """When each step was trained."""
    busy_s: Floats
    """`[devices]`, seconds of work."""
    work_s: dict[str, float]
    """Component → seconds of work of its processes together, times the devices of each."""
    memory: MemoryUse
    staleness: tuple[float, int]
    """Weight versions by which items were behind when they were trained on: the mean, and the most."""
    calls: list[Call]
    timelines: dict[str, list[tuple[int, int]]]
    """Component → the first device of each timeline, and the first after it."""
    cores: Cores | None = None
    """None: there are as many as processes."""

    @property
    def step_s(self) -> float:
        """Seconds of a step, over all that were simulated."""
        return self.makespan_s / self.steps

    @property
    def utilisation(self) -> Floats:
        """`[devices]`, the share of the time in which each works; above 1 where several work at a time on a virtual one."""
        return self.busy_s / max(self.makespan_s, 1e-12)


def simulate(
    workload: Workload, machine: Machine, layout: Layout, options: Options | None = None, *, slowdown: Sequence[float] = ()
) -> Simulation:
    """Runs a workload on paper.

    Args:
        workload: what a step consists of.
        machine: the devices.
        layout: which of them each component has.
        options: how the components work together.
        slowdown: `[devices]`, how many times as long each takes; () for all alike.

    Raises:
        PlacementError: the layout is not allowed, or does not fit into memory.
    """
    return _Run(workload, machine, layout, options or Options(), slowdown, whole=True).simulation()


def step_seconds(workload: Workload, machine: Machine, layout: Layout, options: Options) -> float:
    """`simulate(…).step_s`, without what takes longer to know.

    Raises:
        PlacementError: as for `simulate`.
    """
    run = _Run(workload, machine, layout, options, (), whole=False)
    return run.makespan_s / run.count


class _Run:
    """A run that was played to its end."""

    def __init__(
        self, workload: Workload, machine: Machine, layout: Layout, options: Options, slowdown: Sequence[float], *, whole: bool
    ) -> None:
        check(workload, machine, layout)
        memory = memory_use(workload, machine, layout)
        if memory is None:
            raise PlacementError(PLACE, "the components do not fit into the memory of their devices", "Spread them out.")
        self.workload, self.machine, self.layout = workload, machine, layout
        self.options, self.memory = options, memory
        # Asked for at each call, and walked anew by the workload each time.
        self.order = {name: at for at, name in enumerate(workload.order)}
        self.sources, self.sinks = workload.sources, workload.sinks
        self.timelines = DeviceTimelines(workload, machine, layout, slowdown)
        self.calls: list[Call] = []
        self.count = options.simulated(workload)
        """Of steps."""
        self.streams: dict[str, Stream] = {}
        for name in streaming(workload, layout, memory.offloaded, beside(workload, machine), max_lag=options.max_lag):
            component, parallel, slow = workload.components[name], layout[name].parallel, self.timelines.slow[name]
            self.streams[name] = Stream(name, component, parallel, slow, options, self.count, whole=whole)
        self.steps: list[dict[str, list[Call]]] = []
        for step in range(self.count):
            self._add_step(step)
        self.ends = self._play()
        for name, stream in self.streams.items():
            self.timelines.stream(name, stream.close())
        self.ranges = {name: self.timelines.ranges(name) for name in layout}
        self.worked = periods(self.calls, self.ranges) if machine.virtual and machine.cores else {}
        self.sharing = sharing(workload, machine, layout, self.worked)
        end = self.timelines.end if self.sharing is None else float(self.sharing.at(self.timelines.end))
        self.makespan_s = end + workload.sync_s

    def simulation(self) -> Simulation:
        """What there is to know of it."""
        found = Simulation(
            steps=self.count,
            makespan_s=self.makespan_s,
            ends_s=tuple(self.ends),
            busy_s=self.timelines.busy,
            work_s=self.timelines.work,
            memory=self.memory,
            staleness=self._staleness(),
            calls=self.calls,
            timelines=self.ranges,
        )
        return found if self.sharing is None else self._shared(found, self.sharing)

    def _shared(self, found: Simulation, shared: Sharing) -> Simulation:
        """The same on cores that are shared, where all that happens takes longer."""
        busy_s, work_s = np.zeros(self.machine.devices), dict.fromkeys(self.layout, 0.0)
        for name, each in self.worked.items():
            for start, stop, first, end in each:
                spent = float(shared.at(stop) - shared.at(start))
                busy_s[first:end] += spent
                work_s[name] += spent * (end - first)
        for call in self.calls:
            call.starts, call.ends = shared.at(call.starts), shared.at(call.ends)
        use = shared.core_s / max(self.makespan_s, 1e-12) / (self.machine.cores * self.machine.nodes)
        slower = self.makespan_s / max(self.timelines.end + self.workload.sync_s, 1e-12)
        ends_s = tuple(float(shared.at(end)) for end in found.ends_s)
        return replace(found, ends_s=ends_s, busy_s=busy_s, work_s=work_s, cores=Cores(self.machine.cores, use, slower))

    # The graph of a step.

    def _add_step(self, step: int) -> None:
        made: dict[str, list[Call]] = {}
        for name in self.order:
            loop = self.workload.loop_of(name)
            if loop is None:
                made[name] = self._plain(name, step)
            elif name == loop.first:
                made |= self._loop(step, loop)
        self.steps.append(made)
        for name, component in self.workload.components.items():
            if not (component.leaves or name in self.memory.offloaded):
                continue
            made[name][0].seconds += component.load_s
            made[name][-1].seconds += component.offload_s
        for channel in self.workload.channels:
            loop = self.workload.loop_of(channel.producer)
            if loop is None or loop is not self.workload.loop_of(channel.consumer):
                self._connect(made, channel.producer, channel.consumer, channel.whole, channel.bytes_per_item)
        self._take_turns(made, step)
        self._gate(made, step)

    def _plain(self, name: str, step: int) -> list[Call]:
        component, slot = self.workload.components[name], self.layout[name]
        # Items with lengths are generated together: their chunks are what is done first.
        parts = 1 if component.varies else self.options.chunks
        items = component.items / slot.processes / parts
        seconds = 0.0 if component.varies else component.costs[slot.parallel].seconds(items)
        return [self._call(name, step, chunk, seconds) for chunk in range(parts)]

    def _loop(self, step: int, loop: Loop) -> dict[str, list[Call]]:
        options, first, second, rounds = self.options, loop.first, loop.second, loop.rounds
        # About as many calls whatever the number of chunks.
        played = min(rounds, max(1, ROUNDS // options.chunks))
        each: dict[str, float] = {}
        requests = loop.requests(self.layout[first].processes, self.layout[second].processes)
        for name in (first, second):
            component, slot = self.workload.components[name], self.layout[name]
            processes = max(slot.processes, self.layout[first].processes) if requests > 1 else slot.processes
            items = component.items / processes / (options.chunks * options.stages * rounds)
            each[name] = component.costs[slot.parallel].seconds(items) * rounds / played
        there, back = (self._transfer(a, b, rounds) * rounds / played for a, b in ((first, second), (second, first)))
        # Whoever is answered first goes on while the others are still answered.
        early = each[second] * (requests - 1)
        each[second] *= requests
        made: dict[str, list[Call]] = {first: [], second: []}
        last: list[Call | None] = [None] * options.stages
        for chunk in range(options.chunks):
            for _ in range(played):
                for stage in range(options.stages):
                    ask = self._call(first, step, chunk, each[first])
                    answer = self._call(second, step, chunk, each[second])
                    before = last[stage]
                    if before is not None:
                        after(before, ask, back - early)
                    after(ask, answer, there)
                    last[stage] = answer
                    made[first].append(ask)
                    made[second].append(answer)
        return made

    def _call(self, name: str, step: int, chunk: int, seconds: float) -> Call:
        call = Call(name, step, chunk, seconds)
        self.calls.append(call)
        return call

    def _transfer(self, a: str, b: str, rounds: int) -> float:
        """Of one round between the two of a loop, as items of a step are divided over its calls."""
        calls = self.options.chunks * self.options.stages * rounds
        for channel in self.workload.channels:
            if (channel.producer, channel.consumer) == (a, b):
                return self._seconds(a, b, channel.bytes_per_item * self.workload.components[a].items / calls)
        return 0.0

    def _seconds(self, producer: str, consumer: str, size: float) -> float:
        """Of a transfer, by the farthest way between the two; nothing among devices that both have."""
        a, b = self.layout[producer], self.layout[consumer]
        if not size or (a.start, a.count) == (b.start, b.count):
            return 0.0
        node = self.machine.node
        together = node(min(a.start, b.start)) == node(max(a.end, b.end) - 1)
        route = self.workload.within_node if together else self.workload.between_nodes
        # Every process of the side with fewer of them moves its share at the same time.
        return route.seconds(size / min(a.processes, b.processes))

    def _connect(self, made: dict[str, list[Call]], producer: str, consumer: str, whole: bool, size: float) -> None:
        component = self.workload.components[producer]
        loop = self.workload.loop_of(producer)
        if loop is not None:
            # Nothing of a loop is complete before the last answer, whoever sends it.
            producer = loop.second
        parts = 1 if whole else self.options.chunks
        seconds = self._seconds(producer, consumer, size * component.items / parts)
        if whole:
            join(self._lasts(producer, made[producer]), self._firsts(consumer, made[consumer]), seconds)
            return
        for chunk in range(self.options.chunks):
            makes = made[producer] if component.varies else [call for call in made[producer] if call.chunk == chunk]
            takes = made[consumer]
            if not self.workload.components[consumer].varies:
                takes = [call for call in takes if call.chunk == chunk]
            done = chunk if component.varies else -1
            join(self._lasts(producer, makes), self._firsts(consumer, takes), seconds, done)

    def _firsts(self, name: str, calls: list[Call]) -> list[Call]:
        """Those that nothing of the component goes before: of a loop the first of each stage."""
        return calls if self.workload.loop_of(name) is None else calls[: self.options.stages]

    def _lasts(self, name: str, calls: list[Call]) -> list[Call]:
        """Those that nothing of the component follows: of a loop the last of each stage."""
        return calls if self.workload.loop_of(name) is None else calls[-self.options.stages :]

    def _take_turns(self, made: dict[str, list[Call]], step: int) -> None:
        """Offloaded components have shared devices one after another, in the workload's order, each for its share of a step."""
        names = [name for name in self.order if name in self.memory.offloaded]
        for a, b in overlapping(self.layout, names):
            join(self._lasts(a, made[a]), self._firsts(b, made[b]))
            if step:
                join(self._lasts(b, self.steps[step - 1][b]), self._firsts(a, made[a]))

    def _gate(self, made: dict[str, list[Call]], step: int) -> None:
        """A step's items are begun with weights that are at most `max_lag` versions old."""
        before = step - 1 - self.options.max_lag
        if before < 0:
            return
        for source in self.sources:
            for sink in self.sinks:
                trained = self._lasts(sink, self.steps[before][sink])
                join(trained, self._firsts(source, made[source]), self.workload.sync_s)

    # The run.

    def _play(self) -> list[float]:
        """Returns when each step was trained."""
        queue = Queue(self.calls, self.order)
        ended, played = [0.0] * len(self.steps), 0
        ahead: dict[str, list[Ended]] = {}
        while (event := queue.pop()) is not None:
            name, stream = event.component, self.streams.get(event.component)
            if stream is None:
                call = self.calls[event.number]
                done = self.timelines.work_on(call, self.options)
                for chunk in range(len(done)):
                    queue.ended(call, chunk if chunk < len(done) - 1 else -1, done[chunk])
                ended[call.step] = max(ended[call.step], done[-1] if name in self.sinks else 0.0)
                played += 1
                continue
            if event.kind == CALL:
                stream.add(self.calls[event.number])
                # When all that are ready at this time have come.
                queue.push(event.time, FORESEE, name, stream.changes)
                continue
            if event.number != stream.changes:
                continue
            if event.kind == FORESEE:
                ahead[name] = stream.foreseen()
            else:
                time, call, chunk = told = ahead[name].pop()
                stream.tell(told)
                queue.ended(call, chunk, time)
                if chunk == -1:
                    ended[call.step] = max(ended[call.step], time if name in self.sinks else 0.0)
                    played += 1
            if ahead[name]:
                queue.push(ahead[name][-1].time, ENDED, name, stream.changes)
        if played != len(self.calls):
            raise RuntimeError(f"{len(self.calls) - played} calls wait for one another; a workload without a circle has none")
        return [float(end) for end in ended]

    def _staleness(self) -> tuple[float, int]:
        published = [0.0, *(end + self.workload.sync_s for end in self.ends)]
        behind: list[int] = []
        for source in self.sources:
            if source in self.streams:
                behind += self.streams[source].behind(np.asarray(published))
                continue
            for made in self.steps:
                call = made[source][0]
                # Who begins at the moment at which weights arrive has them, whatever rounding says.
                behind += [max(0, call.step - (bisect_right(published, start + 1e-12) - 1)) for start in call.starts.tolist()]
        return (float(np.mean(behind)), max(behind)) if behind else (0.0, 0)
