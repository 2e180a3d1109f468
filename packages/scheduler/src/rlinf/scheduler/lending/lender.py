"""`Lender`: plays steps over stages that share devices, and moves devices between them as a policy says.

items ──► rollout ──► actor ──► done           each stage has a worker on every device; one at a time has it
             │  ▲
             ▼  │ leave: unfinished items wait again, with their progress; then the other stage's worker comes
           devices
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rlinf.core.errors import ChannelEmpty, ConfigError, DeadlineExceeded, RLinfError
from rlinf.scheduler.lending.allocations import DeviceAllocations, Released, Stage
from rlinf.scheduler.lending.demand import Demand
from rlinf.scheduler.lending.items import Item, Ledger, Result
from rlinf.scheduler.lending.policy import Move, MovePolicy
from rlinf.scheduler.transport.channel import Channel

LOOK_S = 0.01
"""How long the loop waits for a result before it looks at everything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A move that was made."""

    move: Move
    took_s: float
    """Until the giver had left the device; what the taker needs to come is in the trace."""
    items: int
    """That went on elsewhere, begun already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step came to."""

    items: list[Item]
    """As the last stage hands them on, by number."""
    moves: list[Moved]
    seconds: float
    counts: Mapping[str, int]
    """Stage → items that were done, each once."""
    twice: int
    """Results that came a second time, from workers that were killed just after they had sent one."""
    recovered: int
    """Items that were begun again because their worker was killed."""
    restarts: int
    """Workers that were started again."""


class Lender:
    """Plays steps; devices stay between two of them where they are, and come home when the next begins.

    Args:
        stages: in the order in which items pass them.
        home: stage → the devices that it has at the beginning of each step.
        policy: who decides.
        results: a channel of its own, hosted by the driver.
        timeout_s: seconds in which something must be done.

    Raises:
        ConfigError: a device is at home in two stages, or a stage has no worker on it.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        home: Mapping[str, Sequence[int]],
        policy: MovePolicy,
        results: Channel,
        *,
        timeout_s: float = 600.0,
    ) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._home = {device: name for name in self._stages for device in home.get(name, ())}
        self._policy, self._results, self._timeout_s = policy, results, timeout_s
        for name in home:
            if name not in self._stages:
                raise ConfigError("home", f"no stage '{name}'", f"Stages: {', '.join(self._stages)}.")
        if sum(map(len, home.values())) != len(self._home):
            raise ConfigError("home", "a device is at home in two stages", "Name each once.")
        self._devices = DeviceAllocations(self._stages, self._home, results)
        self._steps = 0

    def step(self, items: Iterable[Item], version: int) -> StepReport:
        """Brings items through all stages.

        Args:
            items: of the step.
            version: of the weights that every item must be worked on with.

        Raises:
            WorkerError: a worker failed, and is not started again.
            RLinfError: a worker has weights of another version, or an item was lost.
            DeadlineExceeded: nothing was done for too long.
        """
        self._steps += 1
        self._devices.begin(version)
        step = _Step(self._stages, self._devices, self._results, f"step {self._steps}", version)
        try:
            self._go_home()
            return step.run(list(items), self._policy, self._timeout_s)
        except BaseException:
            self._devices.end(failed=True)
            raise

    @property
    def where(self) -> dict[int, str]:
        """Device → the stage that has it, comes to it, or is still leaving it."""
        return {device: allocation.stage for device, allocation in self._devices.held.items()}

    def close(self) -> None:
        """All leave their devices; the groups live on."""
        self._devices.end(failed=False)

    def _go_home(self) -> None:
        for device, name in self._home.items():
            allocation = self._devices.held.get(device)
            if allocation is None:
                self._devices.allocate(device, name)
            elif allocation.leaving is not None:
                # The last step has ended before the device was left: it is on its way, and now home.
                allocation.leaving, allocation.left_at = Move(device, allocation.stage, name), time.monotonic()
            elif allocation.stage != name:
                self._devices.release(Move(device, allocation.stage, name))


class _Step:
    """One step under way."""

    def __init__(self, stages: Mapping[str, Stage], devices: DeviceAllocations, results: Channel, key: str, version: int) -> None:
        self.stages, self.devices, self.results = stages, devices, results
        self.key, self.version = key, version
        self.ledgers = {name: Ledger(name) for name in stages}
        self.after = dict(zip(stages, [*list(stages)[1:], None], strict=True))
        self.assigned: dict[tuple[str, int], float] = {}
        self.moves: list[Moved] = []
        self.recovered = self.restarts = 0
        self.began = self.newest = time.monotonic()

    def run(self, items: list[Item], policy: MovePolicy, timeout_s: float) -> StepReport:
        """Until the last stage is done with all items."""
        books = list(self.ledgers.values())
        # The ledgers have the order of the stages, in which items pass them.
        first, last = books[0], books[-1]
        first.add(items)
        while len(last.done) < len(items):
            self._dispatch()
            self._receive(LOOK_S)
            for released in self.devices.released():
                self._reassign(released)
            move = policy.next_move(self.demands())
            if move is not None:
                self.devices.release(move)
            if time.monotonic() - self.newest > timeout_s:
                where = {name: f"{len(book.waiting)} wait, {len(book.running)} run" for name, book in self.ledgers.items()}
                raise DeadlineExceeded(self.key, f"nothing was done in {timeout_s:g} s: {where}", "See what the workers do.")
        for book in self.ledgers.values():
            book.check(len(items))
        return StepReport(
            items=[last.done[number] for number in sorted(last.done)],
            moves=self.moves,
            seconds=time.monotonic() - self.began,
            counts={name: len(book.done) for name, book in self.ledgers.items()},
            twice=sum(book.twice for book in self.ledgers.values()),
            recovered=self.recovered,
            restarts=self.restarts,
        )

    def demands(self) -> list[Demand]:
        """What each stage has to do now."""
        found: list[Demand] = []
        coming, now = 0, time.monotonic()
        for name, stage in self.stages.items():
            book, own = self.ledgers[name], {d: held for d, held in self.devices.held.items() if held.next_stage == name}
            # Else two stages could hand a device back and forth, and neither would come to work on it.
            stay = stage.cost.load_s + stage.cost.offload_s
            demand = Demand(
                name=name,
                cost=stage.cost,
                slots=stage.slots,
                devices={device: len(book.on(device)) for device in own},
                waiting=len(book.waiting),
                work=sum(item.size for item in book.items()) - sum(item.units for item in book.items()),
                progress=self._progress(book, stage, now),
                coming=coming,
                fixed=frozenset(d for d, held in own.items() if held.leaving is not None or now - held.since < stay),
            )
            coming += len(book.waiting) + len(book.running)
            found.append(demand)
        return found

    def _progress(self, book: Ledger, stage: Stage, now: float) -> list[float]:
        """Units done of each running item, by the planner's cost: nobody is asked."""
        full = stage.cost.costs[1]
        beside = {device: len(book.on(device)) for device in self.devices.held}
        return [
            # A profile that was written by hand may have a cost of 0.
            item.units + (now - self.assigned[book.stage, number]) / max(full.seconds(max(1, beside.get(device, 1))), 1e-9)
            for number, (device, item) in book.running.items()
        ]

    def _dispatch(self) -> None:
        """Waiting items go to the devices of their stage with most room."""
        for name, book in self.ledgers.items():
            room = {
                device: self.stages[name].slots - len(book.on(device))
                for device, held in self.devices.held.items()
                if held.stage == name and held.leaving is None
            }
            given: dict[int, list[Item]] = {}
            while book.waiting and max(room.values(), default=0) > 0:
                device = max(room, key=lambda device: (room[device], -device))
                room[device] -= 1
                given.setdefault(device, []).append(book.assign(device))
            now = time.monotonic()
            for device, items in given.items():
                self.assigned |= {(name, item.number): now for item in items}
                self.devices.assign(device, self.key, items)

    def _receive(self, seconds: float) -> None:
        """Takes the results that are there; waits so long for the first."""
        with suppress(DeadlineExceeded):
            self._take(self.results.get(key=self.key, timeout=seconds))
        with suppress(ChannelEmpty):
            while True:
                self._take(self.results.get_nowait(key=self.key))

    def _take(self, result: Result) -> None:
        self.newest = time.monotonic()
        item, name = result.item, result.stage
        if item.versions != frozenset({self.version}):
            problem = f"item {item.number} was worked on with weights of versions {sorted(item.versions)} in a step of version"
            place = f"{name}, device {result.device}"
            raise RLinfError(place, f"{problem} {self.version}", "Give all workers the weights of a step before it begins.")
        if not self.ledgers[name].finish(item):
            return
        following = self.after[name]
        if following is not None:
            # Progress, units and versions are those of the stage that is done, and do not go on.
            new = Item(number=item.number, payload=item.payload, size=item.size)
            self.ledgers[following].add([new])

    def _reassign(self, released: Released) -> None:
        # What the worker had sent before it left comes first: what is done must not go on elsewhere.
        self._receive(0.0)
        book, now = self.ledgers[released.stage], time.monotonic()
        if released.failed:
            self.recovered, self.restarts = self.recovered + len(book.on(released.device)), self.restarts + 1
        cut = book.take_back(released.device, released.items)
        # A device that was left is progress, too: with long moves nothing else may happen for a while.
        self.newest = now
        # A device that was to go elsewhere when the step before ended may be at home.
        if released.move is None or released.move.taker == released.stage:
            self.devices.allocate(released.device, released.stage)
            return
        self.moves.append(Moved(move=released.move, took_s=now - released.asked_at, items=cut))
        self.devices.allocate(released.device, released.move.taker, giver=released.stage)
