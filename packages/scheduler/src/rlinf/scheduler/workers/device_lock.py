"""Device locks: first come, first served. A worker that wants several devices joins the lines of all of them at once.

A claim is granted when it is the first in all of its lines. All lines have the order in which the claims came, so that a claim
waits for earlier ones only: claims that overlap can't wait for each other in a circle, and nobody overtakes who wants many devices.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from rlinf.core.errors import DeadlineExceeded, RLinfError
from rlinf.scheduler.ranks import format_ranks
from rlinf.scheduler.transport.waits import Monitor, Wait, current_method
from rlinf.scheduler.workers.loops import in_own_thread

_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Claim:
    """One thread's claim to the devices of its worker."""

    owner: str
    """`rollout[1]`."""
    devices: tuple[int, ...]
    method: str = ""
    """What the worker was doing; "" outside of calls."""
    pid: int = field(default_factory=os.getpid)  # tells a process from the one that takes its place
    number: int = field(default_factory=lambda: next(_NUMBERS))
    """Tells the claims of one process apart."""


@dataclass(eq=False, slots=True)
class _Ticket:
    claim: Claim
    since: float
    """When it was granted, or else when it came."""
    held: bool = False

    def __str__(self) -> str:
        within = f", in {self.claim.method}()" if self.claim.method else ""
        return f"{self.claim.owner} (for {time.monotonic() - self.since:.0f} s{within})"


class Locks:
    """The locks of all devices of a cluster."""

    def __init__(self, monitor: Callable[[], Monitor]) -> None:
        self._monitor = monitor()
        self._tickets: dict[Claim, _Ticket] = {}
        self._lines: dict[int, deque[_Ticket]] = {}
        self._closed = ""

    def acquire(self, claim: Claim, wait: Wait) -> None:
        """Returns when the claim has all of its devices.

        Raises:
            DeadlineExceeded: the message says who holds the devices, for how long, and who waits in line.
            ChannelClosed: the locks were closed, or the claim was released while it waited.
        """
        with self._monitor:
            ticket = self._tickets[claim] = _Ticket(claim, time.monotonic())
            for device in claim.devices:
                self._lines.setdefault(device, deque()).append(ticket)
            try:
                self._monitor.wait_until(lambda: bool(self._closed) or claim not in self._tickets or self._first(ticket), wait)
            except DeadlineExceeded as error:
                why = self._describe(claim.devices, apart_from=ticket)
                self._leave([ticket])
                raise error.because(why) from None
            # Also when the monitor is interrupted: a ticket that stays in line would keep all behind it waiting.
            except BaseException:
                self._leave([ticket])
                raise
            if self._closed or claim not in self._tickets:
                self._leave([ticket])
                raise wait.closed(self._closed or f"{claim.owner} does not want it any more")
            ticket.since, ticket.held = time.monotonic(), True

    def release(self, claim: Claim) -> None:
        """Ends a claim that is held or waits in line; one that has ended stays so."""
        with self._monitor:
            self._leave([ticket for ticket in [self._tickets.get(claim)] if ticket])

    def forget(self, owner: str, pid: int) -> None:
        """A process is gone, and all of its claims with it."""
        with self._monitor:
            self._leave([ticket for claim, ticket in self._tickets.items() if (claim.owner, claim.pid) == (owner, pid)])

    def close(self, reason: str) -> None:
        """Ends every wait with `ChannelClosed`."""
        with self._monitor:
            self._closed = self._closed or reason
            self._monitor.changed()

    def ahead(self, owner: str) -> tuple[set[str], str]:
        """Who holds the devices that an owner waits for, and the same as text."""
        with self._monitor:
            waiting = [claim for claim, ticket in self._tickets.items() if claim.owner == owner and not ticket.held]
            devices = sorted({device for claim in waiting for device in claim.devices})
            holders = {self._lines[device][0].claim.owner for device in devices if self._lines[device][0].held}
            return holders, self._describe(devices)

    def _first(self, ticket: _Ticket) -> bool:
        return all(self._lines[device][0] is ticket for device in ticket.claim.devices)

    def _leave(self, tickets: Iterable[_Ticket]) -> None:
        for ticket in tickets:
            self._tickets.pop(ticket.claim, None)
            for device in ticket.claim.devices:
                line = self._lines.get(device)
                if line is not None and ticket in line:
                    line.remove(ticket)
                    if not line:
                        del self._lines[device]
        self._monitor.changed()

    def _describe(self, devices: Iterable[int], *, apart_from: _Ticket | None = None) -> str:
        """`device 0-1 is held by actor[0] (for 43 s, in train()), in line: env[0] (for 9 s, in step())`; equal lines only once."""
        standing: dict[str, list[int]] = {}
        for device in devices:
            line = self._lines.get(device, ())
            holder = next((f"held by {ticket}" for ticket in line if ticket.held), "free")
            waiting = ", ".join(str(ticket) for ticket in line if not ticket.held and ticket is not apart_from)
            standing.setdefault(holder + (f", in line: {waiting}" if waiting else ""), []).append(device)
        return "; ".join(f"device {format_ranks(ranks)} is {text}" for text, ranks in standing.items())


class LockService(Protocol):
    """Where a worker asks for its devices."""

    def acquire(self, claim: Claim, wait: Wait) -> None:
        """Blocks until the claim is granted."""
        ...

    def release(self, claim: Claim) -> None:
        """Ends the claim."""
        ...


class DeviceLock:
    """`with lock:` gives a worker its devices for itself, as `acquire` and `release` do. Without devices it does nothing.

    Re-entrant in the thread that holds it, or, in an async method, in the asyncio task: whoever holds it may enter again, and gives
    it back when it has left as often. Other threads and tasks of the worker wait in line as other workers do. In an async method,
    use `async with`, which leaves the event loop free. The lock of a process that fails is given back.

    Args:
        service: where claims are granted.
        owner: the worker, `rollout[1]`.
        devices: the global ranks of its accelerators.
        in_thread: whether `async with` may wait in a thread of its own.
    """

    def __init__(self, service: LockService, owner: str, devices: Iterable[int], *, in_thread: bool = True) -> None:
        self._service = service
        self._owner = owner
        self._devices = tuple(sorted(set(devices)))
        self._in_thread = in_thread
        self._held: dict[object, tuple[Claim, int]] = {}
        """By thread or task: its claim, and how often it has entered. Only one at a time has an entry."""

    def acquire(self, timeout: float | None = None) -> None:
        """Waits until the worker has its devices.

        Args:
            timeout: seconds; None is the cluster's `timeout_s`.

        Raises:
            DeadlineExceeded: the message says who holds them, for how long, in which method, and who waits in line.
            RLinfError: another task of the same event loop holds them, which would never come to give them back.
        """
        me = _holder()
        if self._entered_again(me):
            return
        if isinstance(me, asyncio.Task) and any(isinstance(other, asyncio.Task) for other in list(self._held)):
            problem = f"another task of {self._owner} holds the lock, and waiting here would stop it"
            raise RLinfError(self._place(), problem, "Use `async with`.")
        claim = Claim(self._owner, self._devices, current_method())
        self._service.acquire(claim, self._wait(timeout))
        self._held[me] = (claim, 1)

    def release(self) -> None:
        """Gives the devices back, once for each `acquire`.

        Raises:
            RLinfError: this thread or task does not hold them.
        """
        claim = self._left()
        if claim is not None:
            self._service.release(claim)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()

    async def __aenter__(self) -> None:
        me = _holder()
        if self._entered_again(me):
            return
        if not self._in_thread:
            self.acquire()
            return
        claim = Claim(self._owner, self._devices, current_method())
        granted = in_own_thread(self._service.acquire, claim, self._wait(None))
        try:
            await asyncio.shield(granted)
        except asyncio.CancelledError:
            # Its thread runs on. The release below ends its wait; the callback's is for a claim that comes only after that.
            granted.add_done_callback(lambda done: None if done.exception() else in_own_thread(self._service.release, claim))
            in_own_thread(self._service.release, claim)
            raise
        self._held[me] = (claim, 1)

    async def __aexit__(self, *exception: object) -> None:
        claim = self._left()
        if claim is not None and self._in_thread:
            await asyncio.shield(in_own_thread(self._service.release, claim))
        elif claim is not None:
            self._service.release(claim)

    def _entered_again(self, me: object) -> bool:
        """Whether there is nothing to wait for."""
        if me in self._held:
            claim, depth = self._held[me]
            self._held[me] = (claim, depth + 1)
            return True
        return not self._devices

    def _left(self) -> Claim | None:
        """The claim to release; None if the holder is still inside."""
        if not self._devices:
            return None
        me = _holder()
        if me not in self._held:
            raise RLinfError(self._place(), f"{self._owner} releases a lock that this thread does not hold", "Acquire it first.")
        claim, depth = self._held.pop(me)
        if depth > 1:
            self._held[me] = (claim, depth - 1)
            return None
        return claim

    def _place(self) -> str:
        return f"device {format_ranks(self._devices)}"

    def _wait(self, timeout: float | None) -> Wait:
        return Wait(self._owner, self._place(), "the lock", timeout)


def _holder() -> object:
    """Who acquires: the asyncio task if there is one, else the thread."""
    # Without a running loop, `current_task` raises.
    with suppress(RuntimeError):
        task = asyncio.current_task()
        if task is not None:
            return task
    return threading.current_thread()
