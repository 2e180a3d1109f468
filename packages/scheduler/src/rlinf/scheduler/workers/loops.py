"""The event loop of a worker's async methods, and the turns in which a worker's code runs.

The code of a worker runs one piece at a time, so that it needs no locks: a method from its beginning to its end, an async method
from one await to the next. Calls begin in the order in which they were sent. A loop that has nothing to do gives its turn away.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Ready = list[tuple[selectors.SelectorKey, int]]
Select = Callable[[float | None], Ready]
"""Waits for what an event loop waits for, at most so many seconds; None: for ever."""
LIMIT = 64
"""How many async calls of a worker may be under way if its group is launched without `max_concurrency`."""


class Turn(Protocol):
    """The right to run a worker's code. Goes to those who want it in the order in which they came."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exception: object) -> None: ...

    def idle(self, select: Select, timeout: float | None, *, busy: bool) -> Ready:
        """Gives the turn away while an event loop waits; `busy`: a call is under way."""
        ...

    def until(self, ready: Callable[[], bool]) -> None:
        """Waits, without a turn of its own, until what others do in theirs has made it so."""
        ...

    def beside(self, name: str, body: Callable[[], None]) -> None:
        """Runs a function beside the caller."""
        ...


class ThreadTurn:
    """Turns between threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Numbers, because a lock does not say who comes next: a later thread may overtake.
        self._next = 0
        self._serving = 0

    def __enter__(self) -> None:
        with self._changed:
            mine = self._next
            self._next += 1
            self._changed.wait_for(lambda: self._serving == mine)

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._serving += 1
            self._changed.notify_all()

    def idle(self, select: Select, timeout: float | None, *, busy: bool) -> Ready:
        self.__exit__()
        try:
            return select(timeout)
        finally:
            self.__enter__()

    def until(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(ready)

    def beside(self, name: str, body: Callable[[], None]) -> None:
        threading.Thread(target=body, name=name, daemon=True).start()


class WorkerLoop(asyncio.SelectorEventLoop):
    """An event loop that gives its turn away where it waits, so that others run who end what it waits for."""

    def __init__(self, turn: Turn, busy: Callable[[], bool]) -> None:
        super().__init__(_Selector(turn, busy))

    def __del__(self) -> None:
        # One that was left open is collected together with its sockets, which may be closed first.
        with suppress(ValueError):
            super().__del__()


class Coroutines:
    """The async calls of one worker. Its event loop starts with the first of them.

    Args:
        turn: between them and the worker's other calls.
        name: of the loop's thread.
        limit: how many calls may be under way; the others wait in order.
    """

    def __init__(self, turn: Turn, name: str, limit: int = LIMIT) -> None:
        self._turn = turn
        self._name = name
        self._slots = asyncio.Semaphore(limit)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begins a call, which must not raise; returns when it has come to its first await."""
        begun = False

        async def run() -> None:
            nonlocal begun
            begun = True
            async with self._slots:
                await call()

        def start() -> None:
            task = asyncio.get_running_loop().create_task(run())
            # The loop itself has weak references to its tasks only.
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._running().call_soon_threadsafe(start)
        self._turn.until(lambda: begun)

    @contextmanager
    def between(self) -> Generator[None]:
        """A call that is not async runs inside, while all async ones stand still; then they see what it has changed."""
        with self._turn:
            yield
        if self._tasks and self._loop is not None:
            self._loop.call_soon_threadsafe(_look)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = WorkerLoop(self._turn, lambda: bool(self._tasks))
            self._turn.beside(self._name, lambda: self._serve(loop))
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            with self._turn:
                loop.run_forever()
        finally:
            # A call that has not ended still uses it when it is collected.
            if all(task.done() for task in self._tasks):
                loop.close()


def in_own_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """Runs a function that waits in a thread of its own, with the context of the task that calls.

    `asyncio.to_thread` has a few threads for all: tasks that wait in them keep out the one that would end their waits.
    """
    context = copy_context()
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(context.run(function, *args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            future.set_exception(error)

    future.set_running_or_notify_cancel()
    threading.Thread(target=run, name="rlinf-wait", daemon=True).start()
    return asyncio.wrap_future(future)


def _look() -> None:
    """Wakes a loop: what other threads have made ready, `asyncio.Event.set` for example, it does not notice by itself."""


class _Selector(selectors.DefaultSelector):
    def __init__(self, turn: Turn, busy: Callable[[], bool]) -> None:
        super().__init__()
        self._turn = turn
        self._busy = busy

    def select(self, timeout: float | None = None) -> Ready:
        return self._turn.idle(super().select, timeout, busy=self._busy())
