"""Worker processes that verify, each call bounded in time and memory.

A thread can't be stopped, and a hang inside a computer algebra system holds the interpreter: only a process can be ended. So
verifiers run in processes of their own, started afresh (never forked from a process that holds torch), reused from call to
call, ended where a call doesn't return in time, and replaced.
"""

from __future__ import annotations

import atexit
import io
import os
import pickle
import selectors
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from rlinf.algorithms.rewards.scores import Outcome
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError, DeadlineExceeded, WorkerError
from rlinf.core.process import ChildProcess, ConnectionLost, connection, exit_reason, own_cores

GRACE_S: Final = 1.0
"""A process bounds itself by an alarm; it is killed so much later, if that did not help."""
START_S: Final = 180.0
TURN_S: Final = 3600.0
MAX_REPLY: Final = 2**16
_PROGRAM: Final = str(Path(__file__).with_name("_verifier_process.py"))
# There is a process for each core already, and none has business on a GPU.
_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True)
class InFile:
    """A function of a file that is loaded alone, without the packages above it: its processes start sooner and stay smaller."""

    file: str
    """The path of a file that imports nothing of its own package."""
    function: str
    """The function's name."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its further keyword arguments, plain data."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker process does for a reward; a function must be importable by name in another process, or stand in a file."""

    verify: Callable[..., Any] | InFile
    """Scores one pair; or, if `batched`, a list of completions given a list of answers."""
    prepare: Callable[[], None] | InFile | None = None
    """Called once in each process before its first pair, outside the pair's time: imports what is slow to import."""
    timeout_s: float = 10.0
    """Seconds that one pair may take."""
    memory_mb: int = 2048
    """MiB that verifying one pair may add to its process, where the platform can tell."""
    batched: bool = False
    """Whether `verify` wants lists."""


class VerifierPool:
    """Processes that verify; a context manager that ends them, and they end with this process at the latest.

    Args:
        max_workers: how many processes at most; None is one for each core that this process may use, eight at most. They start
            when there is work for them.
    """

    def __init__(self, max_workers: int | None = None) -> None:
        expect_range("max_workers", max_workers, 1, float("inf"))
        self.max_workers: Final = max_workers or min(own_cores(), 8)
        self._workers: list[_Worker] = []
        self._keys: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._owner = os.getpid()
        # Of the list and not of the pool, which could otherwise never be collected.
        self._finalizer = weakref.finalize(self, _kill_all, self._workers)

    def __enter__(self) -> VerifierPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def usable(self) -> bool:
        """Whether it is open, and belongs to this process rather than to one that forked this."""
        return self._finalizer.alive and self._owner == os.getpid()

    @property
    def pids(self) -> list[int]:
        """The process ids of its workers."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """Ends its processes; more than once is fine."""
        self._finalizer()

    def run(self, task: Task, pairs: Sequence[tuple[str, str]], *, name: str) -> list[Outcome]:
        """Verifies pairs, and waits for the last one: at most its share of calls times what a call and a restart may take.

        Args:
            task: what to do with each.
            pairs: completion and answer.
            name: what is scored, for messages.

        Returns:
            What became of each pair, in order.

        Raises:
            ConfigError: the task can't be loaded in another process, or the pool is closed.
            WorkerError: a worker process doesn't start.
            DeadlineExceeded: it doesn't start in time, or somebody else uses the pool for too long.
        """
        if not pairs:
            return []
        if not self.usable:
            raise ConfigError("VerifierPool", "it is closed, or belongs to another process", "Make a new one.")
        with self._exclusive(name):
            run = _Run(self, task, pairs, name, *self._pickled(task, name))
            try:
                return run.outcomes()
            except BaseException:
                # What they answer would be taken for that of the next batch.
                for worker in [w for w in self._workers if w.deadline is not None]:
                    self._discard(worker)
                raise

    @contextmanager
    def _exclusive(self, name: str) -> Generator[None]:
        if not self._lock.acquire(timeout=TURN_S):
            raise DeadlineExceeded(f"scoring of {name}", f"waited {TURN_S:g} s for the worker processes that another thread uses")
        try:
            yield
        finally:
            self._lock.release()

    def _pickled(self, task: Task, name: str) -> tuple[int, bytes]:
        remedy = "A verifier runs in a process of its own: define it at the top of a module that can be imported."
        held = io.BytesIO()
        try:
            _Pickler(held).dump((_sendable(task.prepare), _sendable(task.verify), task.batched))
        except _InMain as error:
            raise ConfigError(name, "is defined in __main__, which a worker process can't import", remedy) from error
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(name, f"can't be sent to a worker process ({error})", remedy) from error
        pickled = held.getvalue()
        return self._keys.setdefault(pickled, len(self._keys)), pickled

    def _discard(self, worker: _Worker) -> int | None:
        self._workers.remove(worker)
        return worker.process.kill()


class _InMain(Exception):
    """Something is defined in `__main__`."""


class _Pickler(pickle.Pickler):
    """Refuses functions and classes of `__main__`: a pickle names them by their module, and in a worker that is another program."""

    def reducer_override(self, obj: Any) -> Any:
        """Called for each function, class and instance."""
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
            raise _InMain
        return NotImplemented


def _sendable(function: Any) -> Any:
    return (function.file, function.function, dict(function.options)) if isinstance(function, InFile) else function


class _Worker:
    """A process that verifies one pair at a time; nothing that it sends is unpickled."""

    def __init__(self, number: int) -> None:
        # By path and with nothing of ours but one file, so that it starts in a tenth of the time that importing torch takes.
        command = [sys.executable, "-P", _PROGRAM, connection.__file__]
        self.process: Final = ChildProcess(command, env={**os.environ, **_ENVIRONMENT}, connect=True, limit=MAX_REPLY)
        self.number: Final = number
        self.loaded: Final[set[int]] = set()
        self.index: int | None = None
        """Which pair it works on; None while it loads or is idle."""
        self.deadline: float | None = None
        """When its next answer is due, by the monotonic clock; None if it is idle."""

    def send(self, request: Mapping[str, Any], payload: bytes = b"", *, seconds: float) -> None:
        """Asks for something, the answer to which is due in some seconds.

        Raises:
            ConnectionLost: the process has ended.
        """
        self.deadline = time.monotonic() + seconds
        self.process.connection.send(request, payload)


class _Run:
    """One batch on its way through the pool."""

    def __init__(
        self, pool: VerifierPool, task: Task, pairs: Sequence[tuple[str, str]], name: str, key: int, pickled: bytes
    ) -> None:
        self.pool, self.task, self.pairs, self.name, self.key, self.pickled = pool, task, pairs, name, key, pickled
        self.waiting = deque(range(len(pairs)))
        self.found: dict[int, Outcome] = {}

    def outcomes(self) -> list[Outcome]:
        while len(self.found) < len(self.pairs):
            self._dispatch()
            self._wait_for_replies()
        return [self.found[index] for index in range(len(self.pairs))]

    @property
    def _workers(self) -> list[_Worker]:
        return self.pool._workers  # pyright: ignore[reportPrivateUsage]

    def _kill(self, worker: _Worker) -> int | None:
        return self.pool._discard(worker)  # pyright: ignore[reportPrivateUsage]

    def _dispatch(self) -> None:
        """Gives every idle process a pair, after what it must load; starts processes for what is left."""
        for worker in [w for w in self._workers if w.deadline is None]:
            if worker.process.has_ended():
                self._kill(worker)
        idle = [w for w in self._workers if w.deadline is None]
        # A process that loads takes a pair next, so that none is started for that pair.
        loading = sum(w.deadline is not None and w.index is None for w in self._workers)
        room = self.pool.max_workers - len(self._workers)
        for _ in range(min(room, len(self.waiting) - len(idle) - loading)):
            idle.append(_Worker(len(self._workers)))
            self._workers.append(idle[-1])
        for worker in idle[: max(0, len(self.waiting) - loading)]:
            if self.key in worker.loaded:
                self._send_pair(worker)
            else:
                self._send_task(worker)

    def _send_task(self, worker: _Worker) -> None:
        worker.index = None
        try:
            worker.send({"load": self.key, "path": sys.path}, self.pickled, seconds=START_S)
        except ConnectionLost:
            self._handle_exit(worker)

    def _send_pair(self, worker: _Worker) -> None:
        worker.index = self.waiting.popleft()
        completion, answer = self.pairs[worker.index]
        limits = {"timeout_s": self.task.timeout_s, "memory_mb": self.task.memory_mb}
        request = {"verifier": self.key, "completion": completion, "answer": answer, **limits}
        try:
            worker.send(request, seconds=self.task.timeout_s + GRACE_S)
        except ConnectionLost:
            self._handle_exit(worker)

    def _wait_for_replies(self) -> None:
        """Waits for the next answer or the next deadline."""
        working = [w for w in self._workers if w.deadline is not None]
        if not working:
            return
        due = min(w.deadline for w in working if w.deadline is not None)
        with selectors.DefaultSelector() as selector:
            for worker in working:
                selector.register(worker.process.connection, selectors.EVENT_READ, worker)
            ready = [key.data for key, _ in selector.select(max(0.0, due - time.monotonic()))]
        for worker in working:
            # An answer that is there counts, even if it is late.
            if worker in ready:
                self._read_reply(worker)
            elif worker.deadline is not None and worker.deadline <= time.monotonic():
                self._handle_timeout(worker)

    def _read_reply(self, worker: _Worker) -> None:
        try:
            message = worker.process.connection.receive()
        except ConnectionLost:
            self._handle_exit(worker)
            return
        # Only its beginning is there; the deadline stays.
        if message is None:
            return
        reply, worker.deadline = message[0], None
        if worker.index is not None:
            self.found[worker.index] = _outcome(reply, self.task.timeout_s)
        elif "ready" in reply:
            worker.loaded.add(self.key)
        else:
            raise ConfigError(self.name, f"can't be loaded in a worker process ({reply.get('error')})", "Is it importable there?")

    def _handle_exit(self, worker: _Worker) -> None:
        """A process ended by itself: the pair that it worked on failed; one that had none never started."""
        # A closed connection may be seen before the end; killed at once, the process would seem to have ended by that.
        worker.process.wait(GRACE_S)
        code = self._kill(worker)
        reason = f"its process {exit_reason(code)}"
        if worker.index is None:
            raise WorkerError("verifier", worker.number, "start", f"{reason} while loading {self.name}; see its output above")
        # The limit of CPU time ends a process by SIGXCPU where the verifier has kept the alarm from Python.
        self.found[worker.index] = Outcome(None, reason, timed_out=code == -signal.SIGXCPU)

    def _handle_timeout(self, worker: _Worker) -> None:
        self._kill(worker)
        if worker.index is None:
            raise DeadlineExceeded(f"verifier[{worker.number}]", f"did not load {self.name} within {START_S:g} s")
        self.found[worker.index] = Outcome(None, _no_answer(self.task.timeout_s), timed_out=True)


def _outcome(reply: dict[str, Any], timeout_s: float) -> Outcome:
    if "score" in reply:
        return Outcome(float(reply["score"]))
    if "timeout" in reply:
        return Outcome(None, _no_answer(timeout_s), timed_out=True)
    return Outcome(None, str(reply.get("error")))


def _no_answer(timeout_s: float) -> str:
    return f"no answer within {timeout_s:g} s"


def _kill_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().process.kill()


_shared: list[VerifierPool] = []
_shared_lock = threading.Lock()


def shared_pool() -> VerifierPool:
    """The pool of this process, for whoever brings none; it starts nothing before there is work and ends with the process."""
    with _shared_lock:
        # One that a fork has inherited speaks to processes of the parent.
        if not (_shared and _shared[-1].usable):
            _shared[:] = [VerifierPool()]
        return _shared[-1]


@atexit.register
def close_shared_pool() -> None:
    """Ends the processes of `shared_pool`; the next use starts others."""
    with _shared_lock:
        for pool in _shared:
            pool.close()
        _shared.clear()
