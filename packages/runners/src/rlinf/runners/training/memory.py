"""What the parts of a worker take, written into the trace of the run for the planner."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rlinf.core.capabilities import HasMemory
from rlinf.core.process import resident
from rlinf.core.worker import Worker

SIMULATOR, SIMULATOR_PROCESSES = "simulator", "simulator processes"
"""What environments take in the worker's own process, and in others that belong to it."""


def record_memory(worker: Worker, whose: object) -> None:
    """Writes down what a trainer or a generator says; nothing if it says nothing, or without a trace."""
    if worker.records_memory and isinstance(whose, HasMemory):
        for part, size in whose.memory().items():
            worker.record_memory(part, size)


class SimulatorMemory:
    """By how much the process of a worker, and those below it, have grown while its environments were built and reset.

    Only then, as nothing else of the worker goes on then: on `local` other workers share the process.

    Args:
        worker: who has them.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._own = self._below = 0

    @contextmanager
    def growing(self) -> Generator[None]:
        """Inside, environments are built or reset."""
        if not self._worker.records_memory:
            yield
            return
        own, below = resident(children=False), resident(own=False)
        yield
        self._own += max(0, resident(children=False) - own)
        self._below += max(0, resident(own=False) - below)
        self._worker.record_memory(SIMULATOR, self._own)
        self._worker.record_memory(SIMULATOR_PROCESSES, self._below)
