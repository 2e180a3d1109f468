"""`Heartbeat`: while the driver waits for long, its log says now and then who waits for what."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator

from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.transport.waits import activities
from rlinf.scheduler.watch.graph import WaitGraph, merged
from rlinf.scheduler.workers.logs import WORKERS, Console

LOG = logging.getLogger(f"{WORKERS}.{DRIVER}")
"""Shown on the console as the workers' logs are."""
LINES = 16
LOOK_S = 1.0
FIRST_S = 3.0
"""How long the driver waits in silence while a run starts: nobody knows yet whether it goes on at all."""
AGAIN_S = 10.0
"""How long it is silent between two reports then."""
START_S = 30.0
"""For so long after its beginning a run counts as one that starts."""


class Heartbeat:
    """Watches the driver from a thread of its own.

    Args:
        wait_graph: who waits for whom now.
        seconds: how long the driver must have waited, and how long it is silent between two reports; 0 for no reports. Less
            while the run starts.
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
        began, said = time.monotonic(), -self._seconds
        while not self._stopped.wait(min(LOOK_S, self._seconds / 4)):
            starts = time.monotonic() - began < START_S
            least, pause = (min(self._seconds, FIRST_S), min(self._seconds, AGAIN_S)) if starts else (self._seconds, self._seconds)
            longest = max((doing.blocked.seconds for doing in activities(DRIVER) if doing.blocked), default=0.0)
            if longest >= least and time.monotonic() - said >= pause:
                said = time.monotonic()
                for line in report(self._wait_graph(), least):
                    LOG.info("%s", line)


@contextlib.contextmanager
def told(what: str, after_s: float = FIRST_S) -> Generator[None]:
    """Says what the driver does inside if that takes a while; for what comes before there is anyone to ask who waits for whom."""
    # The run's own console comes with its back-end, which is not there yet.
    console = Console()
    timer = threading.Timer(after_s, LOG.info, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        console.close()


def report(graph: WaitGraph, seconds: float) -> list[str]:
    """A line for each worker that has waited for so long, or does not answer; if there is none, for those that run."""
    driver = [waiter for waiter in graph.waiters if waiter.who == DRIVER and waiter.waited >= seconds]
    others = [waiter for waiter in graph.waiters if waiter.who != DRIVER]
    stuck = [waiter for waiter in others if waiter.waited >= seconds or (waiter.note and not waiter.waits)]
    lines = merged([*driver, *(stuck or [waiter for waiter in others if waiter.method])])
    return lines if len(lines) <= LINES else [*lines[:LINES], f"… and {len(lines) - LINES} more"]
