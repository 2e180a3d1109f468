"""The failures of one run: which came first, and what the driver has seen of them.

The failure of a process ends the run. A method that raises does not: its exception belongs to whoever waits for the call. But if
nobody does, while the driver is blocked in another wait or goes on to another call, it ends the run, too.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import NoReturn

from rlinf.core.cluster.futures import POLL_S
from rlinf.core.errors import ChannelClosed, DeadlineExceeded, RLinfError, WorkerError
from rlinf.scheduler.transport import waits
from rlinf.scheduler.transport.transport import DRIVER, address
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.workers.logs import WORKERS, announce

GRACE_S = 1.0
"""How long the exception of a call waits for whoever waits for that call, before it ends another wait."""
CAUSE_S = 2.0
"""How long a consequence waits for its cause."""

_LOG = logging.getLogger("rlinf.scheduler")


class Failures:
    """What went wrong in a run.

    Args:
        on_end: called once with the failure that ends the run, after it was logged and shown to the callbacks.
    """

    def __init__(self, on_end: Callable[[RLinfError], None]) -> None:
        self.changed = threading.Condition()
        """Notified when a call ends, and when the run does. Its lock is re-entrant, as a signal handler may shut down."""
        self.explain: Callable[[DeadlineExceeded | WorkerError], None] = lambda _: None
        """Adds to the error of a wait that reached its deadline what is known of why."""
        self._on_end = on_end
        self._first: RLinfError | None = None
        self._unseen: dict[Hashable, tuple[RLinfError, float]] = {}
        self._callbacks: list[Callable[[RLinfError], None]] = []

    @property
    def over(self) -> bool:
        """Whether the run has ended: by a failure, or because it was shut down."""
        return self._first is not None

    @property
    def unseen(self) -> RLinfError | None:
        """The first failure of a call that nobody has seen yet."""
        return next((copy.copy(error) for error, _ in list(self._unseen.values())), None)

    @property
    def listened(self) -> bool:
        """Whether somebody listens."""
        return bool(self._callbacks)

    def listen(self, callback: Callable[[RLinfError], None]) -> None:
        """Calls a function with each failure as soon as it is known, in a thread of the cluster."""
        self._callbacks.append(callback)

    def expect(self, call: Hashable, error: RLinfError, *, ends: bool = True) -> None:
        """A call has failed, and nobody has seen it yet. Comes before its waiter can know, so that `seen` comes after.

        Args:
            call: which.
            error: with what.
            ends: whether it ends the run if nobody sees it.
        """
        if not self.over:
            self._unseen[call] = (error, time.monotonic() if ends else math.inf)

    def raised(self, call: Hashable, error: RLinfError) -> None:
        """A failure that was expected is told; its waiter sees it, or whoever waits when `GRACE_S` are over."""
        if self.over:
            return
        self.announce(error)
        timer = threading.Timer(GRACE_S, self._expire, (call,))
        timer.daemon = True
        timer.start()

    def seen(self, call: Hashable) -> None:
        """The caller knows of the failure of a call."""
        self._unseen.pop(call, None)

    def end(self, error: RLinfError) -> None:
        """The run is over, by this failure unless there was one before."""
        with self.changed:
            if self._first is not None:
                return
            known = any(error is unseen for unseen, _ in self._unseen.values())
            self._first = error
            self._unseen.clear()
        # Else it was announced when it was raised.
        if not known:
            self.announce(error)
        self._on_end(error)
        with self.changed:
            self.changed.notify_all()

    def stop(self, reason: str) -> None:
        """The run was ended on purpose: what still waits ends, with `ChannelClosed`."""
        with self.changed:
            self._first = self._first or ChannelClosed("cluster", reason)
            self.changed.notify_all()

    def check(self) -> None:
        """Raises the failure that has ended the run, or one that nobody has waited for."""
        if self._first is None:
            late = [error for error, since in list(self._unseen.values()) if time.monotonic() - since > GRACE_S]
            if late:
                self.end(late[0])
        if self._first is not None:
            self.throw()

    def throw(self, consequence: Exception | None = None) -> NoReturn:
        """Raises the failure that has ended the run, with a consequence as a note."""
        assert self._first is not None
        # A copy, with notes of its own: each wait that ends with the failure adds its traceback and its note.
        error = copy.copy(self._first)
        error.__notes__ = list(getattr(self._first, "__notes__", []))
        if consequence is not None:
            error.add_note(f"In consequence: {consequence}")
        raise error

    def wait_until(self, ready: Callable[[], bool], wait: Wait, seconds: float, *, since: float | None = None) -> bool:
        """Waits for what notifies `changed`; returns what `ready` says at the latest after `seconds`.

        Args:
            ready: what is waited for.
            wait: who waits for what.
            seconds: how long at most.
            since: when the wait began, if this is the next slice of a longer one.
        """
        deadline = time.monotonic() + seconds
        with self.changed:
            if ready():
                return True
            number = waits.begin(wait, since)
            try:
                while not ready() and (left := deadline - time.monotonic()) > 0:
                    self.changed.wait(left)
            finally:
                waits.end(number)
        return ready()

    @contextmanager
    def guard(self) -> Generator[None]:
        """A wait of the driver inside that ends because the run does ends with the failure that ended it. Explains deadlines."""
        self.check()
        start = time.monotonic()
        try:
            yield
        except DeadlineExceeded as error:
            # A shorter wait is a look at how things are, and the wait graph takes up to a second.
            if time.monotonic() - start >= POLL_S:
                self.explain(error)
            raise
        except ChannelClosed as error:
            if isinstance(self._first, ChannelClosed) or not self.explained():
                raise
            self.throw(error)

    def explained(self) -> bool:
        """Waits a moment for the cause of a consequence; whether the run has ended."""
        with self.changed:
            self.changed.wait_for(lambda: self.over, CAUSE_S)
        return self.over

    def _expire(self, call: Hashable) -> None:
        error, _ = self._unseen.get(call, (None, 0.0))
        if error is not None and any(doing.blocked for doing in waits.activities(DRIVER)):
            self.end(error)

    def announce(self, error: RLinfError) -> None:
        """Logs a failure, and shows it to those who listen."""
        logger = _LOG
        if isinstance(error, WorkerError):
            logger = logging.getLogger(f"{WORKERS}.{address(error.group, error.rank)}")
        # Without its notes, such as a worker's traceback: they are shown with the error where it is raised.
        announce(logger, str(error))
        for callback in list(self._callbacks):
            try:
                callback(error)
            except Exception:  # noqa: BLE001 - a user's function, which must not hide the failure
                _LOG.exception("a callback of on_failure raised")
