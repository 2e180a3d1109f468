"""What this process is doing: the calls that it runs, and the waits in which its threads are blocked. Cheap; read by `watch`."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlinf.scheduler.transport.waiting import Wait

QUEUES = 4096
_NUMBERS = itertools.count()
_CALLS: dict[int, tuple[str, str, float]] = {}
"""By number: who, its method, and since when."""
_WAITS: dict[int, tuple[Wait, float, int]] = {}
"""What for, since when, and in which call."""
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
class Doing:
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


def doings(who: str) -> list[Doing]:
    """What `who` does in this process: each of its waits with the call that it is in, and its calls that wait for nothing."""
    now = time.monotonic()
    found: list[Doing] = []
    waiting: set[int] = set()
    for wait, since, call in list(_WAITS.values()):
        if wait.who == who:
            waiting.add(call)
            _, method, began = _CALLS.get(call, (who, "", since))
            found.append(Doing(method=method, seconds=now - began, blocked=_blocked(wait, since, now)))
    for call, (caller, method, began) in list(_CALLS.items()):
        if caller == who and call not in waiting:
            found.append(Doing(method=method, seconds=now - began, blocked=None))
    return found


def _blocked(wait: Wait, since: float, now: float) -> Blocked:
    try:
        queue = b"" if wait.queue is None else pickle.dumps(wait.queue, 5)
    except Exception:  # noqa: BLE001 - a key may be of any class; without its name the rest is still worth telling
        queue = b""
    return Blocked(goal=wait.goal, place=wait.place, seconds=now - since, host=wait.host, queue=queue, peers=wait.peers)
