"""How a thread or a task waits until something changes; every wait has a deadline and says what it waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from rlinf.core.errors import ChannelClosed, DeadlineExceeded
from rlinf.core.futures import LONGER, check_timeout
from rlinf.scheduler.transport import activity


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
    """`an item`, `room`, …"""
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

    def expired(self, seconds: float, why: str = "") -> DeadlineExceeded:
        """The error of a wait that reached its deadline."""
        problem = f"{self.who} waited {seconds:g} s for {self.goal} in vain"
        return DeadlineExceeded(self.place, problem, longer(self.timeout)).because(why)

    def hopeless(self, remedy: str) -> DeadlineExceeded:
        """The error of a wait whose deadline nobody waits for, because nobody is left who could end it before."""
        return DeadlineExceeded(self.place, f"{self.who} waits for {self.goal} in vain: every other task waits, too", remedy)

    def closed(self, reason: str) -> ChannelClosed:
        """The error of a wait that nobody will end any more."""
        return ChannelClosed(self.place, f"{self.who} can't have {self.goal}: {reason}")


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


class ThreadMonitor:
    """A monitor for threads."""

    def __init__(self, default_s: float) -> None:
        self._default_s = default_s
        self._condition = threading.Condition()  # re-entrant: a finaliser may end the very wait that it interrupts

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(self, *exception: object) -> None:
        self._condition.release()

    def wait_until(self, ready: Callable[[], bool], wait: Wait) -> None:
        """See `Monitor`."""
        if ready():
            return
        seconds = self._default_s if wait.timeout is None else wait.timeout
        deadline = time.monotonic() + seconds
        number = activity.begin(wait)
        try:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise wait.expired(seconds)
                self._condition.wait(left)
        finally:
            activity.end(number)

    def changed(self) -> None:
        """See `Monitor`."""
        self._condition.notify_all()
