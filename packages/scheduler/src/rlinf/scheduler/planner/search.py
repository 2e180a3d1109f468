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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rlinf.core.errors import PlacementError
from rlinf.scheduler.memory_size import memory_text
from rlinf.scheduler.placement.grammar import PLACE
from rlinf.scheduler.planner.bounds import Bounds, Share
from rlinf.scheduler.planner.choices import Choices, kind, relation
from rlinf.scheduler.planner.layout import Layout, Machine, Slot, check, memory_use
from rlinf.scheduler.planner.simulation.simulator import Options, Simulation, simulate, step_seconds
from rlinf.scheduler.planner.workload import Workload

EXACT = 100_000
"""Layouts up to which all of them are looked at."""
SIMULATIONS = 2_000
"""How many are simulated at most in a search of all of them."""
BEAM = 32
"""Whole layouts that are kept and simulated where there are more; of partial ones twice as many are kept."""
GRID = 8
"""Parts into which a large machine is cut first."""
RIVALS = 2
"""The next best layouts that are searched for as well, so that a person sees what else there is."""
NEARLY = 0.1
"""By how much of the best step those may be worse."""
KEPT = 24
"""Layouts that are remembered beside the best."""
EFFORT = 120_000.0
"""Turns of all processes that are followed at most in a search of a part of them, as `effort` counts; a second or two."""
ALL_EFFORT = 500_000.0
"""In a search of all of them."""
ITEMS_OF_A_TURN = 256
"""A turn of so many processes takes twice as long as that of a few."""
_MORE = "Take more devices, or some with more memory."


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


def search(workload: Workload, machine: Machine, space: Space | None = None, *, known: Sequence[Layout] = ()) -> Plan:
    """The layout with the shortest step.

    Args:
        workload: what a step consists of.
        machine: the devices.
        space: what may be chosen.
        known: layouts that are good, such as those of a smaller machine; what is worse is not looked at.

    Raises:
        PlacementError: no layout is allowed, or none fits into memory.
    """
    return _Search(workload, machine, space or Space()).run(known)


class _Unsimulated(NamedTuple):
    """A layout that was not simulated."""

    least_s: float
    """No step is shorter."""
    layout: Layout
    options: Options


class _Partial(NamedTuple):
    """Devices of some components."""

    least_s: float
    layout: dict[str, Slot]
    relations: tuple[int, ...]
    """Of each pair."""


class _Search:
    def __init__(self, workload: Workload, machine: Machine, space: Space) -> None:
        self._workload, self._machine = workload, machine
        self._best: list[Candidate] = []
        self._seen: set[object] = set()
        """Layouts that were met, and those that take the same time."""
        self._tried: set[object] = set()
        """Of these, those that were simulated, or do not fit into memory."""
        self._simulated, self._effort = 0, 0.0
        self._ratios: dict[tuple[tuple[int, ...], Options], float] = {}
        """Of layouts of a kind, the least step in relation to its bound."""
        for name, slot in space.pinned.items():
            check(replace(workload, components={name: workload.components[name]}, channels=(), loops=()), machine, {name: slot})
        self._choices = Choices(workload, machine, space.pinned)
        # Heavy components first: what they leave decides most.
        self._names = sorted(workload.components, key=lambda name: -self._choices.least_work(name))
        self._bounds = {options: Bounds(workload, options, machine) for options in space.options(workload)}

    def run(self, known: Sequence[Layout]) -> Plan:
        """Searches."""
        began = time.perf_counter()
        sizes = {name: self._choices.sizes(name) for name in self._names}
        for name, each in sizes.items():
            if not each:
                parts = ", ".join(map(str, self._workload.components[name].costs))
                problem = f"{name} has no place on {self._machine.devices} devices, with {parts} for each process"
                raise PlacementError(PLACE, problem, _MORE)
        lower = min(self._root(bound, sizes) for bound in self._bounds.values())
        # So that the search has something to beat.
        for layout, options in itertools.product([*known, *self._choices.by_hand()], self._bounds):
            if self._new(layout, options):
                self._try(layout, options, self._least_of(layout, options))
        exact = math.prod(self._choices.ranges(name) for name in self._names) <= EXACT
        # Of all layouts fewer have to be looked at when a good one is known.
        self._search_grid()
        if exact:
            lower = max(lower, self._prove(lower))
        if not self._best:
            memory = memory_text(self._machine.memory or 0)
            problem = f"no layout on {self._machine.devices} devices fits into {memory} each"
            raise PlacementError(PLACE, problem, _MORE)
        best = self._best[0]
        return Plan(
            best=best,
            others=tuple(self._best[1:]),
            bound_s=min(best.step_s, lower),
            simulated=self._simulated,
            seconds=time.perf_counter() - began,
        )

    def _root(self, bound: Bounds, slots: Mapping[str, Sequence[Slot]]) -> float:
        """What no layout of these can beat."""
        rough = {name: [(bound.rough_share(name, slot), slot) for slot in _distinct(each)] for name, each in slots.items()}
        least = {name: _least(share for share, _ in each) for name, each in rough.items()}
        work = [min(share.load_s * slot.count for share, slot in each) for name, each in rough.items() if name not in bound.beside]
        core_s = sum(min(bound.core_s(name, slot, share) for share, slot in each) for name, each in rough.items())
        # All work may be spread over all devices evenly.
        return max(bound.step_s(least), sum(work) / self._machine.devices, core_s)

    # All layouts of a small problem.

    def _prove(self, lower: float) -> float:
        """Simulates layouts, the one with the lowest bound first, until no other can be better; returns what none can beat."""
        slots = {name: self._choices.slots(name, 1) for name in self._names}
        # What only seemed to promise too little is looked at again.
        self._seen = set(self._tried)
        numbers = itertools.count()
        found: list[tuple[float, int, Layout, Options]] = []
        for options, bound in self._bounds.items():
            found += [(least, next(numbers), layout, options) for least, layout in self._all(bound, slots)]
        heapq.heapify(found)
        limit = self._simulated + SIMULATIONS
        while found and self._simulated < limit and self._effort < ALL_EFFORT:
            least, _, layout, options = heapq.heappop(found)
            if least >= self._limit * (1 - 1e-12):
                return self._best[0].step_s
            self._try(layout, options)
        return min((least for least, *_ in found), default=self._best[0].step_s if self._best else lower)

    def _all(self, bound: Bounds, slots: Mapping[str, Sequence[Slot]]) -> Iterator[tuple[float, Layout]]:
        """Every layout with its bound, without those of which a part is worse than the best so far."""
        least = {name: _least(bound.share(name, slot) for slot in _distinct(each)) for name, each in slots.items()}

        def grow(at: int, layout: dict[str, Slot], shares: dict[str, Share]) -> Iterator[tuple[float, Layout]]:
            if at == len(self._names):
                yield self._bound(bound, layout, shares), layout
                return
            name = self._names[at]
            for slot in slots[name] if at else self._choices.firsts(slots[name]):
                known = {**shares, name: bound.share(name, slot)}
                if bound.step_s(known) >= self._limit:
                    continue
                partial = {**layout, name: slot}
                if self._bound(bound, partial, known) < self._limit:
                    yield from grow(at + 1, partial, known)

        for least_s, layout in grow(0, {}, dict(least)):
            if self._new(layout, bound.options):
                yield least_s, layout

    # A grid of a large one, and what lies around the best on it.

    def _search_grid(self) -> None:
        slots = {name: self._choices.slots(name, max(1, self._machine.devices // GRID)) for name in self._names}
        found: list[_Unsimulated] = []
        for options, bound in self._bounds.items():
            found += [_Unsimulated(least, layout, options) for least, layout in self._beam(bound, slots)]
        self._try_promising(found, BEAM)
        if self._best:
            self._refine()

    def _beam(self, bound: Bounds, slots: Mapping[str, Sequence[Slot]]) -> Iterator[tuple[float, Layout]]:
        """The most promising layouts, a component at a time; of each kind as many, as their bounds are not equally near."""
        if any(not each for each in slots.values()):
            return
        shares = {name: _least(bound.share(name, slot) for slot in _distinct(each)) for name, each in slots.items()}
        kept = [_Partial(0.0, {}, ())]
        for at, name in enumerate(self._names):
            grown: dict[tuple[int, ...], list[_Partial]] = {}
            for _, layout, relations in kept:
                known = shares | {each: bound.share(each, chosen) for each, chosen in layout.items()}
                for slot in slots[name] if at else self._choices.firsts(slots[name]):
                    known[name] = bound.share(name, slot)
                    if bound.step_s(known) >= self._limit:
                        continue
                    partial = {**layout, name: slot}
                    least = self._bound(bound, partial, known)
                    if least < self._limit:
                        here = (*relations, *(relation(slot, other) for other in layout.values()))
                        grown.setdefault(here, []).append(_Partial(least, partial, here))
            each = max(2, BEAM * 2 // max(1, len(grown)))
            kept = [one for of_kind in grown.values() for one in heapq.nsmallest(each, of_kind, key=lambda one: one.least_s)]
        yield from ((least, layout) for least, layout, _ in kept if self._new(layout, bound.options))

    def _try_promising(self, found: Sequence[_Unsimulated], most: int) -> list[Candidate]:
        """Simulates those that may be better than the best, by how far layouts of their kind were above their bounds."""
        left, tried = list(found), list[Candidate]()
        while len(tried) < most and self._effort < EFFORT:
            left = [each for each in left if not self._best or self._optimistic(each) < self._best[0].step_s]
            if not left:
                break
            chosen = min(left, key=self._expected)
            left.remove(chosen)
            candidate = self._try(chosen.layout, chosen.options, chosen.least_s)
            tried += [] if candidate is None else [candidate]
        return tried

    def _expected(self, each: _Unsimulated) -> float:
        return each.least_s * self._ratios.get((kind(each.layout), each.options), 1.0)

    def _optimistic(self, each: _Unsimulated) -> float:
        """Half as far above its bound."""
        return (each.least_s + self._expected(each)) / 2

    def _refine(self) -> None:
        """Moves the ends of ranges by ever smaller steps, as long as that helps, from the best layout of each of a few kinds."""
        starts = {kind(each.layout): each for each in reversed(self._best)}
        for start in sorted(starts.values(), key=lambda each: each.step_s)[: 1 + RIVALS]:
            here, step = start, max(1, self._machine.devices // GRID // 2)
            while step and self._effort < EFFORT:
                found: list[_Unsimulated] = []
                for layout in self._choices.neighbours(here.layout, step):
                    if self._new(layout, here.options):
                        found.append(_Unsimulated(self._least_of(layout, here.options), layout, here.options))
                tried = self._try_promising(found, len(found))
                best = min(tried, key=lambda each: each.step_s, default=here)
                if best.step_s < here.step_s:
                    here = best
                else:
                    step //= 2

    # One layout.

    def _least_of(self, layout: Layout, options: Options) -> float:
        bound = self._bounds[options]
        return self._bound(bound, layout, {name: bound.share(name, slot) for name, slot in layout.items()})

    def _bound(self, bound: Bounds, layout: Layout, shares: Mapping[str, Share]) -> float:
        return max(bound.step_s(shares), bound.crowded_s(layout, shares))

    @property
    def _limit(self) -> float:
        """What a layout must be better than, to be the best or one of the next best that are hardly worse."""
        if len(self._best) <= RIVALS:
            return math.inf
        return min(self._best[RIVALS].step_s, self._best[0].step_s * (1 + NEARLY))

    def _new(self, layout: Layout, options: Options) -> bool:
        """Whether no layout that takes the same time was met."""
        key = self._key(layout, options)
        fresh = key not in self._seen
        self._seen.add(key)
        return fresh

    def _key(self, layout: Layout, options: Options) -> object:
        return options, self._choices.same(layout)

    def _try(self, layout: Layout, options: Options, least_s: float = 0.0) -> Candidate | None:
        """Simulates a layout; None if it does not fit into memory."""
        self._tried.add(self._key(layout, options))
        if memory_use(self._workload, self._machine, layout) is None:
            return None
        self._simulated += 1
        self._effort += effort(self._workload, layout, options)
        step_s = step_seconds(self._workload, self._machine, layout, options)
        if least_s:
            key = (kind(layout), options)
            self._ratios[key] = min(self._ratios.get(key, math.inf), step_s / least_s)
        candidate = Candidate(layout={name: layout[name] for name in self._workload.order}, options=options, step_s=step_s)
        # Of a layout that is cut into parts in several ways, the best is kept.
        same = next((each for each in self._best if each.layout == candidate.layout), None)
        if same is None or candidate.step_s < same.step_s:
            self._best = sorted([*(each for each in self._best if each is not same), candidate], key=_rank)
        del self._best[KEPT:]
        return candidate


def effort(workload: Workload, layout: Layout, options: Options) -> float:
    """About how long a simulation of items with places takes, in turns of all processes; 0 where there are none."""
    steps, found = options.simulated(workload), 0.0
    for name, component in workload.components.items():
        if component.places:
            # Where it matters when each of them ends, they are looked at again.
            often = 1.0 if options.chunks == 1 and component.in_order else 2.0
            found += steps * component.items * (1 / layout[name].processes + often / ITEMS_OF_A_TURN)
    return found


def _rank(candidate: Candidate) -> tuple[float, int]:
    """The shortest step first; of those that are as short but for rounding, the one that needs the fewest devices."""
    return float(f"{candidate.step_s:.9g}"), sum(slot.count for slot in candidate.layout.values())


def _least(shares: Iterable[Share]) -> Share:
    """The least of each of what some take."""
    return Share(*map(min, zip(*shares, strict=True)))


def _distinct(slots: Sequence[Slot]) -> list[Slot]:
    """One slot for each number of processes and devices."""
    return list({(slot.count, slot.parallel): slot for slot in slots}.values())
