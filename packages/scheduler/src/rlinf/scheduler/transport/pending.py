"""`Pending`: the handle of a put or a get under way."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from rlinf.core.errors import RLinfError
from rlinf.scheduler.transport.encoding import Blobs
from rlinf.scheduler.transport.queues import Queues
from rlinf.scheduler.transport.requests import Get, Request, failure
from rlinf.scheduler.transport.waiting import Monitor, Wait
from rlinf.scheduler.transport.work import Work

R = TypeVar("R")


class Source(Protocol):
    """What a handle needs of the request behind it."""

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls back once when it is done, perhaps at once, in any thread."""
        ...

    def take(self, wait: Wait) -> list[Blobs]:
        """What it gave, which is the caller's from now on; raises what it failed with."""
        ...

    def cancel(self) -> bool:
        """Undoes it; False if it is a put that is done."""
        ...

    def abandon(self) -> None:
        """Undoes a get. Safe in a finaliser, whatever its thread was doing."""
        ...


class Pending(Work[R]):
    """A put or a get under way, or done.

    What a get has taken goes back to its place in the queue if the handle is cancelled or dropped before anybody has asked it for
    the result, or if the process dies. A put goes on without its handle.

    Args:
        source: the request.
        wait: who waits for what; its timeout is that of a `wait` without one.
        result: makes the result of what the request gave.
        monitor: how a thread or a task waits for it.
        give_way: see `Work`.
        cooperative: see `Work`.
    """

    def __init__(
        self,
        source: Source,
        wait: Wait,
        result: Callable[[list[Blobs]], R],
        monitor: Monitor,
        *,
        give_way: Callable[[], None] = lambda: None,
        cooperative: bool = False,
    ) -> None:
        super().__init__(wait, monitor, give_way=give_way, cooperative=cooperative)
        self._source = source
        self._made = result
        self._settling = threading.Lock()
        self._settled = False
        mine = weakref.ref(self)

        def done() -> None:
            work = mine()
            if work is not None:
                work.finish(None)  # pyright: ignore[reportArgumentType] - the result is made when it is asked for

        source.when_done(done)

    def wait(self, timeout: float | None = None) -> R:
        """The item of a get, or None of a put.

        Args:
            timeout: seconds; None is what the operation was given, else the cluster's `timeout_s`.

        Raises:
            DeadlineExceeded: it is not done yet; it goes on.
            RLinfError: what the operation itself would have raised.
        """
        with self._monitor:
            self._monitor.wait_until(lambda: self._ended, self._wait if timeout is None else replace(self._wait, timeout=timeout))
        return self._result()

    def cancel(self) -> bool:
        """Gives the operation up: a get leaves its item in the queue, a put does not add its own.

        Returns:
            Whether it was given up; False if its result was asked for before, or its item was put.
        """
        with self._settling:
            if self._settled or not self._source.cancel():
                return False
            self._settled = True
            self._error = RLinfError(self._wait.place, f"{self._wait.who} cancelled its wait for {self._wait.goal}")
        self.finish(None)  # pyright: ignore[reportArgumentType]
        return True

    def __await__(self) -> Generator[Any, None, R]:
        try:
            return (yield from super().__await__())
        except asyncio.CancelledError:
            self.cancel()
            raise

    def __del__(self) -> None:
        if not self.__dict__.get("_settled", True):
            self._source.abandon()

    def _result(self) -> R:
        with self._settling:
            if not self._settled:
                self._settled = True
                try:
                    self._value = self._made(self._source.take(self._wait))
                except Exception as error:  # noqa: BLE001 - raised below, and whenever the result is asked for
                    self._error = error
        if self._error is not None:
            raise self._error
        return self._value


class Hosted:
    """A request to this process's own queues."""

    def __init__(self, queues: Queues, request: Request) -> None:
        self._queues = queues
        self._request = request
        queues.start(request)

    def when_done(self, callback: Callable[[], None]) -> None:
        """See `Source`."""
        self._queues.when_done(self._request, callback)

    def take(self, wait: Wait) -> list[Blobs]:
        """See `Source`."""
        request = self._request
        if request.problem is not None:
            raise failure(request.problem, wait)
        if not isinstance(request, Get):
            return []
        items = [blobs for _, _, blobs in request.entries]
        self._queues.took(request)
        return items

    def cancel(self) -> bool:
        """See `Source`."""
        request = self._request
        if self._queues.cancel(request):
            return True
        if isinstance(request, Get) and request.problem is None:
            self._queues.give_back(request)
            return True
        return False

    def abandon(self) -> None:
        """See `Source`."""
        if isinstance(self._request, Get):
            self._queues.abandon(self._request)


class Done:
    """A request that was done when it was made, or that failed then."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def when_done(self, callback: Callable[[], None]) -> None:
        """See `Source`."""
        callback()

    def take(self, wait: Wait) -> list[Blobs]:
        """See `Source`."""
        if self._error is not None:
            raise self._error
        return []

    def cancel(self) -> bool:
        """See `Source`."""
        return False

    def abandon(self) -> None:
        """See `Source`."""
