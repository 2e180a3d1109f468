"""The best layout there is, or the best that was found and how much better another one could be at most.

Small problems are searched exactly: every range of devices for every component, by branch and bound with the simulator as judge.
Large ones are searched on a grid of devices first, by a beam over the components, and then refined; the gap to the lower bound of
`rlinf.scheduler.planner.bounds` is reported.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlinf.core.errors import PlacementError
from rlinf.scheduler.placement.grammar import PLACE
from rlinf.scheduler.planner.bounds import Bounds, Share
from rlinf.scheduler.planner.layout import Layout, Machine, Slot, beside, check, memory_use
from rlinf.scheduler.planner.simulator import Options, Simulation, simulate
from rlinf.scheduler.planner.workload import Workload

EXACT = 60_000
"""Layouts up to which all of them are looked at."""
SIMULATIONS = 2_000
"""How many are simulated at most in a search of all of them."""
BEAM = 32
"""Whole layouts that are kept and simulated where there are more; of partial ones twice as many are kept."""
GRID = 8
"""Parts into which a large machine is cut first."""
RIVALS = 2
"""The next best layouts that are searched for as well, so that a person sees what else there is."""
KEPT = 24
"""Layouts that are remembered beside the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is searched beside the devices of each component."""

    chunks: tuple[int, ...] = (1, 2, 4)
    stages: tuple[int, ...] = (1, 2)
    max_lag: int = 0
    seed: int = 0
    pinned: Mapping[str, Slot] = field(default_factory=dict[str, Slot])
    """Components that stay where they are."""

    def options(self, workload: Workload) -> Iterator[Options]:
        """Every combination that makes a difference to the workload."""
        stages = self.stages if workload.loops else (1,)
        chunks = self.chunks if any(not channel.whole for channel in workload.channels) else (1,)
        for chunk, stage in itertools.product(chunks, stages):
            yield Options(chunks=chunk, stages=stage, max_lag=self.max_lag, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout, and what it would do."""

    layout: Layout
    options: Options
    step_s: float

    @property
    def mode(self) -> str:
        """`collocated`, `disaggregated` or `hybrid`."""
        slots = list(self.layout.values())
        if len(slots) > 1 and len({(slot.start, slot.count) for slot in slots}) == 1:
            return "collocated"
        apart = all(not a.meets(b) for a, b in itertools.combinations(slots, 2))
        return "disaggregated" if apart else "hybrid"

    def simulation(self, workload: Workload, machine: Machine) -> Simulation:
        """The whole run on paper."""
        return simulate(workload, machine, self.layout, self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a search found."""

    best: Candidate
    others: tuple[Candidate, ...]
    """The next best that were simulated, best first."""
    bound_s: float
    """No layout has a shorter step; `best.step_s` itself where that is proven."""
    simulated: int
    """Layouts that were simulated."""
    seconds: float
    """Of the search."""

    @property
    def gap(self) -> float:
        """By how much of its step the best could be beaten at most; 0 is proven optimal."""
        return 1 - self.bound_s / self.best.step_s if self.best.step_s else 0.0

    @property
    def proven(self) -> bool:
        """Whether no layout is better."""
        return self.gap <= 1e-9


def search(workload: Workload, machine: Machine, space: Space | None = None) -> Plan:
    """The layout with the shortest step.

    Args:
        workload: what a step consists of.
        machine: the devices.
        space: what may be chosen.

    Raises:
        PlacementError: no layout is allowed, or none fits into memory.
    """
    return _Search(workload, machine, space or Space()).run()


class _Search:
    def __init__(self, workload: Workload, machine: Machine, space: Space) -> None:
        self._workload, self._machine, self._space = workload, machine, space
        self._best: list[Candidate] = []
        self._seen: set[object] = set()
        self._simulated = 0
        for name, slot in space.pinned.items():
            check(replace(workload, components={name: workload.components[name]}, channels=(), loops=()), machine, {name: slot})
        # Heavy components first: what they leave decides most.
        self._names = sorted(workload.components, key=lambda name: -self._least_work(name))

    def run(self) -> Plan:
        """Searches."""
        began = time.perf_counter()
        sizes = {name: self._sizes(name) for name in self._names}
        exact = math.prod(self._ranges(name) for name in self._names) <= EXACT
        grid = 1 if exact else max(1, self._machine.devices // GRID)
        slots = {name: self._slots(name, grid) for name in self._names}
        bounds = {
            options: Bounds(self._workload, options, beside(self._workload, self._machine))
            for options in self._space.options(self._workload)
        }
        lower = min(self._root(bound, sizes) for bound in bounds.values())
        self._begin(list(bounds))
        found: list[tuple[float, int, Layout, Options]] = []
        numbers = itertools.count()
        for options, bound in bounds.items():
            leaves = self._all(bound, slots) if exact else self._beam(bound, slots)
            found += [(least, next(numbers), layout, options) for least, layout in leaves]
        heapq.heapify(found)
        limit = self._simulated + (SIMULATIONS if exact else BEAM)
        left = lower
        while found and self._simulated < limit:
            least, _, layout, options = heapq.heappop(found)
            if least >= self._limit * (1 - 1e-12):
                left = self._best[0].step_s
                break
            self._try(layout, options)
        else:
            left = min((least for least, *_ in found), default=self._best[0].step_s if self._best else lower)
        if not self._best:
            raise PlacementError(PLACE, self._why_none(sizes), "Take more devices, or allow more in the profile.")
        if not exact:
            self._refine()
        best = self._best[0]
        bound_s = min(best.step_s, max(lower, left if exact else lower))
        return Plan(
            best=best,
            others=tuple(self._best[1:]),
            bound_s=bound_s,
            simulated=self._simulated,
            seconds=time.perf_counter() - began,
        )

    def _begin(self, choices: Sequence[Options]) -> None:
        """Tries what anybody would write by hand, so that the search has something to beat."""
        devices, names = self._machine.devices, self._workload.order
        together = dict.fromkeys(names, (0, devices))
        work = [self._least_work(name) for name in names]
        ends = [0]
        for at in range(len(names)):
            fair = round(devices * sum(work[: at + 1]) / (sum(work) or 1))
            ends.append(min(devices - (len(names) - 1 - at), max(ends[-1] + 1, fair)))
        apart = {name: (ends[at], ends[at + 1]) for at, name in enumerate(names)}
        hybrid = {name: (0, devices) if name in self._workload.sinks else apart[name] for name in names}
        for ranges in (together, apart, hybrid):
            for size in sorted({size for component in self._workload.components.values() for size in component.costs}):
                layout = {name: self._near(name, *ranges[name], size) for name in names}
                if all(slot is not None and self._allowed(name, slot) for name, slot in layout.items()):
                    whole = {name: slot for name, slot in layout.items() if slot is not None}
                    for options in choices:
                        if self._new(whole, options):
                            self._try(whole, options)

    def _near(self, name: str, start: int, end: int, size: int) -> Slot | None:
        """About that range, with processes of that size if the component knows it."""
        if name in self._space.pinned:
            return self._space.pinned[name]
        costs = self._workload.components[name].costs
        size = size if size in costs else min(costs)
        start = -(-start // size) * size
        return Slot(start, (end - start) // size * size, size) if end - start >= size else None

    def _ranges(self, name: str) -> int:
        """About how many ranges a component may have."""
        devices = self._machine.devices
        return 1 if name in self._space.pinned else devices * (devices + 1) // 2 * len(self._workload.components[name].costs)

    def _sizes(self, name: str) -> list[Slot]:
        """One range of each size that a component may have."""
        if name in self._space.pinned:
            return [self._space.pinned[name]]
        sizes = range(1, self._machine.devices + 1)
        found = [Slot(0, size, parallel) for size in sizes for parallel in self._workload.components[name].costs]
        return [slot for slot in found if self._allowed(name, slot)]

    def _slots(self, name: str, grid: int) -> list[Slot]:
        """The ranges that a component may have, whose ends are multiples of `grid`."""
        if name in self._space.pinned:
            return [self._space.pinned[name]]
        component, devices = self._workload.components[name], self._machine.devices
        cuts = sorted({*range(0, devices, grid), devices})
        found: list[Slot] = []
        for start, end in itertools.combinations(cuts, 2):
            for parallel in component.costs:
                slot = Slot(start, end - start, parallel)
                if self._allowed(name, slot):
                    found.append(slot)
        return found

    def _root(self, bound: Bounds, slots: Mapping[str, Sequence[Slot]]) -> float:
        """What no layout of these can beat."""
        if any(not each for each in slots.values()):
            return 0.0
        least = {name: self._least(bound, name, each) for name, each in slots.items()}
        work = [self._work(bound, name, each) for name, each in slots.items() if name not in bound.beside]
        return max(bound.step_s(least), bound.spread_s(work, self._machine.devices))

    def _least(self, bound: Bounds, name: str, slots: Sequence[Slot]) -> Share:
        shares = [bound.share(name, slot) for slot in _distinct(slots)]
        return Share(min(s.call_s for s in shares), min(s.total_s for s in shares), min(s.load_s for s in shares))

    def _work(self, bound: Bounds, name: str, slots: Sequence[Slot]) -> float:
        """Device seconds of a component at least."""
        return min(bound.share(name, slot).load_s * slot.count for slot in _distinct(slots))

    def _all(self, bound: Bounds, slots: Mapping[str, Sequence[Slot]]) -> Iterator[tuple[float, Layout]]:
        """Every layout with its bound, without those of which a part is worse than the best so far."""
        least = {name: self._least(bound, name, each) for name, each in slots.items() if each}
        if len(least) < len(slots):
            return

        def grow(at: int, layout: dict[str, Slot], shares: dict[str, Share]) -> Iterator[tuple[float, Layout]]:
            if at == len(self._names):
                yield self._bound(bound, layout, shares), layout
                return
            name = self._names[at]
            for slot in slots[name]:
                partial = {**layout, name: slot}
                known = {**shares, name: bound.share(name, slot)}
                if self._bound(bound, partial, known) < self._limit:
                    yield from grow(at + 1, partial, known)

        for least_s, layout in grow(0, {}, dict(least)):
            if self._new(layout, bound.options):
                yield least_s, layout

    def _beam(self, bound: Bounds, slots: Mapping[str, Sequence[Slot]]) -> Iterator[tuple[float, Layout]]:
        """The most promising layouts, a component at a time."""
        if any(not each for each in slots.values()):
            return
        shares = {name: self._least(bound, name, each) for name, each in slots.items()}
        kept: list[tuple[float, dict[str, Slot]]] = [(0.0, {})]
        for at, name in enumerate(self._names):
            grown: list[tuple[float, dict[str, Slot]]] = []
            for _, layout in kept:
                known = shares | {each: bound.share(each, chosen) for each, chosen in layout.items()}
                for slot in slots[name]:
                    partial = {**layout, name: slot}
                    known[name] = bound.share(name, slot)
                    least = self._bound(bound, partial, known)
                    if least < self._limit:
                        grown.append((least, partial))
            last = at == len(self._names) - 1
            kept = heapq.nsmallest(BEAM * (1 if last else 2), grown, key=lambda pair: pair[0])
        yield from ((least, layout) for least, layout in kept if self._new(layout, bound.options))

    def _bound(self, bound: Bounds, layout: Layout, shares: Mapping[str, Share]) -> float:
        return max(bound.step_s(shares), bound.crowded_s(layout))

    @property
    def _limit(self) -> float:
        """What a layout must be better than, to be the best or one of the next best."""
        return self._best[RIVALS].step_s if len(self._best) > RIVALS else math.inf

    def _new(self, layout: Layout, options: Options) -> bool:
        """Whether no layout like this was met: with processes of one device, only how many devices have whom makes a difference."""
        alike = all(slot.parallel == 1 for slot in layout.values()) and not self._distances()
        key: object = tuple(sorted(layout.items()))
        if alike:
            cuts = sorted({edge for slot in layout.values() for edge in (slot.start, slot.end)})
            sizes: dict[tuple[str, ...], int] = {}
            for start, end in itertools.pairwise(cuts):
                here = tuple(name for name, slot in layout.items() if slot.start <= start < slot.end)
                sizes[here] = sizes.get(here, 0) + end - start
            sizes.pop((), None)
            key = tuple(sorted(sizes.items()))
        key = (options, key)
        fresh = key not in self._seen
        self._seen.add(key)
        return fresh

    def _distances(self) -> bool:
        """Whether it makes a difference which devices are near each other."""
        varies = any(component.varies for component in self._workload.components.values())
        return varies or any(channel.bytes_per_item for channel in self._workload.channels)

    def _try(self, layout: Layout, options: Options) -> None:
        if memory_use(self._workload, self._machine, layout) is None:
            return
        self._simulated += 1
        candidate = Candidate(
            layout=dict(layout), options=options, step_s=simulate(self._workload, self._machine, layout, options).step_s
        )
        # Of a layout that is cut into parts in several ways, the best is kept.
        same = next((each for each in self._best if each.layout == candidate.layout), None)
        if same is None or candidate.step_s < same.step_s:
            self._best = sorted([*(each for each in self._best if each is not same), candidate], key=lambda each: each.step_s)
        del self._best[KEPT:]

    def _refine(self) -> None:
        """Moves the ends of each component's range by ever smaller steps, as long as that helps."""
        step = max(1, self._machine.devices // GRID // 2)
        bounds = {each.options: Bounds(self._workload, each.options, beside(self._workload, self._machine)) for each in self._best}
        tried = {(tuple(sorted(each.layout.items())), each.options) for each in self._best}
        while step:
            before = self._best[0]
            for layout in self._neighbours(before.layout, step):
                key = (tuple(sorted(layout.items())), before.options)
                if key in tried:
                    continue
                tried.add(key)
                bound = bounds[before.options]
                shares = {name: bound.share(name, slot) for name, slot in layout.items()}
                if self._bound(bound, layout, shares) < self._best[0].step_s:
                    self._try(layout, before.options)
            if self._best[0] is before:
                step //= 2

    def _neighbours(self, layout: Layout, step: int) -> Iterator[dict[str, Slot]]:
        free = [name for name in layout if name not in self._space.pinned]
        edges = sorted({edge for name in free for edge in (layout[name].start, layout[name].end)} - {0, self._machine.devices})
        for edge, by in itertools.product(edges, (-step, step)):
            # A border is moved for all that end at it.
            moved = {name: _moved(slot, edge, by) if name in free else slot for name, slot in layout.items()}
            if all(self._allowed(name, slot) for name, slot in moved.items()):
                yield moved

    def _allowed(self, name: str, slot: Slot) -> bool:
        component = self._workload.components[name]
        if slot.start < 0 or slot.end > self._machine.devices or slot.count < 1 or slot.count % slot.parallel:
            return False
        return not self._machine.splits(slot) and (not component.processes or slot.processes in component.processes)

    def _least_work(self, name: str) -> float:
        component = self._workload.components[name]
        if component.places:
            return min((cost.fixed_s / component.places + cost.item_s) * component.items * s for s, cost in component.costs.items())
        return min(cost.seconds(component.items) * size for size, cost in component.costs.items())

    def _why_none(self, slots: Mapping[str, Sequence[Slot]]) -> str:
        for name, each in slots.items():
            if not each:
                sizes = ", ".join(map(str, self._workload.components[name].costs))
                return f"{name} has no place on {self._machine.devices} devices, with {sizes} for each process"
        return f"no layout on {self._machine.devices} devices fits into {self._machine.memory or 0:.3g} bytes each"


def _moved(slot: Slot, edge: int, by: int) -> Slot:
    start = slot.start + by if slot.start == edge else slot.start
    end = slot.end + by if slot.end == edge else slot.end
    return Slot(start, end - start, slot.parallel)


def _distinct(slots: Sequence[Slot]) -> list[Slot]:
    """One slot for each number of processes and devices."""
    return list({(slot.count, slot.parallel): slot for slot in slots}.values())
