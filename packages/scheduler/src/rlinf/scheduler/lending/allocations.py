"""`DeviceAllocations`: which stage has which device, and how a device goes from one to another."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlinf.core.errors import ConfigError, DeadlineExceeded, RLinfError, WorkerError
from rlinf.scheduler.lending.items import Item
from rlinf.scheduler.lending.policy import Move
from rlinf.scheduler.planner.workload import Component
from rlinf.scheduler.transport.channel import Channel
from rlinf.scheduler.workers.group import Handle, WorkerGroup

LATE_S = 1.0
"""How long after the end of a process its calls may take to fail, all in a moment as a rule."""
END_S = 60.0
"""How long workers may take to leave their devices at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A component through which every item passes."""

    group: WorkerGroup[Any]
    """Workers that derive from `LentWorker`, one on each device that the stage may ever have."""
    cost: Component
    """What the planner knows of it; `costs[1]` is seconds of a unit of length with n items on a device."""
    slots: int = 1
    """Items that a device works on at a time, as the workers' own `slots`."""

    def __post_init__(self) -> None:
        if 1 not in self.cost.costs:
            problem = f"expected the cost of a process with one device, found {sorted(self.cost.costs)}"
            raise ConfigError(f"{self.name}.costs", problem, "Processes of several devices do not lend them.")

    @property
    def name(self) -> str:
        """That of the group."""
        return self.group.name


@dataclass(slots=True)
class Allocation:
    """A device that a stage has."""

    stage: str
    handle: Handle[Any]
    restarts: int
    """Of the worker, when it came."""
    since: float
    leaving: Move | None = None
    left_at: float = 0.0

    @property
    def next_stage(self) -> str:
        """The stage that has the device, or will when it was left."""
        return self.stage if self.leaving is None else self.leaving.taker


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A device that its stage has left, as was asked or by a worker whose process ended."""

    device: int
    stage: str
    items: Sequence[Item]
    """That were not finished, and are known."""
    move: Move | None
    """None where the worker failed, and comes back to its device."""
    asked_at: float
    failed: bool


class DeviceAllocations:
    """Which stage has which device.

    Args:
        stages: by name.
        home: device → the stage that has it first.
        results: where workers report.
    """

    def __init__(self, stages: Mapping[str, Stage], home: Mapping[int, str], results: Channel) -> None:
        self._stages, self._results = stages, results
        self._ranks = {name: _ranks(stage.group) for name, stage in stages.items()}
        # Kept until they have ended: a failure that nobody waits for would end the run.
        self._calls: list[tuple[str, int, Handle[Any]]] = []
        self._version = 0
        self.held: dict[int, Allocation] = {}
        """By device."""
        for name, ranks in self._ranks.items():
            missing = sorted(set(home) - set(ranks))
            if missing:
                raise ConfigError("home", f"{name} has no worker on device {missing[0]}", "Place one worker of it on each device.")

    def begin(self, version: int) -> None:
        """A step begins: whoever comes to a device from now on has weights of this version."""
        self._version = version

    def allocate(self, device: int, name: str, giver: str = "") -> None:
        """A stage gets a device that nobody has."""
        handle = self._on(name, device).serve(self._results, self._version, giver)
        self.held[device] = Allocation(name, handle, self._restarts(name, device), time.monotonic())

    def release(self, move: Move) -> None:
        """Asks a stage to leave a device, for another; `released` says when it has.

        Raises:
            RLinfError: it does not have it.
        """
        allocation = self.held[move.device]
        if allocation.stage != move.giver or allocation.leaving is not None:
            way = "on its way to" if allocation.leaving else "with"
            problem = f"{move.giver} can't give device {move.device}, which is {way} {allocation.next_stage}"
            raise RLinfError("cluster.auto_scheduler", problem, "Change the policy.")
        allocation.leaving, allocation.left_at = move, time.monotonic()
        self._call(move.giver, move.device, "leave")

    def assign(self, device: int, key: str, items: Sequence[Item]) -> None:
        """Gives the worker on a device items."""
        self._call(self.held[device].stage, device, "assign", key, items)

    def released(self) -> list[Released]:
        """What has been left since this was asked last; nobody has these devices now.

        Raises:
            WorkerError: a worker failed, and is not started again.
        """
        found = [self._ended(device, allocation) for device, allocation in list(self.held.items()) if allocation.handle.done()]
        if not found:
            self._sweep()
        return found

    def end(self, *, failed: bool) -> None:
        """All leave.

        Args:
            failed: the step has failed already, and what fails now is no news.
        """
        deadline = time.monotonic() + END_S
        try:
            for device, allocation in self.held.items():
                if allocation.leaving is None:
                    self._call(allocation.stage, device, "leave")
            for allocation in self.held.values():
                allocation.handle.wait(max(0.0, deadline - time.monotonic()))
        except (WorkerError, DeadlineExceeded):
            if not failed:
                raise
        self.held.clear()
        self._calls.clear()

    def _ended(self, device: int, allocation: Allocation) -> Released:
        items: Sequence[Item] = ()
        failed = False
        try:
            (items,) = allocation.handle.wait()
        except WorkerError:
            # A process that was started again has nothing left of what it had; the ledger knows which items those were.
            if self._restarts(allocation.stage, device) == allocation.restarts:
                raise
            failed = True
            self._forgive(allocation.stage, device)
        del self.held[device]
        if allocation.leaving is None and not failed:
            raise RLinfError(f"{allocation.stage}, device {device}", "was left without being asked for", "See the worker's log.")
        asked = allocation.left_at if allocation.leaving else time.monotonic()
        return Released(device=device, stage=allocation.stage, items=items, move=allocation.leaving, asked_at=asked, failed=failed)

    def _call(self, name: str, device: int, method: str, *args: Any) -> None:
        self._calls.append((name, device, getattr(self._on(name, device), method)(*args)))

    def _forgive(self, name: str, device: int) -> None:
        """Takes the errors of the other calls to a process that has ended: one that nobody takes ends the run."""
        for call in [call for call in self._calls if call[:2] == (name, device)]:
            self._calls.remove(call)
            with suppress(WorkerError, DeadlineExceeded):
                call[2].wait(LATE_S)

    def _sweep(self) -> None:
        """Calls that have ended well are forgotten; the failure of one whose `serve` lives is the run's."""
        for call in [call for call in self._calls if call[2].done()]:
            self._calls.remove(call)
            name, device, handle = call
            try:
                handle.wait()
            except WorkerError:
                held = self.held.get(device)
                if held is not None and self._restarts(name, device) == held.restarts and not held.handle.done():
                    raise

    def _on(self, name: str, device: int) -> WorkerGroup[Any]:
        return self._stages[name].group.execute_on(self._ranks[name][device])

    def _restarts(self, name: str, device: int) -> int:
        return self._stages[name].group.restarts[self._ranks[name][device]]


def _ranks(group: WorkerGroup[Any]) -> dict[int, int]:
    """Device → rank."""
    return {info.devices[0]: info.rank for info in group.worker_infos if info.devices}
