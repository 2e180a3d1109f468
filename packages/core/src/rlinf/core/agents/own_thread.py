"""Blocking functions beside an event loop, each in a daemon thread of its own, not in the loop's pool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T], *, name: str, left: Callable[[], None] | None = None) -> T:
    """What a blocking function returns or raises. One that hangs keeps neither others waiting nor the process from ending.

    Args:
        work: the function. When the waiting task is cancelled it goes on, and what it returns is dropped.
        name: of the thread.
        left: called in the thread when the function has ended, whatever came of it.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(value: T) -> None:
        # Whoever waited may have been cancelled, and this future with it; to set it then would raise.
        if not answer.done():
            answer.set_result(value)

    def fail(error: BaseException) -> None:
        if not answer.done():
            # No future can hold a StopIteration, such as `next` raises of nothing.
            answer.set_exception(RuntimeError(f"StopIteration: {error}") if isinstance(error, StopIteration) else error)

    def run() -> None:
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001  (it belongs to the call, not to this thread)
            # A function that hung may return when its loop is gone.
            if not loop.is_closed():
                loop.call_soon_threadsafe(fail, error)
        else:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value)
        if left is not None:
            left()

    threading.Thread(target=run, daemon=True, name=name).start()
    return await answer
