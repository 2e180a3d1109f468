"""A workload with its costs, from the trace of a run: what `rlinf plan --profile` reads.

What a component did between the ends of two steps, less what it waited, is its work of that step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median

from rlinf.core.errors import ConfigError
from rlinf.core.process import own_cores
from rlinf.scheduler.planner.costs import fit
from rlinf.scheduler.planner.layout import Machine, Slot
from rlinf.scheduler.planner.memory import memory_of, peaks
from rlinf.scheduler.planner.workload import Channel, Component, Loop, Workload
from rlinf.scheduler.trace.flow import SECOND, Flow
from rlinf.scheduler.trace.reading import CORES, PLACEMENT, VIRTUAL_DEVICES, about, spans, trace_file
from rlinf.scheduler.trace.spans import Span
from rlinf.scheduler.trace.steps import Steps
from rlinf.scheduler.transport.transport import DRIVER

LOAD, OFFLOAD = "load", "offload"
"""The timers of a worker in which it comes to its devices, and leaves them."""

_Samples = dict[tuple[str, int], list[tuple[float, float]]]
"""By component and devices of one process: of each call the share of the step's items, and its seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One traced run, as the planner sees it."""

    source: str
    workload: Workload
    layout: dict[str, Slot]
    """Where the components were. Of processes that share a device, one stands for all."""
    step_s: tuple[float, ...]
    """Seconds of each step but the first."""
    virtual: bool = False
    """The accelerators were virtual ones."""
    cores: int = 0
    """CPU cores of a node, which their processes shared; 0: not known, or real ones."""

    @property
    def machine(self) -> Machine:
        """The devices that the run used."""
        return Machine(devices=max(slot.end for slot in self.layout.values()), virtual=self.virtual, cores=self.cores)


def observe(path: str | Path) -> Observed:
    """What a trace says.

    Args:
        path: a trace, or the folder of a run with a `trace.json`.

    Raises:
        ConfigError: there is no trace, or it has too few steps.
    """
    return fitted([path])[0]


def fitted(paths: Sequence[str | Path]) -> list[Observed]:
    """What several traces of one recipe say; all have the same workload, with costs through the calls of all of them.

    Args:
        paths: traces, or folders of runs. Traces with different numbers of processes tell fixed costs from those of items.

    Raises:
        ConfigError: there is no trace, one has too few steps, or they have different components.
    """
    runs = [_Run(path) for path in paths]
    first = runs[0]
    _expect_alike(runs)
    samples = _samples(runs)
    workload = Workload(
        components={name: _component(name, runs, samples) for name in first.slots},
        channels=first.channels(),
        loops=tuple(first.loops),
        sync_s=median([gap for run in runs for gap in run.gaps]),
        cores=min(run.cores for run in runs),
    )
    return [
        Observed(
            source=str(run.path),
            workload=workload,
            layout={name: run.slots[name] for name in workload.order},
            step_s=tuple(run.step_s),
            virtual=run.virtual,
            cores=run.cores,
        )
        for run in runs
    ]


def _expect_alike(runs: Sequence[_Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        if set(run.slots) != set(first.slots):
            problem = f"has the components {', '.join(run.slots)}, where '{first.path}' has {', '.join(first.slots)}"
            raise ConfigError(f"trace '{run.path}'", problem, "Profile runs of one recipe.")


def _samples(runs: Sequence[_Run]) -> _Samples:
    found: _Samples = {}
    for run in runs:
        for name, slot in run.slots.items():
            calls, share = run.calls_of(name)
            found.setdefault((name, slot.parallel), []).extend((share, work / calls) for work in run.work[name])
    return found


def _component(name: str, runs: Sequence[_Run], samples: _Samples) -> Component:
    """A component with the costs that go through the calls of all runs."""
    load_s, offload_s = (median([run.moves[name, tag] for run in runs]) for tag in (LOAD, OFFLOAD))
    return Component(
        # A trace tells shares of a step only (`calls_of`): all of it is one item.
        items=1.0,
        costs={
            parallel: fit([share for share, _ in calls], [seconds for _, seconds in calls])
            for (each, parallel), calls in samples.items()
            if each == name
        },
        lockstep=name in runs[0].sinks,
        memory=memory_of([(run.slots[name], run.parts[name]) for run in runs], virtual=runs[0].virtual),
        load_s=load_s,
        offload_s=offload_s,
        leaves=load_s + offload_s > 0,
        locks=any(name in run.locking for run in runs),
    )


class _Run:
    """One trace, cut into steps."""

    def __init__(self, path: str | Path) -> None:
        self.path = trace_file(path)
        # A trace that does not say had the cores of this machine, as far as anybody knows.
        known = about(self.path)
        self.virtual = bool(known.get(VIRTUAL_DEVICES))
        self.cores: int = known.get(CORES) or (own_cores() if self.virtual else 0)
        recorded = [span for span in spans(self.path) if span.status == "ok" and span.group != DRIVER]
        calls = [span for span in recorded if span.kind == "call" and not span.name.startswith("_")]
        self._steps = Steps.find(recorded, source=self.path)
        self.step_s = self._steps.seconds
        self._inside = [span for span in recorded if self._steps.of(span) is not None]
        calls = [span for span in calls if self._steps.of(span) is not None]
        self.slots, timelines = _slots({span.group for span in calls}, known.get(PLACEMENT, {}), calls)
        self._calls = [span for span in calls if span.group in self.slots]
        self.parts = {name: peaks(recorded, name, timelines[name]) for name in self.slots}
        self.locking = {span.group for span in recorded if span.kind == "lock"}
        channels = [
            edge for edge in Flow.from_spans(self._inside).edges if edge.kind == "channel" and edge.producer != edge.consumer
        ]
        self._edges = [edge for edge in channels if edge.producer in self.slots and edge.consumer in self.slots]
        feeding = {edge.producer for edge in self._edges}
        self.sinks = [name for name in self.slots if name not in feeding] or [self._steps.group]
        self.work = {name: self._work(name, timelines[name]) for name in self.slots}
        self.moves = {(name, tag): self._moves(name, tag) for name in self.slots for tag in (LOAD, OFFLOAD)}
        self.loops = self._find_loops()
        for loop in self.loops:
            share = self._apart(loop)
            for name in (loop.first, loop.second):
                self.work[name] = [share * work for work in self.work[name]]
        self.gaps = self._gaps()

    def _work(self, name: str, timelines: Mapping[int, int]) -> list[float]:
        """Seconds of each timeline in each step, but for what is done while the step's last part is under way."""
        sums: dict[tuple[int, int | None], int] = {}
        moving = {(span.group, span.within) for span in self._inside if span.kind in ("put", "get")}
        ends = [span for span in self._calls if span.group in self.sinks]
        for span in self._calls:
            step = self._steps.of(span)
            if span.group == name and step is not None:
                worked = span.worked
                if name not in self.sinks and (name, span.name) not in moving:
                    # Nobody waits for it, such as for resets of environments while the actor trains.
                    worked = max(0, worked - max((min(span.end, s.end) - max(span.start, s.start) for s in ends), default=0))
                key = (timelines[span.rank], step)
                sums[key] = sums.get(key, 0) + min(span.worked, worked)
        for span in self._inside:
            if span.kind == "timer" and span.group == name and span.name in (LOAD, OFFLOAD):
                key = (timelines[span.rank], self._steps.of(span))
                if key in sums:
                    sums[key] = max(0, sums[key] - span.worked)
        steps = range(len(self.step_s))
        return [sums.get((timeline, step), 0) / SECOND for timeline in sorted(set(timelines.values())) for step in steps]

    def _moves(self, name: str, tag: str) -> float:
        """Seconds of a step in which a process comes to its devices, or leaves them."""
        found = [span for span in self._inside if span.kind == "timer" and span.group == name and span.name == tag]
        ranks = len({span.rank for span in found}) or 1
        return sum(span.worked for span in found) / SECOND / ranks / max(1, len(self.step_s))

    def _find_loops(self) -> list[Loop]:
        pairs = {(edge.producer, edge.consumer) for edge in self._edges}
        loops: list[Loop] = []
        for a, b in sorted((str(a), str(b)) for a, b in pairs):
            if a > b or (b, a) not in pairs:
                continue
            # Who asks first begins the loop.
            first = {name: min(s.start for s in self._inside if s.kind == "put" and s.group == name) for name in (a, b)}
            a, b = sorted((a, b), key=lambda name: first[name])
            answers = [span for span in self._inside if span.kind == "get" and span.group == a]
            ranks = len({span.rank for span in answers}) or 1
            rounds = round(sum(span.items for span in answers) / ranks / max(1, len(self.step_s)))
            taken = [span for span in self._inside if span.kind == "get" and span.group == b]
            singly = bool(taken) and sum(span.items for span in taken) <= len(taken)
            loops.append(Loop(first=a, second=b, rounds=max(1, rounds), singly=singly))
        return loops

    def _apart(self, loop: Loop) -> float:
        """What share of the work of a loop's two components takes time: one still sends while the other already unpacks.

        1 where the first has several requests under way, as with stages: there they work at the same time by design.
        """
        first, second = (self._turns(name, other) for name, other in ((loop.first, loop.second), (loop.second, loop.first)))
        if not first or not second or self._most_under_way(loop) > 1:
            return 1.0
        took = sum(span.end - span.start for span in first) / len({span.rank for span in first})
        asks, answers = (sum(span.worked for span in turns) / len({span.rank for span in turns}) for turns in (first, second))
        # Those that are answered first work on while the others are answered.
        return min(1.0, took / max(1, answers, asks + answers / self._requests(loop)))

    def _turns(self, name: str, other: str) -> list[Span]:
        """The calls in which a component takes what the other one has put."""
        made = self._items("put", other)
        gets = [span for span in self._inside if span.kind == "get" and span.group == name and made.intersection(span.ids)]
        methods = {span.within for span in gets}
        return [span for span in self._calls if span.group == name and span.name in methods]

    def _items(self, kind: str, group: str) -> set[int]:
        """The numbers of the items that a component has put, or got."""
        return {number for span in self._inside if span.kind == kind and span.group == group for number in span.ids}

    def _most_under_way(self, loop: Loop) -> int:
        """How many requests of one process of the first component wait for their answers at once, at the most."""
        asks, answers = self._items("get", loop.second), self._items("put", loop.second)
        # Each step for itself: a request that asks for no answer may end one.
        changes: dict[tuple[int, int | None], list[tuple[int, int]]] = {}
        for span in self._inside:
            if span.group == loop.first and span.kind in ("put", "get"):
                change = len(asks.intersection(span.ids)) - len(answers.intersection(span.ids))
                changes.setdefault((span.rank, self._steps.of(span)), []).append((span.end, change))
        return max(max(accumulate(change for _, change in sorted(found))) for found in changes.values())

    def _requests(self, loop: Loop) -> int:
        return loop.requests(self.slots[loop.first].processes, self.slots[loop.second].processes)

    def calls_of(self, name: str) -> tuple[int, float]:
        """How often a process of a component is called in a step, and the share of the step's items in each call."""
        processes = self.slots[name].processes
        for loop in self.loops:
            if name == loop.second and self._requests(loop) > 1:
                return loop.rounds * self._requests(loop), 1 / self.slots[loop.first].processes / loop.rounds
            if name in (loop.first, loop.second):
                return loop.rounds, 1 / processes / loop.rounds
        return 1, 1 / processes

    def channels(self) -> tuple[Channel, ...]:
        """Who feeds whom, but for loops."""
        looped = [{loop.first, loop.second} for loop in self.loops]
        pairs = sorted({(str(edge.producer), str(edge.consumer)) for edge in self._edges})
        return tuple(Channel(producer=a, consumer=b, whole=self._whole(a, b)) for a, b in pairs if {a, b} not in looped)

    def _whole(self, producer: str, consumer: str) -> bool:
        """Whether the consumer's heaviest calls began after the producer's had ended, in most steps."""
        after = 0
        for step in range(len(self.step_s)):
            makes = [span for span in self._calls if span.group == producer and self._steps.of(span) == step]
            takes = [span for span in self._calls if span.group == consumer and self._steps.of(span) == step]
            if makes and takes:
                last = max(makes, key=lambda span: span.worked)
                first = max(takes, key=lambda span: span.worked)
                after += first.start >= last.end
        return 2 * after > len(self.step_s)

    def _gaps(self) -> list[float]:
        """Seconds from the end of a step to the first call that takes long, of those that begin the next one."""
        found: list[float] = []
        fed = {str(edge.consumer) for edge in self._edges} - {loop.first for loop in self.loops}
        sources = [name for name in self.slots if name not in fed]
        for step in range(len(self.step_s)):
            calls = [s for s in self._calls if s.group in sources and self._steps.of(s) == step]
            calls = [s for s in calls if s.start >= self._steps.ends[step]]
            if calls:
                heaviest = max(calls, key=lambda span: span.end - span.start)
                found.append((heaviest.start - self._steps.ends[step]) / SECOND)
        return found or [0.0]


def _slots(
    groups: Iterable[str], placed: Mapping[str, Sequence[Sequence[int]]], calls: Sequence[Span]
) -> tuple[dict[str, Slot], dict[str, dict[int, int]]]:
    """The devices of each group, and the timeline of each rank; without groups that have no devices, which stay where they are."""
    slots: dict[str, Slot] = {}
    timelines: dict[str, dict[int, int]] = {}
    for group in sorted(groups):
        ranks = sorted({span.rank for span in calls if span.group == group})
        # A trace of an older version does not say where ranks were.
        devices = [tuple(each) for each in placed.get(group, [[rank] for rank in range(ranks[-1] + 1)])]
        if not devices[0]:
            continue
        different = sorted(set(devices))
        timelines[group] = {rank: different.index(devices[rank]) for rank in ranks}
        used = sorted({device for each in different for device in each})
        parallel = max(1, len(used) // len(different))
        slots[group] = Slot(used[0], len(different) * parallel, parallel)
    return slots, timelines
