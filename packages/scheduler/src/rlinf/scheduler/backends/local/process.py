"""One worker of the `local` back-end: a task that runs its calls in order, and one more for its event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

from rlinf.core.cluster.futures import LONGER, POLL_S
from rlinf.core.errors import ChannelClosed, DeadlineExceeded, WorkerError
from rlinf.core.protocols import GroupSpec
from rlinf.core.worker import Worker, WorkerContext, injected
from rlinf.core.worker.context import CurrentWorker
from rlinf.scheduler.backends.local.cooperative import CooperativeScheduler
from rlinf.scheduler.backends.local.turns import CooperativeTurn
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.trace.recorder import Recorder, recorded, recorded_async
from rlinf.scheduler.transport.waits import Wait, calling, longer
from rlinf.scheduler.workers.calls import SHUT_DOWN, Failure, Outcome, WorkerInfo, checked, ended, perform, perform_async
from rlinf.scheduler.workers.launching import LaunchOptions, is_async
from rlinf.scheduler.workers.logs import WorkerLog
from rlinf.scheduler.workers.loops import LIMIT, Coroutines


class Runtime(Protocol):
    """What the workers of the process share."""

    scheduler: CooperativeScheduler
    failures: Failures
    recorder: Recorder | None
    timeout_s: float
    ended: int
    """How many calls have ended."""


class LocalCall:
    """A call on one worker of the process."""

    def __init__(self, runtime: Runtime, info: WorkerInfo, method: str) -> None:
        self._runtime = runtime
        self._info = info
        self._forgiven = False
        # A loop that waits for one call keeps from running whoever waits in it for another.
        self._ends = not _in_event_loop()
        self._looked = -1
        """How often the driver had waited when it looked last."""
        self.method = method
        self.outcome: Outcome | None = None

    @property
    def label(self) -> str:
        return f"{self._info.label}.{self.method}()"

    def wait(self, timeout: float | None = None) -> Outcome:
        if self.outcome is None:
            self._join(timeout)
        assert self.outcome is not None
        self._runtime.failures.seen(self)
        return checked(self.outcome, self._info, self.method)

    def _join(self, timeout: float | None) -> None:
        around = self._runtime
        seconds = around.timeout_s if timeout is None else timeout
        wait = Wait(around.scheduler.me().name, self.label, "it to return", seconds, peers=(self._info.label,))
        try:
            around.scheduler.join(lambda: self.outcome is not None, wait)
        except DeadlineExceeded as error:
            if error.remedy == LONGER:
                error.remedy = longer(timeout)
            if seconds >= POLL_S:
                self.explain(error)
            raise

    def failed(self) -> bool:
        return self._runtime.failures.over if self.outcome is None else self.outcome.failure is not None

    def forgive(self) -> None:
        self._forgiven = True
        self._runtime.failures.seen(self)

    def explain(self, error: DeadlineExceeded | WorkerError) -> None:
        self._runtime.failures.explain(error)

    def state(self) -> str:
        return ""

    def end(self, outcome: Outcome) -> None:
        """It has ended; the failure, if it is one, is known from now on."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        self._runtime.ended += 1
        failures = self._runtime.failures
        # The launch waits for constructors itself.
        if failures.over or self._forgiven or self.method == "__init__":
            return
        try:
            checked(outcome, self._info, self.method)
        except WorkerError as error:
            if not error.secondary:
                failures.expect(self, error, ends=self._ends)
                failures.announce(error)

    def done(self) -> bool:
        """See `RankCall`. Whoever looks twice without waiting lets others run, until any call has ended.

        Not at the first look: `gather` looks at several calls whenever one has ended, and goes on at once if that was the last.
        """
        if self.outcome is None:
            me, ended = self._runtime.scheduler.me(), self._runtime.ended
            if self._looked == me.waits:
                self._runtime.scheduler.give_way(lambda: self._runtime.ended != ended)
            self._looked = me.waits
        return self.outcome is not None or self._runtime.failures.over


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class LocalProcess:
    """One worker of the process.

    Args:
        runtime: of all workers.
        info: where it is said to be.
        log: what it logs.
        options: with which its group was launched.
        spec: its class.
    """

    restarts = 0
    """Nothing of it can die."""

    def __init__(self, runtime: Runtime, info: WorkerInfo, log: WorkerLog, options: LaunchOptions, spec: GroupSpec[Any]) -> None:
        self._runtime = runtime
        self._info = info
        self._log = log
        self._spec = spec
        self._calls: deque[tuple[LocalCall, Callable[[], None]]] = deque()
        self._open: dict[LocalCall, None] = {}
        """Those that have not ended."""
        self._worker: Worker | None = None
        self._ended = False
        self._broken: Failure | None = None
        self._coroutines = Coroutines(CooperativeTurn(runtime.scheduler), info.label, options.max_concurrency or LIMIT)
        # Only classes without async methods have several threads: there is no event loop to take turns with.
        self._several = options.threads(spec.worker) > 1
        for _ in range(options.threads(spec.worker)):
            runtime.scheduler.start(info.label, self._run)

    @property
    def info(self) -> WorkerInfo:
        return self._info

    def construct(self, context: WorkerContext) -> LocalCall:
        """Builds the worker, as its first call."""
        spec = self._spec

        def build() -> None:
            with injected(context):
                self._worker = spec.worker(*spec.args, **spec.kwargs)

        return self._line_up("__init__", lambda: build, (), {})

    def submit(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LocalCall:
        if self._ended:
            raise ended(f"{self._info.label}.{method}()")
        self._runtime.failures.check()
        return self._line_up(method, lambda: getattr(self._worker, method), args, kwargs)

    def fail(self, failure: Failure) -> None:
        """A child has failed: so do the call that runs, at its end, and all later ones."""
        self._broken = failure

    def end(self) -> None:
        """Takes no call any more."""
        self._ended = True

    def shutdown(self) -> None:
        """Takes no call any more, and ends those that it has."""
        self.end()
        for call in list(self._open):
            call.forgive()
            call.end(Outcome(value=None, seconds=0.0, failure=Failure(problem=SHUT_DOWN, traceback="", folded="", secondary=False)))

    def _line_up(self, method: str, find: Callable[[], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LocalCall:
        call = LocalCall(self._runtime, self._info, method)
        self._open[call] = None
        begin = self._begin if is_async(self._spec.worker, method) else self._perform
        # The method is looked up when the call runs: the worker may not be built yet.
        self._calls.append((call, lambda: begin(call, find(), args, kwargs)))
        return call

    def _perform(self, call: LocalCall, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        def run() -> Outcome:
            return perform(function, args, kwargs, last_words=self._log.tail.text)

        with (
            nullcontext() if self._several else self._coroutines.between(),
            CurrentWorker.running(self._worker),
            calling(self._info.label, call.method),
        ):
            self._conclude(call, recorded(self._runtime.recorder, self._info.label, call.method, run))

    def _begin(self, call: LocalCall, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        async def run() -> None:
            with CurrentWorker.running(self._worker), calling(self._info.label, call.method):
                outcome = await recorded_async(
                    self._runtime.recorder,
                    self._info.label,
                    call.method,
                    lambda: perform_async(function, args, kwargs, last_words=self._log.tail.text),
                )
            self._conclude(call, outcome)

        self._coroutines.begin(run)

    def _conclude(self, call: LocalCall, outcome: Outcome) -> None:
        self._open.pop(call, None)
        if self._broken is not None:
            outcome = replace(outcome, value=None, failure=self._broken)
        self._log.failed(call.method, outcome.failure)
        call.end(outcome)

    def _run(self) -> None:
        while True:
            try:
                self._runtime.scheduler.idle(lambda: bool(self._calls) or self._ended)
                if self._ended:
                    return
                # Only one task runs at a time, so that nobody has taken the call since the look.
                self._calls.popleft()[1]()
            # The cluster, or the group, was shut down.
            except ChannelClosed:
                return
