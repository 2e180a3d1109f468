"""A call of one method on one worker: what it gave, and how the caller learns of it."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlinf.core.errors import ConfigError, DeadlineExceeded, RefusedByWorker, RLinfError, WorkerError, error_text, is_secondary
from rlinf.core.worker.context import WorkerInfo as WorkerInfo
from rlinf.core.worker.timers import timers_of_call
from rlinf.scheduler.workers.tracebacks import folded, says_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a worker's call raised, as text, since its type may not exist at the caller's."""

    problem: str
    """`ValueError: the message`."""
    traceback: str
    """And the last lines of the worker's log."""
    folded: str
    """The traceback with the frames of this project folded."""
    secondary: bool
    """It is the consequence of another failure."""
    refused: bool = False
    """It is a configuration value that can't be used."""
    told: bool = False
    """The problem says all there is to know; see `says_all`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call ended."""

    value: Any
    """What it returned; None if it failed."""
    seconds: float
    """How long it ran."""
    timers: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds by tag of the worker's timers that ended in it."""
    failure: Failure | None = None
    """What it raised; None if it returned."""


class RankCall(Protocol):
    """A call on one rank. Satisfies `rlinf.core.cluster.futures.Future[Outcome]`."""

    @property
    def label(self) -> str:
        """`rollout[1].generate()`."""
        ...

    def wait(self, timeout: float | None = None) -> Outcome:
        """The outcome; raises `WorkerError` if the call failed, `DeadlineExceeded` after `timeout` seconds."""
        ...

    def done(self) -> bool:
        """Whether the call has ended, well or not."""
        ...

    def failed(self) -> bool:
        """Whether it has ended in a failure; nobody is taken to know of it by that."""
        ...

    def forgive(self) -> None:
        """The caller knows that the call, or one beside it, has failed: its failure is no news for the rest of the run."""
        ...

    def explain(self, error: DeadlineExceeded | WorkerError) -> None:
        """Adds to the error of a wait for it what the cluster knows of why."""
        ...

    def state(self) -> str:
        """What keeps the worker's process from running, if anything is known to."""
        ...


class Process(Protocol):
    """What a group needs of one of its workers."""

    @property
    def info(self) -> WorkerInfo:
        """Where it is."""
        ...

    def submit(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RankCall:
        """Puts a call at the end of the worker's line."""
        ...

    @property
    def restarts(self) -> int:
        """How often it was started again after it had failed."""
        ...


SHUT_DOWN = "its group was shut down"


def ended(place: str) -> RLinfError:
    """The error of a call of a group that was shut down."""
    return RLinfError(place, SHUT_DOWN, "Launch the group again.")


class Unsendable(RLinfError, NotImplementedError):
    """A method yields its results, which a call can't carry."""

    @classmethod
    def of(cls, place: str) -> Unsendable:
        """The error of a method that is a generator."""
        return cls(place, "it yields its results, but a call returns once", "Return a list, or put each result into a channel.")


def perform(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, last_words: Callable[[], str] | None = None
) -> Outcome:
    """Runs a call in the worker; whatever it raises, `SystemExit` too, becomes a `Failure`.

    `last_words` gives what should follow its traceback.
    """
    start = time.perf_counter()
    with timers_of_call() as timers:
        try:
            value = _carried(function(*args, **kwargs), function)
        except BaseException as error:  # noqa: BLE001 - a worker's failure is reported, not interpreted
            return _failed(error, start, timers, last_words)
    return Outcome(value=value, seconds=time.perf_counter() - start, timers=timers)


async def perform_async(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, last_words: Callable[[], str] | None = None
) -> Outcome:
    """The same for an async method; its seconds include those in which it waited."""
    start = time.perf_counter()
    with timers_of_call() as timers:
        try:
            value = await function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - a worker's failure is reported, not interpreted
            return _failed(error, start, timers, last_words)
    return Outcome(value=value, seconds=time.perf_counter() - start, timers=timers)


def _failed(error: BaseException, start: float, timers: Mapping[str, float], last_words: Callable[[], str] | None) -> Outcome:
    failure = Failure(
        # `Handle` tells by the beginning that a wait in the worker has reached its deadline.
        problem=error_text(error),
        traceback="".join(traceback.format_exception(error)) + ("" if last_words is None else last_words()),
        folded=folded(error),
        secondary=is_secondary(error),
        refused=isinstance(error, ConfigError),
        told=says_all(error),
    )
    return Outcome(value=None, seconds=time.perf_counter() - start, timers=timers, failure=failure)


def _carried(value: Any, function: Callable[..., Any]) -> Any:
    """The value, if a call can carry it."""
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise Unsendable.of(f"{name}()")
    if inspect.iscoroutine(value):
        # Else Python would warn that it was never awaited.
        value.close()
        raise Unsendable(f"{name}()", "it returned a coroutine, but is no `async def`", "Decorate it with what is async, too.")
    return value


def checked(outcome: Outcome, info: WorkerInfo, method: str) -> Outcome:
    """The outcome if the call returned.

    Raises:
        WorkerError: the call failed.
    """
    failure = outcome.failure
    if failure is None:
        return outcome
    kind = RefusedByWorker if failure.refused else WorkerError
    raise kind(
        info.group,
        info.rank,
        method,
        # A worker that names itself in an error of ours is named already.
        failure.problem.removeprefix(f"{RLinfError.__name__}: {info.label}: "),
        remote_traceback=failure.traceback,
        folded=failure.folded,
        secondary=failure.secondary,
        told=failure.told,
    )
