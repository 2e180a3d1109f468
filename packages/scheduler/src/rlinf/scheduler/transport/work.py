"""`Work`: the handle of an operation that goes on by itself; `OrderedTasks`: operations that run one after the other."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from rlinf.scheduler.loops import WorkerLoop
from rlinf.scheduler.transport import activity
from rlinf.scheduler.transport.waiting import Monitor, ThreadMonitor, Wait

R = TypeVar("R")


class Work(Generic[R]):
    """A send, recv, put or get that is under way, or done. Satisfies `rlinf.core.futures.Future[R]`, and can be awaited.

    Args:
        wait: who waits for what, for messages.
        monitor: how a thread or task waits for it.
        give_way: called before a look, so that those may run who would end it.
        cooperative: in an event loop that takes no part in the cluster, awaiting it blocks, as nobody else could run.
    """

    def __init__(
        self, wait: Wait, monitor: Monitor, *, give_way: Callable[[], None] = lambda: None, cooperative: bool = False
    ) -> None:
        self._wait = wait
        self._monitor = monitor
        self._give_way = give_way
        self._cooperative = cooperative
        self._ended = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._then: list[Callable[[], None]] = []

    @property
    def label(self) -> str:
        """What goes on: `recv from actor[0], tag ''`."""
        return self._wait.place

    def wait(self, timeout: float | None = None) -> R:
        """The result; what the operation raised is raised.

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
        if not self._ended:
            self._give_way()
        return self._ended

    def __await__(self) -> Generator[Any, None, R]:
        loop = asyncio.get_running_loop()
        if self._cooperative and not isinstance(loop, WorkerLoop):
            return self.wait()
        ended = loop.create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        self.then(lambda: _tell(loop, wake))
        with activity.blocking(self._wait):
            yield from ended
        return self._result()

    def then(self, function: Callable[[], None]) -> None:
        """Calls a function when it has ended, at once if it has; in the thread that ends it."""
        with self._monitor:
            if not self._ended:
                self._then.append(function)
                return
        function()

    def run(self, operation: Callable[[], R]) -> None:
        """Runs the operation, whose result or failure is that of the work."""
        try:
            value = operation()
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            self.fail(error)
        else:
            self.finish(value)

    def finish(self, value: R) -> None:
        """It ended with a result."""
        self._value = value
        self._end()

    def fail(self, error: BaseException) -> None:
        """It ended with a failure."""
        self._error = error
        self._end()

    def _end(self) -> None:
        with self._monitor:
            self._ended = True
            then, self._then = self._then, []
            self._monitor.changed()
        for function in then:
            function()

    def _result(self) -> R:
        if self._error is not None:
            raise self._error
        return self._value


def _tell(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(wake)


class Background(Protocol):
    """How a process of a cluster does things beside what it does."""

    def open(self, wait: Wait) -> Work[Any]:
        """A new work that somebody will end."""
        ...

    def beside(self, name: str, body: Callable[[], None]) -> None:
        """Runs a function beside the caller; it must not raise."""
        ...


class BackgroundThreads:
    """A thread for whatever runs beside.

    Args:
        timeout_s: the default deadline of a wait for a work.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def open(self, wait: Wait) -> Work[Any]:
        """See `Background`."""
        return Work(wait, ThreadMonitor(self._timeout_s))

    def beside(self, name: str, body: Callable[[], None]) -> None:
        """See `Background`."""
        threading.Thread(target=body, name=name, daemon=True).start()


class OrderedTasks:
    """Operations that run one after the other, in the order in which they were added, beside those who add them."""

    def __init__(self, background: Background, name: str) -> None:
        self._background = background
        self._name = name
        self._lock = threading.Lock()
        self._line: deque[Callable[[], None]] = deque()
        self._runs = False

    @property
    def idle(self) -> bool:
        """Whether every operation has ended."""
        return not self._runs

    def add(self, operation: Callable[[], R], wait: Wait) -> Work[R]:
        """Puts an operation at the end."""
        work: Work[R] = self._background.open(wait)
        with self._lock:
            self._line.append(lambda: work.run(operation))
            begin, self._runs = not self._runs, True
        if begin:
            self._background.beside(self._name, self._run)
        return work

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._line:
                    self._runs = False
                    return
                step = self._line.popleft()
            step()
