"""Cooperative tasks: threads of which exactly one runs at a time.

A task lets another one run where it waits, and nowhere else. The next is the task that has waited longest among those whose
condition holds, so that the order of a run depends on nothing but the run; but a wait that has reached its deadline comes before
all others. It can't come before the task that runs waits, too, so that a wait may end late. Whoever waits for a call comes first
when it has ended: how often it has looked in vain until then is the clock's affair, and must not change what follows. When no
condition holds, nothing can change any more: the wait with the nearest deadline of its own ends then and there, and if there is
none, the run has come to a deadlock, which the driver is told at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rlinf.core.cluster.futures import LATE_S
from rlinf.core.errors import ChannelClosed, Deadlock, RLinfError
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.transport import waits
from rlinf.scheduler.transport.waits import Wait


@dataclass(eq=False)
class Task:
    """One thread that takes part."""

    name: str
    ready: Callable[[], bool] = lambda: True
    wait: Wait | None = None
    """What it waits for; None while it runs, or while it has no work."""
    deadline: float | None = None
    """When its wait ends of itself, by `time.monotonic()`; None if the caller gave no timeout."""
    urgent: Callable[[], bool] | None = None
    """It waits for a call, and runs before all others once this holds."""
    heeds: bool = False
    """Its wait ends with a failure that nobody waits for."""
    joins: bool = False
    """It waits for a call to end, which its own timeout does not bring nearer: if nothing can run, that is a deadlock."""
    verdict: Exception | None = None
    """What its wait raises when it runs again."""
    dismissed: str = ""
    """Why it may wait for nothing any more."""
    ended: bool = False
    waits: int = 0
    """How often it has waited."""
    # A semaphore keeps a turn that is given to a task before it waits for it.
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class CooperativeScheduler:
    """The tasks of one `local` cluster. The thread that makes it is the driver, and runs.

    Args:
        failures: those that nobody has seen yet end what the driver waits for, and explain better than a deadlock why nothing can
            run.
        describe: who waits for whom, for the message of a deadlock.
    """

    def __init__(self, failures: Failures, describe: Callable[[], object]) -> None:
        self._failures = failures
        self._describe = describe
        self._driver = Task("driver")
        self._tasks = threading.local()
        self._tasks.mine = self._driver
        self._waiting: list[Task] = []
        self._running: Task | None = self._driver
        """Whose turn it is; None if nobody could run while the driver, whose wait was interrupted, did not wait."""
        # An interrupted driver runs beside another task. Re-entrant, as a condition may be looked at that looks at tasks.
        self._lock = threading.RLock()
        self._stopped = ""

    def me(self) -> Task:
        """The task of this thread.

        Raises:
            RLinfError: the thread is none of ours.
        """
        task: Task | None = self._tasks.__dict__.get("mine")
        if task is None:
            name = threading.current_thread().name
            remedy = "On the `local` back-end only the driver's thread and the calls of workers may wait; use `ray` for threads."
            raise RLinfError(f"thread '{name}'", "it is no task of the local cluster", remedy)
        return task

    def start(self, name: str, body: Callable[[], None]) -> Task:
        """A new task; it runs for the first time when another one waits."""
        task = Task(name)

        def run() -> None:
            self._tasks.mine = task
            task.turn.acquire()
            try:
                body()
            finally:
                task.ended = True
                self._run_next(task)

        self._waiting.append(task)
        threading.Thread(target=run, name=name, daemon=True).start()
        return task

    def end(self, task: Task, reason: str) -> None:
        """What a task waits for, now and later, ends with `ChannelClosed`, as soon as it is its turn."""
        task.dismissed = reason
        if task in self._waiting:
            task.ready, task.verdict = (lambda: True), ChannelClosed(task.name, reason)

    def end_all(self, mine: Callable[[str], bool], reason: str, wait: Wait | None) -> None:
        """Ends the tasks of some names; with `wait` they have ended then. Only the driver may ask, while which all others wait."""
        tasks = [task for task in self._waiting if mine(task.name)]
        for task in tasks:
            self.end(task, reason)
        if wait is not None:
            self._wait(lambda: all(task.ended for task in tasks), wait)

    def idle(self, ready: Callable[[], bool]) -> None:
        """Waits for work; a task without work takes no part in a deadlock."""
        self._wait(ready, None)

    def give_way(self, until: Callable[[], bool] | None = None) -> None:
        """Lets the tasks that can run do so, each once; with `until` no more of them as soon as that holds."""
        self.me().urgent = until
        try:
            self._wait(lambda: True, None)
        finally:
            self.me().urgent = None

    def join(self, ready: Callable[[], bool], wait: Wait) -> None:
        """Waits for a call to end: as `wait_until`, but if nothing can run it is a deadlock, whatever the timeout."""
        if not ready():
            self.me().joins, self.me().urgent = True, ready
            try:
                self._wait(ready, wait, heeds=True)
            finally:
                self.me().joins, self.me().urgent = False, None

    def wait_until(self, ready: Callable[[], bool], wait: Wait) -> None:
        """Lets others run until `ready()`.

        Raises:
            DeadlineExceeded: the wait's own timeout is over, or nothing that could end it can run.
            Deadlock: no task can run (raised in the driver only).
            WorkerError: a call failed, and nobody waits for it (raised in the driver only).
            ChannelClosed: the cluster was shut down.
        """
        if not ready():
            self._wait(ready, wait, heeds=True)

    def stop(self, reason: str) -> None:
        """Ends every task that waits, one after the other; gives up on one that runs on for more than five seconds."""
        self._stopped = reason
        driver = self._driver
        driver.ready = lambda: self._waiting == [driver]
        driver.wait = driver.deadline = None
        self._line_up(driver)
        driver.turn.acquire(timeout=5.0)

    def _wait(self, ready: Callable[[], bool], wait: Wait | None, *, heeds: bool = False) -> None:
        task = self.me()
        if self._stopped or task.dismissed:
            raise ChannelClosed(task.name, self._stopped or task.dismissed)
        timeout = None if wait is None else wait.timeout
        task.ready, task.wait, task.heeds = ready, wait, heeds
        task.waits += 1
        task.deadline = None if timeout is None else time.monotonic() + timeout
        number = None if wait is None else waits.begin(wait)
        try:
            self._line_up(task)
            task.turn.acquire()
        except KeyboardInterrupt:
            with self._lock:
                if task in self._waiting:
                    self._waiting.remove(task)
                # Its turn may just have come; that of another task can't be taken back.
                task.turn.acquire(blocking=False)
                task.verdict = None
            raise
        finally:
            if number is not None:
                waits.end(number)
        task.wait = None
        verdict, task.verdict = task.verdict, None
        if verdict is not None:
            raise verdict

    def _line_up(self, task: Task) -> None:
        """The task waits from now on, and lets the next one run."""
        with self._lock:
            self._waiting.append(task)
            self._run_next(task)

    def _run_next(self, task: Task) -> None:
        """Gives the turn of a task to the next one; after an interrupt, another task may have it, which does so itself."""
        with self._lock:
            if self._running not in (task, None):
                return
            self._running = self._next()
            if self._running is not None:
                self._waiting.remove(self._running)
                self._running.turn.release()

    def _next(self) -> Task | None:
        now = time.monotonic()
        for task in self._waiting:
            if self._stopped and task is not self._driver:
                task.verdict = ChannelClosed(task.name, self._stopped)
                return task
            if task.deadline is not None and task.wait is not None and now >= task.deadline:
                # What it waits for may have come meanwhile.
                if not task.ready():
                    task.verdict = task.wait.expired(task.wait.timeout or 0.0, self._late(now - task.deadline))
                return task
        for task in self._waiting:
            if task.urgent is not None and task.urgent():
                return task
        if self._unheeded():
            return self._driver
        for task in self._waiting:
            if task.ready():
                return task
        return self._give_up()

    def _unheeded(self) -> bool:
        """Whether the driver's wait ends with a failure.

        Asked only when no deadline is over and no call has ended that somebody waits for: `gather` waits for the failed call next.
        """
        driver = self._driver
        if driver not in self._waiting or not driver.heeds or driver.ready():
            return False
        try:
            self._failures.check()
        except RLinfError as error:
            driver.verdict = error
            return True
        return False

    def _late(self, seconds: float) -> str:
        """Why a wait ends so long after its deadline."""
        if seconds < LATE_S:
            return ""
        return f"noticed {seconds:.1f} s late, as {self.me().name} ran on: workers of the `local` back-end take turns"

    def _give_up(self) -> Task | None:
        # Its wait was interrupted: it may still do what others wait for.
        if self._driver not in self._waiting:
            return None
        timed = [
            (task.deadline, task, task.wait)
            for task in self._waiting
            if task.deadline is not None and task.wait is not None and not task.joins
        ]
        failure = self._failures.unseen
        if timed:
            _, first, wait = min(timed, key=lambda each: each[0])
            # Whoever was to end the wait may be the one that failed.
            first.verdict = wait.deadlocked(_REMEDY) if failure is None else wait.closed(str(failure))
            return first
        self._driver.verdict = failure or Deadlock("local cluster", f"every task waits for another\n{self._describe()}\n", _REMEDY)
        return self._driver


_REMEDY = "Nobody is left who could end one of these waits: a put or a send is missing, or a queue is too small."


class CooperativeMonitor:
    """A monitor for tasks: only one runs, so that there is nothing to lock."""

    cooperative = True

    def __init__(self, scheduler: CooperativeScheduler) -> None:
        self._scheduler = scheduler

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass

    def wait_until(self, ready: Callable[[], bool], wait: Wait) -> None:
        self._scheduler.wait_until(ready, wait)

    def changed(self) -> None:
        """The condition of every task is looked at whenever one lets the next one run."""

    def give_way(self) -> None:
        self._scheduler.give_way()
