"""Timers: how many seconds a worker spent on what."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from rlinf.core.errors import UnknownName, did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

# A context variable, because async calls of one worker overlap.
_CALL: ContextVar[dict[str, float] | None] = ContextVar("rlinf_call_timers", default=None)


@contextmanager
def timers_of_call() -> Generator[dict[str, float]]:
    """Yields the seconds by tag of all timers that end inside."""
    seconds: dict[str, float] = {}
    token = _CALL.set(seconds)
    try:
        yield seconds
    finally:
        _CALL.reset(token)


class Timers:
    """Seconds by tag, added up until they are popped.

    Args:
        span: entered with the tag while a timer runs.
    """

    def __init__(self, span: Callable[[str], AbstractContextManager[Any]]) -> None:
        self._span = span
        self._seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, tag: str) -> Generator[None]:
        """Adds the seconds spent inside to a tag."""
        start = time.perf_counter()
        try:
            with self._span(tag):
                yield
        finally:
            seconds = time.perf_counter() - start
            self._seconds[tag] = self._seconds.get(tag, 0.0) + seconds
            call = _CALL.get()
            if call is not None:
                call[tag] = call.get(tag, 0.0) + seconds

    def pop(self, tag: str) -> float:
        """Seconds of one tag since it was popped last.

        Raises:
            UnknownName: no timer of that tag has run since.
        """
        if tag not in self._seconds:
            raise UnknownName(f"timer '{tag}'", "it has not run since it was read last", did_you_mean(tag, list(self._seconds)))
        return self._seconds.pop(tag)

    def pop_all(self) -> dict[str, float]:
        """Seconds by tag since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class TimerDecorator:
    """Times a worker's method, async or not: `@Worker.timer("load")`, or `@Worker.timer` with the method's name as the tag."""

    @overload
    def __call__(self, tag: F) -> F: ...

    @overload
    def __call__(self, tag: str | None = None) -> Callable[[F], F]: ...

    def __call__(self, tag: Any = None) -> Any:
        """Decorates a method, or makes the decorator of a tag."""
        return functools.partial(_decorated, tag) if tag is None or isinstance(tag, str) else _decorated(None, tag)


def _decorated(tag: str | None, method: Callable[..., Any]) -> Callable[..., Any]:
    name = tag or method.__name__
    # A call of an async method returns before any of it has run: only its await can be timed.
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def timed_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.worker_timer(name):
                return await method(self, *args, **kwargs)

        return timed_async

    @functools.wraps(method)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.worker_timer(name):
            return method(self, *args, **kwargs)

    return timed
