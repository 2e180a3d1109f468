"""Waits: each has a deadline and says who waits for what; and what this process is doing, calls and waits, which `watch` reads."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from rlinf.core.cluster.futures import LONGER, check_timeout
from rlinf.core.errors import ChannelClosed, DeadlineExceeded


def longer(timeout: float | None) -> str:
    """What to do about a wait that took too long, if its caller gave it this timeout; None: the cluster's own."""
    return "Raise cluster.timeout_s if this is normal." if timeout is None else LONGER


@dataclass(frozen=True, slots=True)
class Wait:
    """Who waits for what, and how long."""

    who: str
    """`rollout[1]`, or `driver`."""
    place: str
    """`channel 'env', key 0`."""
    goal: str
    """`an item`, `room`, …; `it to return` if what is waited for is an event of the place itself."""
    timeout: float | None = None
    """Seconds; None is the cluster's `timeout_s`."""
    host: str = ""
    """The address of the process that has the queue; for the wait graph, as are the next two."""
    queue: Hashable = None
    """Which queue there."""
    peers: tuple[str, ...] = ()
    """Who can end the wait, if they are known: `rollout[1]`, …"""

    def __post_init__(self) -> None:
        check_timeout(self.timeout, f"{self.place}: timeout")

    def seconds(self, default_s: float) -> float:
        """How long it may take; `default_s` is the cluster's `timeout_s`."""
        return default_s if self.timeout is None else self.timeout

    def expired(self, seconds: float, why: str = "") -> DeadlineExceeded:
        """The error of a wait that reached its deadline."""
        problem = f"{self.who} waited {seconds:g} s for {self.goal} in vain"
        return DeadlineExceeded(self.place, problem, longer(self.timeout)).because(why)

    def deadlocked(self, remedy: str) -> DeadlineExceeded:
        """The error of a wait whose deadline nobody waits for, because nobody is left who could end it before."""
        return DeadlineExceeded(self.place, f"{self.who} waits for {self.goal} in vain: every other task waits, too", remedy)

    def closed(self, reason: str) -> ChannelClosed:
        """The error of a wait that nobody will end any more."""
        return ChannelClosed(self.place, f"{self.who} can't get {self.goal}: {reason}")


QUEUES = 4096
"""Who used a queue last is remembered for so many queues."""
# Its `next` is atomic, as are single operations on the tables below: no lock is needed.
_NUMBERS = itertools.count()
_CALLS: dict[int, tuple[str, str, float]] = {}
"""By number: who, its method, and since when."""
_WAITS: dict[int, tuple[Wait, float, int]] = {}
"""What for, since when, and in which call."""
# A context variable, because each asyncio task of a thread is in a call of its own.
_CALL: ContextVar[int] = ContextVar("rlinf_call", default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A wait, as others see it."""

    goal: str
    place: str
    seconds: float
    """For how long so far."""
    host: str = ""
    """The address of the process that has the queue; "" if it is no wait for a queue."""
    queue: bytes = b""
    """The queue's name, pickled, so that only who knows its classes need load it."""
    peers: tuple[str, ...] = ()
    """Who can end the wait, if they are known: `rollout[1]`, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What one thread of a process, or asyncio task, does."""

    method: str
    """The call that it runs; "" outside of calls."""
    seconds: float
    """For how long so far."""
    blocked: Blocked | None
    """What it waits for; None if it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Who used a queue last."""

    size: int
    """How many items are there."""
    putter: str = ""
    """`env[0]`; "" if nobody has put anything."""
    put_s: float = 0.0
    """How long ago."""
    getter: str = ""
    got_s: float = 0.0

    def describe(self, *, for_room: bool) -> tuple[str, str]:
        """Who was the last to do what a wait waits for, and the same as text.

        Args:
            for_room: the wait is one for room, which a get makes; else for an item.
        """
        there = f"{self.size} {'item' if self.size == 1 else 'items'} there, " if self.size else ""
        who, seconds, done = (self.getter, self.got_s, "got") if for_room else (self.putter, self.put_s, "put")
        return who, there + (f"last {done} by {who} {seconds:.0f} s ago" if who else f"nobody has {done} any")


class Uses:
    """Who put into and got from the queues of one process last. Forgets all when there are too many queues."""

    def __init__(self) -> None:
        self._puts: dict[Hashable, tuple[str, float]] = {}
        self._gets: dict[Hashable, tuple[str, float]] = {}

    def note(self, queue: Hashable, who: str, *, put: bool) -> None:
        """Somebody has put an item in, or has taken some."""
        table = self._puts if put else self._gets
        if len(table) >= QUEUES:
            table.clear()
        table[queue] = (who, time.monotonic())

    def of(self, queue: Hashable, size: int) -> Use:
        """The last use of a queue that has `size` items."""
        now = time.monotonic()
        putter, put = self._puts.get(queue, ("", now))
        getter, got = self._gets.get(queue, ("", now))
        return Use(size=size, putter=putter, put_s=now - put, getter=getter, got_s=now - got)


@contextmanager
def calling(who: str, method: str) -> Generator[None]:
    """A call runs inside."""
    number = next(_NUMBERS)
    _CALLS[number] = (who, method, time.monotonic())
    token = _CALL.set(number)
    try:
        yield
    finally:
        _CALL.reset(token)
        del _CALLS[number]


def current_method() -> str:
    """The method of the call that this thread, or this asyncio task, runs; "" outside of calls."""
    return _CALLS.get(_CALL.get(), ("", "", 0.0))[1]


def begin(wait: Wait, since: float | None = None) -> int:
    """This thread, or asyncio task, blocks from now on; returns a number for `end`.

    Args:
        wait: who waits for what.
        since: when it began, by `time.monotonic()`, if this is the next slice of a longer wait.
    """
    number = next(_NUMBERS)
    _WAITS[number] = (wait, time.monotonic() if since is None else since, _CALL.get())
    return number


def end(number: int) -> None:
    """It runs again."""
    del _WAITS[number]


@contextmanager
def blocking(wait: Wait) -> Generator[None]:
    """This thread, or asyncio task, blocks inside."""
    number = begin(wait)
    try:
        yield
    finally:
        end(number)


def activities(who: str) -> list[Activity]:
    """What `who` does in this process: each of its waits with the call that it is in, and its calls that wait for nothing."""
    now = time.monotonic()
    found: list[Activity] = []
    waiting: set[int] = set()
    # A copy: other threads begin and end waits meanwhile.
    for wait, since, call in list(_WAITS.values()):
        if wait.who == who:
            waiting.add(call)
            _, method, began = _CALLS.get(call, (who, "", since))
            found.append(Activity(method=method, seconds=now - began, blocked=_blocked(wait, since, now)))
    for call, (caller, method, began) in list(_CALLS.items()):
        if caller == who and call not in waiting:
            found.append(Activity(method=method, seconds=now - began, blocked=None))
    return found


def _blocked(wait: Wait, since: float, now: float) -> Blocked:
    try:
        queue = b"" if wait.queue is None else pickle.dumps(wait.queue, 5)
    except Exception:  # noqa: BLE001 - a key may be of any class; without its name the rest is still worth telling
        queue = b""
    return Blocked(goal=wait.goal, place=wait.place, seconds=now - since, host=wait.host, queue=queue, peers=wait.peers)


class Monitor(Protocol):
    """A lock, and a wait for a condition under it. Enter it before anything else."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exception: object) -> None: ...

    def wait_until(self, ready: Callable[[], bool], wait: Wait) -> None:
        """Waits until `ready()`; raises `DeadlineExceeded` at the deadline."""
        ...

    def changed(self) -> None:
        """Something changed that others may wait for."""
        ...

    def give_way(self) -> None:
        """Called before a look at something, so that those may run who would change it."""
        ...

    @property
    def cooperative(self) -> bool:
        """Whether only one task of the process runs at a time, so that a foreign event loop would keep others waiting."""
        ...


class ThreadMonitor:
    """A monitor for threads."""

    cooperative = False

    def __init__(self, default_s: float) -> None:
        self._default_s = default_s
        self._condition = threading.Condition()  # re-entrant: a finaliser may end the very wait that it interrupts

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(self, *exception: object) -> None:
        self._condition.release()

    def wait_until(self, ready: Callable[[], bool], wait: Wait) -> None:
        if ready():
            return
        seconds = wait.seconds(self._default_s)
        deadline = time.monotonic() + seconds
        number = begin(wait)
        try:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise wait.expired(seconds)
                self._condition.wait(left)
        finally:
            end(number)

    def changed(self) -> None:
        self._condition.notify_all()

    def give_way(self) -> None:
        """Other threads run anyway."""
