"""The phases of an iteration: waiting for workers with a deadline, and how long each phase took."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from rlinf.core.cluster.futures import Future, gather_within
from rlinf.core.errors import DeadlineExceeded, WorkerError
from rlinf.core.protocols import WorkerGroup


class Phases:
    """Waits for workers, and keeps the seconds of each phase since they were taken last.

    Args:
        timeout_s: `runner.timeout_s`, seconds that one phase may take before the run is declared stuck.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seconds: dict[str, float] = {}
        self.recovered: Callable[[WorkerError], bool] | None = None
        """Makes up for the failure of a worker, and says whether it could: then the wait goes on. None: nobody does."""

    def wait(self, *handles: Future[Any], beside: Sequence[Future[Any]] = ()) -> list[Any]:
        """What calls return.

        Args:
            handles: the calls that are waited for.
            beside: calls that are under way meanwhile; should one of them fail, the wait ends.

        Raises:
            WorkerError: one failed, and nobody made up for it; the first failure is the one that is raised.
            DeadlineExceeded: one took too long.
        """
        while True:
            try:
                return gather_within(self._timeout_s, handles, remedy="Raise runner.timeout_s if this is normal.", beside=beside)
            except WorkerError as error:
                if self.recovered is None or not self.recovered(error):
                    raise

    def timed(self, name: str, *handles: Future[Any], beside: Sequence[Future[Any]] = ()) -> list[Any]:
        """The same, as a phase of that name."""
        with self.phase(name):
            return self.wait(*handles, beside=beside)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Inside is a phase of that name."""
        began = time.monotonic()
        yield
        self._seconds[name] = time.monotonic() - began

    def take(self, groups: Sequence[WorkerGroup[Any]]) -> dict[str, float]:
        """`time/<phase>`, and `time/<group>/<timer>`, what the workers' own timers say: the slowest rank's."""
        found, self._seconds = {f"time/{name}": taken for name, taken in self._seconds.items()}, {}
        for group, per_rank in zip(groups, self.wait(*[group.pop_execution_times() for group in groups]), strict=True):
            for timer, seconds in (item for times in per_rank for item in times.items()):
                name = f"time/{group.name}/{timer}"
                found[name] = max(seconds, found.get(name, 0.0))
        return found


def failed(call: Future[Any]) -> bool:
    """Whether a call ended with its worker's failure, which is not reported as unhandled then."""
    try:
        call.wait(timeout=0.0)
    except WorkerError:
        return True
    except DeadlineExceeded:
        return False
    return False
