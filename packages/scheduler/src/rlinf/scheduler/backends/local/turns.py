"""Turns between the tasks of one worker of the `local` back-end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from rlinf.core.errors import ChannelClosed
from rlinf.scheduler.backends.local.cooperative import CooperativeScheduler
from rlinf.scheduler.workers.loops import Ready, Select

IDLE_S = 0.001
"""How long nobody runs at a time while an async call waits for what others, or the world outside, will do."""


class CooperativeTurn:
    """Implements `Turn`: a task that waits lets the next one run."""

    def __init__(self, scheduler: CooperativeScheduler) -> None:
        self._scheduler = scheduler
        self._held = False

    def __enter__(self) -> None:
        if self._held:
            self._scheduler.idle(lambda: not self._held)
        self._held = True

    def __exit__(self, *exception: object) -> None:
        self._held = False

    def idle(self, select: Select, timeout: float | None, *, busy: bool) -> Ready:
        """See `Turn`. A loop without calls takes no part; one with calls looks again and again."""
        self.__exit__()
        try:
            return self._poll(select, timeout) if busy or timeout is not None else self._sleep(select)
        finally:
            self.__enter__()

    def until(self, ready: Callable[[], bool]) -> None:
        self._scheduler.idle(ready)

    def beside(self, name: str, body: Callable[[], None]) -> None:
        def run() -> None:
            with contextlib.suppress(ChannelClosed):
                body()

        self._scheduler.start(name, run)

    def _sleep(self, select: Select) -> Ready:
        ready: Ready = []

        def woken() -> bool:
            # Asked when others look for who can run: a select that blocks would stop them all.
            ready.extend(select(0))
            return bool(ready)

        self._scheduler.idle(woken)
        return ready

    def _poll(self, select: Select, timeout: float | None) -> Ready:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._scheduler.give_way()
            left = IDLE_S if end is None else min(IDLE_S, max(0.0, end - time.monotonic()))
            ready = select(left)
            if ready or (end is not None and time.monotonic() >= end):
                return ready
