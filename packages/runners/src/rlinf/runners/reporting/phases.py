"""The phases of an iteration: waiting for workers with a deadline, and how long each phase took."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rlinf.core.cluster.futures import Future, gather_within
from rlinf.core.errors import WorkerError
from rlinf.core.protocols import WorkerGroup


def within(timeout_s: float, *handles: Future[Any], beside: Sequence[Future[Any]] = ()) -> list[Any]:
    """What calls return within `runner.timeout_s`.

    Args:
        timeout_s: seconds.
        handles: the calls that are waited for.
        beside: calls that are under way meanwhile; should one of them fail, the wait ends.

    Raises:
        WorkerError: one failed; the first failure is the one that is raised.
        DeadlineExceeded: one took too long.
    """
    return gather_within(timeout_s, handles, remedy="Raise runner.timeout_s if this is normal.", beside=beside)


class Phases:
    """Waits for workers, and keeps the seconds of each phase since they were taken last.

    Args:
        timeout_s: seconds that one phase may take before the run is declared stuck.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seconds: dict[str, float] = {}
        self.recovered: Callable[[WorkerError], bool] | None = None
        """Makes up for the failure of a worker, and says whether it could: then the wait goes on. None: nobody does."""

    def wait(self, *handles: Future[Any], beside: Sequence[Future[Any]] = ()) -> list[Any]:
        """What the calls return; see `within`."""
        while True:
            try:
                return within(self._timeout_s, *handles, beside=beside)
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
        seconds, self._seconds = self._seconds, {}
        own = slowest_times(groups, self.wait(*[group.pop_execution_times() for group in groups]))
        return {**{f"time/{name}": taken for name, taken in seconds.items()}, **own}


def slowest_times(groups: Sequence[WorkerGroup[Any]], results: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """`time/<group>/<timer>`, the seconds of the slowest rank.

    Args:
        groups: the groups.
        results: of each group, what `pop_execution_times` returned on each rank.
    """
    slowest: dict[str, float] = {}
    for group, per_rank in zip(groups, results, strict=True):
        for times in per_rank:
            for timer, seconds in times.items():
                name = f"time/{group.name}/{timer}"
                slowest[name] = max(seconds, slowest.get(name, 0.0))
    return slowest
