"""Handles of what goes on by itself: `Pending` of a put or a get, `Work` of a function; and functions that run in order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from rlinf.core.errors import ChannelEmpty, ChannelFull, DeadlineExceeded, EndOfStream, RLinfError
from rlinf.scheduler.transport import waits
from rlinf.scheduler.transport.encoding import Blobs
from rlinf.scheduler.transport.waits import Monitor, ThreadMonitor, Wait
from rlinf.scheduler.workers.loops import WorkerLoop

R = TypeVar("R")
Problem: TypeAlias = tuple[str, str]
"""Why an operation failed: `closed`, `end`, `empty`, `full` or `cancelled`; and the reason."""


def failure(problem: Problem, wait: Wait) -> RLinfError:
    """The error of a put or a get that failed."""
    kind, reason = problem
    if kind == "end":
        return EndOfStream(wait.place, f"{wait.who} can't get {wait.goal}: {reason}, and all items were taken")
    if kind == "empty":
        return ChannelEmpty(wait.place, f"{wait.who} found no item")
    if kind == "full":
        return ChannelFull(wait.place, f"{wait.who} found no room")
    if kind == "cancelled":
        return RLinfError(wait.place, f"{wait.who} cancelled its wait for {wait.goal}")
    return wait.closed(reason)


class Operation(Protocol):
    """A put or a get under way, in this process or to another one."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        ...

    @property
    def problem(self) -> Problem | None:
        """Why it failed; None if it did not, or is not done."""
        ...

    @property
    def monitor(self) -> Monitor:
        """How this thread or task waits."""
        ...

    def detach(self) -> None:
        """No thread waits for it from now on: it must go on by itself."""
        ...

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls back once when it is done, perhaps at once, in any thread."""
        ...

    def wait(self, wait: Wait) -> None:
        """Returns when it is done; at the deadline it goes on, and `DeadlineExceeded` is raised."""
        ...

    def take(self, wait: Wait) -> list[Blobs]:
        """What it gave, which is the caller's from now on; raises what it failed with."""
        ...

    def expire(self, error: DeadlineExceeded) -> None:
        """Its deadline has come: cancels it, and raises the error with what is known of its queue, unless it is done after all."""
        ...

    def cancel(self) -> bool:
        """Undoes it; False if it is a put that is done, or a get that failed."""
        ...

    def abandon(self) -> None:
        """Undoes a get. Safe in a finaliser, whatever its thread was doing."""
        ...


class Done:
    """A put that was on its way when it was made, or that failed then. Satisfies `Operation`."""

    done = True
    monitor: Monitor = ThreadMonitor(0.0)

    def __init__(self, error: Exception | None = None) -> None:
        self.problem = None if error is None else ("closed", str(error))
        self._error = error

    def detach(self) -> None:
        """It needs no thread."""

    def when_done(self, callback: Callable[[], None]) -> None:
        callback()

    def wait(self, wait: Wait) -> None:
        """Returns at once."""

    def take(self, wait: Wait) -> list[Blobs]:
        if self._error is not None:
            raise self._error
        return []

    def expire(self, error: DeadlineExceeded) -> None:
        """It was done before."""

    def cancel(self) -> bool:
        return False

    def abandon(self) -> None:
        """There is nothing left to undo."""


SENT: Operation = Done()


def complete(operation: Operation, wait: Wait) -> list[Blobs]:
    """Waits for an operation that nobody else waits for; what it can't finish, it undoes."""
    if not operation.done:
        try:
            operation.wait(wait)
        except DeadlineExceeded as error:
            operation.expire(error)
        except BaseException:
            operation.cancel()  # an interrupt, too: what came later would be lost
            raise
    return operation.take(wait)


class Pending(Generic[R]):
    """A put or a get under way, or done. Satisfies `rlinf.core.cluster.futures.Future[R]`, and can be awaited.

    What a get has taken goes back to its place in the queue if the handle is cancelled or dropped before anybody has asked it for
    the result, or if the process ends. A put goes on without its handle.

    Args:
        operation: what is under way.
        wait: who waits for what; its timeout is that of a `wait` without one.
        result: makes the result of what the operation gave.
    """

    def __init__(self, operation: Operation, wait: Wait, result: Callable[[list[Blobs]], R]) -> None:
        self._operation = operation
        self._wait = wait
        self._made = result
        self._settling = threading.Lock()
        self._settled = False
        self._value: Any = None
        self._error: Exception | None = None
        operation.detach()

    @property
    def label(self) -> str:
        """What goes on: `recv from actor[0], tag ''`."""
        return self._wait.place

    def wait(self, timeout: float | None = None) -> R:
        """The item of a get, or None of a put.

        Args:
            timeout: seconds; None is what the operation was given, else the cluster's `timeout_s`.

        Raises:
            DeadlineExceeded: it is not done yet; it goes on.
            RLinfError: what the operation itself would have raised.
        """
        if not self._settled:
            self._operation.wait(self._wait if timeout is None else replace(self._wait, timeout=timeout))
        return self._result()

    async def async_wait(self) -> R:
        """The same as `await work`."""
        return await self

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        if not self._settled and not self._operation.done:
            self._operation.monitor.give_way()
        return self._settled or self._operation.done

    def then(self, function: Callable[[], None]) -> None:
        """Calls a function when it has ended, at once if it has; in the thread that ends it."""
        self._operation.when_done(function)

    def cancel(self) -> bool:
        """Gives the operation up: a get leaves its item in the queue, a put does not add its own.

        Returns:
            Whether it was given up; False if its result was asked for before, or its item was put.
        """
        with self._settling:
            if self._settled or not self._operation.cancel():
                return False
            self._settled = True
            self._error = failure(("cancelled", ""), self._wait)
        return True

    def __await__(self) -> Generator[Any, None, R]:
        if self._operation.monitor.cooperative and not isinstance(asyncio.get_running_loop(), WorkerLoop):
            return self.wait()  # nobody else could run in a loop that takes no part in the cluster
        try:
            yield from _until_called(self.then, self._wait)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._result()

    def __del__(self) -> None:
        if not self.__dict__.get("_settled", True):  # no operation if the constructor failed
            self._operation.abandon()

    def _result(self) -> R:
        with self._settling:
            if not self._settled:
                self._settled = True
                try:
                    self._value = self._made(self._operation.take(self._wait))
                except Exception as error:  # noqa: BLE001 - raised below, and whenever the result is asked for
                    self._error = error
        if self._error is not None:
            raise self._error
        return self._value


class Work(Generic[R]):
    """A function that runs beside its caller. Satisfies `rlinf.core.cluster.futures.Future[R]`, and can be awaited.

    Args:
        wait: who waits for what, for messages.
        timeout_s: the default deadline of a wait.
    """

    def __init__(self, wait: Wait, timeout_s: float) -> None:
        self._wait = wait
        self._monitor = ThreadMonitor(timeout_s)
        self._ended = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._then: list[Callable[[], None]] = []

    @property
    def label(self) -> str:
        """What goes on: `send to actor[0], tag ''`."""
        return self._wait.place

    def wait(self, timeout: float | None = None) -> R:
        """The result; what the function raised is raised.

        Args:
            timeout: seconds; None is the cluster's `timeout_s`.

        Raises:
            DeadlineExceeded: it is not done yet; it goes on.
        """
        with self._monitor:
            self._monitor.wait_until(lambda: self._ended, replace(self._wait, timeout=timeout))
        return self._result()

    async def async_wait(self) -> R:
        """The same as `await work`."""
        return await self

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended

    def then(self, function: Callable[[], None]) -> None:
        """Calls a function when it has ended, at once if it has; in the thread that ends it."""
        with self._monitor:
            if not self._ended:
                self._then.append(function)
                return
        function()

    def __await__(self) -> Generator[Any, None, R]:
        yield from _until_called(self.then, self._wait)
        return self._result()

    def run(self, function: Callable[[], R]) -> None:
        """Runs the function, whose result or failure is that of the work."""
        try:
            value: Any = function()
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            self._error = error
            value = None
        self.finish(value)

    def finish(self, value: R) -> None:
        """It has ended with a result."""
        self._value = value
        with self._monitor:
            self._ended = True
            then, self._then = self._then, []
            self._monitor.changed()
        for call in then:
            call()

    def _result(self) -> R:
        if self._error is not None:
            raise self._error
        return self._value


class AllOf:
    """Ends with the last of several handles, or with the first failure among them, in their order; its result is given.

    Args:
        works: the handles.
        result: its result.
        label: what goes on.
    """

    def __init__(self, works: Sequence[Any], result: Any, label: str) -> None:
        self._works = works
        self._result = result
        self.label = label

    def done(self) -> bool:
        """Whether all have ended."""
        return all(work.done() for work in self._works)

    def wait(self, timeout: float | None = None) -> Any:
        """The result; see `Pending.wait`."""
        for work in self._works:
            work.wait(timeout)
        return self._result

    async def async_wait(self) -> Any:
        """The same as `await work`."""
        return await self

    def __await__(self) -> Generator[Any, None, Any]:
        for work in self._works:
            yield from work.__await__()
        return self._result


class OrderedTasks:
    """Functions that run one after the other, in the order in which they were added, in a thread of their own while there are any.

    Args:
        name: of the thread.
        timeout_s: the default deadline of a wait for one.
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._runs = False

    @property
    def idle(self) -> bool:
        """Whether every function has ended."""
        return not self._runs

    def add(self, function: Callable[[], R], wait: Wait) -> Work[R]:
        """Runs a function after all that were added before."""
        work: Work[R] = Work(wait, self._timeout_s)
        with self._lock:
            self._waiting.append(lambda: work.run(function))
            begin, self._runs = not self._runs, True
        if begin:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return work

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._runs = False  # under the lock, so that whoever adds next starts a thread
                    return
                step = self._waiting.popleft()
            step()


def _until_called(then: Callable[[Callable[[], None]], None], wait: Wait) -> Generator[Any, None, None]:
    """Leaves the event loop free until `then` has called back, in whatever thread."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def wake() -> None:
        if not ended.done():  # it may be cancelled
            ended.set_result(None)

    def tell() -> None:
        if not loop.is_closed():  # its task may be long gone
            loop.call_soon_threadsafe(wake)

    then(tell)
    with waits.blocking(wait):
        yield from ended
