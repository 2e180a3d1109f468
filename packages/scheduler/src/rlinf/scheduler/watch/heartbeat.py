"""`Heartbeat`: while the driver waits for long, its log says now and then who waits for what."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.transport.waits import doings
from rlinf.scheduler.watch.graph import WaitGraph, merged
from rlinf.scheduler.workers.logs import WORKERS

LOG = logging.getLogger(f"{WORKERS}.{DRIVER}")
"""Shown on the console as the workers' logs are."""
LINES = 16
_LOOK_S = 1.0


class Heartbeat:
    """Watches the driver from a thread of its own.

    Args:
        wait_graph: who waits for whom now.
        seconds: how long the driver must have waited, and how long it is silent between two reports; 0 for no reports.
    """

    def __init__(self, wait_graph: Callable[[], WaitGraph], seconds: float) -> None:
        self._wait_graph = wait_graph
        self._seconds = seconds
        self._stopped = threading.Event()
        if seconds:
            threading.Thread(target=self._run, name="rlinf-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Says nothing any more."""
        self._stopped.set()

    def _run(self) -> None:
        said = -self._seconds
        while not self._stopped.wait(min(_LOOK_S, self._seconds / 4)):
            longest = max((doing.blocked.seconds for doing in doings(DRIVER) if doing.blocked), default=0.0)
            if longest >= self._seconds and time.monotonic() - said >= self._seconds:
                said = time.monotonic()
                for line in report(self._wait_graph(), self._seconds):
                    LOG.info("%s", line)


def report(graph: WaitGraph, seconds: float) -> list[str]:
    """A line for each worker that has waited for so long, or does not answer; if there is none, for those that run."""
    driver = [waiter for waiter in graph.waiters if waiter.who == DRIVER and waiter.waited >= seconds]
    others = [waiter for waiter in graph.waiters if waiter.who != DRIVER]
    stuck = [waiter for waiter in others if waiter.waited >= seconds or (waiter.note and not waiter.waits)]
    lines = merged([*driver, *(stuck or [waiter for waiter in others if waiter.method])])
    return lines if len(lines) <= LINES else [*lines[:LINES], f"… and {len(lines) - LINES} more"]
