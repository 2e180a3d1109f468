"""A call on the process of one worker: sent, answered or lost, and waited for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from rlinf.scheduler.backends.ray._ray import ray as ray  # isort: skip - sets what Ray reads when it is imported
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError

from rlinf.core.cluster.futures import POLL_S
from rlinf.core.errors import DeadlineExceeded, RLinfError, WorkerError, is_secondary
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.transport.encoding import PICKLING, unpicklable
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.transport.waits import Wait, longer
from rlinf.scheduler.workers.calls import Outcome, WorkerInfo, checked

LAST_WORDS_S = 0.5
"""How long the answer of a process that has died may still be under way."""


class Called(Protocol):
    """What a call needs of its process."""

    failures: Failures
    timeout_s: float
    """The default deadline of a call."""
    calls: dict[RayCall, None]
    """Those that have not ended."""

    @property
    def info(self) -> WorkerInfo:
        """Whose process it is."""
        ...

    def condition(self) -> str:
        """Why it may not go on; "" if it runs."""
        ...

    def miss(self, incarnation: int, said: str) -> None:
        """Ray has lost a call of one of its starts."""
        ...


class RayCall:
    """A call on one actor.

    Args:
        process: whose.
        method: what is called.
        send: makes the call on an actor.
        quiet: only the waiting process is told of its failure.
    """

    def __init__(self, process: Called, method: str, send: Callable[[Any], Any], *, quiet: bool = False) -> None:
        self._process = process
        self._send: Callable[[Any], Any] | None = send
        self._quiet = quiet
        self._outcome: Outcome | None = None
        self._error: RLinfError | None = None
        self._waited_since = 0.0
        """When it was first waited for; 0 if it was not."""
        self.method = method
        self.lost = ""
        """What Ray says of the process that has died under the call; "" while there is none."""

    @property
    def label(self) -> str:
        return f"{self._process.info.label}.{self.method}()"

    @property
    def ended(self) -> bool:
        """It has returned or raised."""
        return self._outcome is not None or self._error is not None

    @property
    def reissuable(self) -> bool:
        """Whether it may be sent again."""
        return self._send is not None

    def send(self, actor: Any, incarnation: int, *, again: bool) -> None:
        """Sends it to an actor; keeps its arguments if it may have to be sent again.

        Raises:
            RLinfError: its arguments can't be pickled.
        """
        assert self._send is not None
        self.lost = ""
        try:
            future: Future[Outcome] = self._send(actor).future()
        except PICKLING as error:
            # Ray's own text has what it was asked for, which is none of the caller's.
            raise unpicklable(self.label, "an argument", error.__cause__ or error) from error
        if not again:
            self._send = None
        future.add_done_callback(partial(self._answered, incarnation))

    def wait(self, timeout: float | None = None) -> Outcome:
        failures, seconds = self._process.failures, self._process.timeout_s if timeout is None else timeout
        goal = "it to return, imports included" if self.method == "__init__" else "it to return"
        wait = Wait(DRIVER, self.label, goal, timeout, peers=(self._process.info.label,))
        if not self.ended:
            failures.check()
            self._waited_since = self._waited_since or time.monotonic()
            failures.wait_until(lambda: self.ended or failures.over, wait, seconds, since=self._waited_since)
            if failures.over:
                failures.wait_until(lambda: self.ended, wait, min(LAST_WORDS_S, seconds))
        if self.ended:
            return self._take()
        if failures.over:
            failures.throw()
        state = self.state()
        problem = f"not done after {seconds:g} s{state and f'; {state}'}"
        late = DeadlineExceeded(self.label, problem, longer(timeout))
        if seconds >= POLL_S:
            self.explain(late)
        raise late

    def explain(self, error: DeadlineExceeded | WorkerError) -> None:
        self._process.failures.explain(error)

    def done(self) -> bool:
        return self.ended or self._process.failures.over

    def forgive(self) -> None:
        with self._process.failures.changed:
            self._quiet = True
            self._process.failures.seen(self)

    def state(self) -> str:
        """Why it may not end: "" if its process runs."""
        return self._process.condition()

    def failed(self) -> bool:
        return self._error is not None or (not self.ended and self._process.failures.over)

    def end(self, outcome: Outcome | None = None, error: RLinfError | None = None) -> None:
        """It has ended; the failure, if it is one, is known from now on."""
        process = self._process
        if outcome is not None and outcome.failure is not None:
            try:
                checked(outcome, process.info, self.method)
            except WorkerError as found:
                error = found
        process.calls.pop(self, None)
        failures = process.failures
        with failures.changed:
            if self.ended:
                return
            self._outcome, self._error, self._send = outcome, error, None
            news = error is not None and not self._quiet and not is_secondary(error)
            if news and error is not None:
                failures.expect(self, error)
            failures.changed.notify_all()
        if news and error is not None:
            # Without the lock: it calls functions of users.
            failures.raised(self, error)

    def outcome(self) -> Outcome:
        """The outcome of a call that has ended, or its own failure."""
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def _take(self) -> Outcome:
        failures = self._process.failures
        failures.seen(self)
        if self._error is not None and is_secondary(self._error) and failures.explained():
            failures.throw(self._error)
        return self.outcome()

    def _answered(self, incarnation: int, future: Future[Outcome]) -> None:
        """Runs in a thread of Ray."""
        info = self._process.info
        try:
            self.end(future.result())
        except (RayActorError, ActorUnschedulableError) as error:
            self.lost = str(error)
            self._process.miss(incarnation, self.lost)
        except RayError as error:
            cause = getattr(error, "cause", None) or error
            first = str(cause).strip().partition("\n")[0]
            # What a method raises is an outcome, so here something could not be sent; Ray says of arguments that it was they.
            what = "an argument" if "input arguments" in str(error) else "its result"
            problem = f"{type(cause).__name__}: {first} ({what} can't be sent)"
            # Ray's text has colours, and marks of columns whose lines it leaves out.
            frames = re.sub(r"\x1b\[\d+m|^ +\^+\n", "", str(error), flags=re.MULTILINE)
            self.end(error=WorkerError(info.group, info.rank, self.method, problem, remote_traceback=frames))
