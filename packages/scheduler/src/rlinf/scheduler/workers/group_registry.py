"""`GroupRegistry`: what the driver does for workers that call other groups: it sends their calls, and hands on how they ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlinf.core.errors import RLinfError, UnknownName, WorkerError, did_you_mean
from rlinf.scheduler.workers.calls import Process, RankCall


class GroupRegistry:
    """The driver's. Calls go through it, so that their order, their restarts and their failures are those of any other call.

    Args:
        timeout_s: the default deadline of a call.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._groups: dict[str, tuple[type[Any], Sequence[Process]]] = {}
        self._calls: dict[int, RankCall] = {}
        """Those whose results their callers may still take, and what each has taken since its last call."""
        self._numbers = itertools.count()
        self.over: Callable[[], bool] = lambda: False
        """Whether the run has ended."""

    def add(self, name: str, worker: type[Any], processes: Sequence[Process]) -> None:
        """A group was launched."""
        self._groups[name] = worker, processes

    def remove(self, name: str) -> None:
        """A group was shut down."""
        del self._groups[name]

    def answer(self, *question: Any) -> Any:
        """Answers a process; see `remote_groups`."""
        try:
            return self._answer(*question)
        except WorkerError as error:
            # What ended the run is known: whoever fails by it must not hide it.
            error.secondary = error.secondary or self.over()
            raise

    def _answer(self, *question: Any) -> Any:
        match question:
            case ("find", name):
                worker, processes = self._find(name)
                kinds = [kind_of(base) for base in worker.__mro__]
                infos = [(process.info, process.restarts) for process in processes]
                return kinds, infos, self._timeout_s
            case ("begin", name, index, method, args, kwargs, settled):
                for number in settled:
                    self._calls.pop(number, None)
                process: Process = self._find(str(name))[1][int(index)]
                call = process.submit(method, args, kwargs)
                number = next(self._numbers)
                self._calls[number] = call
                return number
            case ("wait", number, timeout):
                return self._calls[number].wait(timeout)
            case ("state", number):
                call = self._calls[number]
                return call.done(), call.failed(), call.state()
            case ("forgive", number):
                return self._calls[number].forgive()
            case other:
                raise RLinfError("groups", f"unknown question {other!r}")

    def _find(self, name: str) -> tuple[type[Any], Sequence[Process]]:
        if name not in self._groups:
            raise not_launched(name, self._groups)
        return self._groups[name]


def kind_of(worker: type[Any]) -> str:
    """A class by name, which two processes may each have imported for themselves."""
    return f"{worker.__module__}.{worker.__qualname__}"


def not_launched(name: str, known: Mapping[str, object]) -> UnknownName:
    """There is no group of that name."""
    return UnknownName(f"group '{name}'", "it was not launched", did_you_mean(name, list(known), label="Launched"))
