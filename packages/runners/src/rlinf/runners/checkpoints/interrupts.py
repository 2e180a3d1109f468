"""Ctrl-C and SIGTERM while a run trains: the first lets the iteration end and be saved, the second ends the run at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REPEATED_S = 1.0  # one Ctrl-C may come twice: from the terminal and from a program that started the run, such as uv


class StopRequest:
    """While it is entered, SIGINT and SIGTERM only ask the run to stop; a context manager.

    A second signal, at least a second after the first, or the end of the time that the run has to stop, goes to the handler that
    was there before, which raises `KeyboardInterrupt`. Signals that were ignored stay ignored. Outside of the main thread, where
    Python sets no handlers, it does nothing.

    Args:
        timeout_s: seconds from the first signal until it counts as the second.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._previous: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        self._asked_at = 0.0
        self.asked = False

    def stop(self) -> NoReturn:
        """Ends the run as the handler before would have done."""
        number = next(iter(self._previous), signal.SIGINT)
        before: Callable[[int, FrameType | None], object] | Any = self._previous.get(number)
        self._leave()
        if callable(before):
            before(number, None)
        raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            # Where the timeout is shorter, the signal of the timer must count all the same.
            if time.monotonic() - self._asked_at < min(REPEATED_S, self._timeout_s):
                return
            self.stop()
        self.asked, self._asked_at = True, time.monotonic()
        text = f"\nInterrupted: this iteration ends within {self._timeout_s:g} s and is saved. Once more to stop without saving.\n"
        os.write(2, text.encode())  # a handler may have interrupted a write to sys.stderr, which can't be entered twice
        # A signal, because an exception in the timer's thread would not reach the main one.
        self._timer = threading.Timer(self._timeout_s, os.kill, (os.getpid(), signal.SIGINT))
        self._timer.daemon = True
        self._timer.start()

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, before in self._previous.items():
            # A handler that somebody has set meanwhile stays.
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
        self._previous = {}

    def __enter__(self) -> StopRequest:
        self.asked = False
        if threading.current_thread() is threading.main_thread():
            found = {number: signal.getsignal(number) for number in SIGNALS}
            # None is a handler that was not set from Python, which Python can't put back.
            self._previous = {number: before for number, before in found.items() if before not in (signal.SIG_IGN, None)}
            for number in self._previous:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._leave()
