"""`Recorder`: writes what happens in one process to a file of its own, a line for each event."""

from __future__ import annotations

import itertools
import json
import logging
import os
import platform
import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from heapq import heappop, heappush
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from rlinf.scheduler.trace.spans import Kind
from rlinf.scheduler.workers.calls import Outcome

FORMAT = "rlinf-trace-1"
FLUSH_S = 0.2
"""A process that is killed loses at most the events of that time."""
FLUSH_LINES = 512
ALIVE_S = 1.0
"""How often a process that is in a call says so, so that a call that never ends has a length."""
LIMIT_BYTES = 1 << 30
"""Where a process stops recording, so that a long run can't fill the disk."""
NAMES = 4096
_LOG = logging.getLogger("rlinf.scheduler")
_LINE: ContextVar[int] = ContextVar("rlinf_trace_line", default=0)


class Recorder:
    """The events of one process. Any thread may record; a forked child does not.

    A file that can't be written, as on a full disk, ends the recording with one warning, and nothing else.

    Args:
        folder: where the processes of the run write.
        process: this process's address.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._pid = os.getpid()
        self._path = folder / f"{process}-{self._pid}.jsonl"
        self._file: int | None = None
        self.lost = False
        """The file could not be written, and a warning has said so."""
        try:
            self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        except OSError as error:
            self._give_up(error)
        self._left = LIMIT_BYTES
        self._lines: deque[str] = deque()
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._quoted: dict[str, str] = {}
        self._waited: dict[int, int] = {}
        self._calls = 0
        # Random bits above tell processes apart; the lower 32 bits count.
        self._numbers = itertools.count(secrets.randbits(31) << 32)
        self._async_lines = itertools.count(1)  # threads have far greater numbers
        self._free: list[int] = []
        now = time.monotonic_ns()
        host, offset = platform.node(), time.time_ns() - now
        self.clock = (zlib.crc32(host.encode()), offset)
        """Whose `time.monotonic_ns()` its times are, and what the wall clock was ahead of it; as in the header, and shorter."""
        header = {"format": FORMAT, "process": process, "pid": self._pid, "host": host, "start": now, "wall_offset": offset}
        self._lines.append(json.dumps(header) + "\n")
        self.flush()
        threading.Thread(target=self._flush_often, name="rlinf-trace", daemon=True).start()

    def number(self) -> int:
        """A number for an item, unlike those of all other processes."""
        return next(self._numbers)

    def record(
        self,
        kind: Kind,
        who: str,
        name: str,
        key: str,
        start: int,
        *,
        waited: int = 0,
        sizes: tuple[int, int] = (0, 0),
        failed: bool = False,
        ids: Sequence[int] = (),
        route: str = "",
    ) -> None:
        """Something that began at `start` has ended now.

        Args:
            kind: what it was.
            who: `rollout[1]`, or `driver`.
            name: see `Span`.
            key: see `Span`.
            start: `time.monotonic_ns()` at its beginning.
            waited: nanoseconds of waiting in it.
            sizes: how many items, and their bytes.
            failed: it raised.
            ids: the items' numbers.
            route: see `Span`.
        """
        thread = _line()
        if kind not in ("call", "timer", "memory"):
            self._waited[thread] = self._waited.get(thread, 0) + waited
        numbers = ",".join(map(str, ids))
        tail = f',"{route}"' if route else ""
        self._lines.append(
            f'["{kind}",{self._quote(who)},{thread},{self._quote(name)},{self._quote(key)},{start},{time.monotonic_ns()},{waited},'
            f"{sizes[0]},{sizes[1]},{1 if failed else 0},[{numbers}]{tail}]\n"
        )
        if len(self._lines) >= FLUSH_LINES:
            self.flush()

    def call(self, who: str, method: str, run: Callable[[], Outcome]) -> Outcome:
        """Runs a call and records it; its beginning, too, so that a call that never ends is seen."""
        begun = self._begin(who, method)
        outcome = run()
        self._end(who, method, *begun, failed=outcome.failure is not None)
        return outcome

    async def call_async(self, who: str, method: str, run: Callable[[], Coroutine[Any, Any, Outcome]]) -> Outcome:
        """The same for an async call, which is shown in a line of its own: others run while it waits."""
        # The lowest free line, so that there are no more lines than calls at a time.
        line = heappop(self._free) if self._free else next(self._async_lines)
        token = _LINE.set(line)
        begun = self._begin(who, method)
        outcome = await run()
        self._end(who, method, *begun, failed=outcome.failure is not None)
        _LINE.reset(token)
        heappush(self._free, line)
        return outcome

    def _begin(self, who: str, method: str) -> tuple[int, int]:
        """Records that a call begins; returns when, and the nanoseconds that its line has waited before."""
        line, start = _line(), time.monotonic_ns()
        self._lines.append(f'["begin",{self._quote(who)},{line},{self._quote(method)},{start}]\n')
        # At once: of a process that is killed in the call, the trace has at least its beginning.
        self.flush()
        self._calls += 1
        return start, self._waited.get(line, 0)

    def _end(self, who: str, method: str, start: int, before: int, *, failed: bool) -> None:
        self._calls -= 1
        self.record("call", who, method, "", start, waited=self._waited.get(_line(), 0) - before, failed=failed)
        self.flush()

    def timers(self, who: str) -> Callable[[str], AbstractContextManager[None]]:
        """Records the timers of a worker."""

        @contextmanager
        def timer(tag: str) -> Generator[None]:
            start = time.monotonic_ns()
            thread = _line()
            before = self._waited.get(thread, 0)
            try:
                yield
            finally:
                self.record("timer", who, tag, "", start, waited=self._waited.get(thread, 0) - before)

        return timer

    def memory(self, who: str) -> Callable[[str, int], None]:
        """Records what the parts of a worker take."""

        def record(part: str, size: int) -> None:
            self.record("memory", who, part, "", time.monotonic_ns(), sizes=(0, size))

        return record

    def flush(self) -> None:
        """Writes what was recorded so far."""
        if os.getpid() != self._pid:
            self._lines.clear()
            return
        with self._writing:
            # As many as there are now: other threads append meanwhile, without a lock.
            data = "".join(self._lines.popleft() for _ in range(len(self._lines))).encode()
            if self._file is None or not data:
                return
            self._left -= len(data)
            # The limit is looked at before the write, so that the file ends with a whole line.
            if self._left < 0:
                data = json.dumps(["full", time.monotonic_ns()]).encode() + b"\n"
                self._closed.set()
            try:
                _write(self._file, data)
            except OSError as error:
                self._give_up(error)
                self._left = -1
            if self._left < 0:
                os.close(self._file)
                self._file = None

    def close(self) -> None:
        """Writes the rest and closes the file; what is recorded later is lost."""
        self._closed.set()
        self.flush()
        with self._writing:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _give_up(self, error: OSError) -> None:
        self.lost = True
        problem = "cluster.tracer: '%s' can't be written: %s. What follows is not in the trace; the run goes on."
        _LOG.warning(problem, self._path, error.strerror)

    def _flush_often(self) -> None:
        said = time.monotonic()
        while not self._closed.wait(FLUSH_S):
            if self._calls and time.monotonic() - said >= ALIVE_S:
                said = time.monotonic()
                self._lines.append(f'["alive",{time.monotonic_ns()}]\n')
            self.flush()

    def _quote(self, text: str) -> str:
        quoted = self._quoted.get(text)
        if quoted is None:
            if len(self._quoted) >= NAMES:
                self._quoted.clear()
            quoted = self._quoted[text] = encode_basestring_ascii(text)
        return quoted


def _line() -> int:
    """Tells apart what happens at the same time: the line of an async call, or else the thread."""
    return _LINE.get() or threading.get_ident()


def counted(number: int) -> int:
    """How many items the process had numbered before."""
    return number & 0xFFFFFFFF


def recorded(recorder: Recorder | None, who: str, method: str, run: Callable[[], Outcome]) -> Outcome:
    """Runs a call, and records it if there is a recorder."""
    return run() if recorder is None else recorder.call(who, method, run)


async def recorded_async(
    recorder: Recorder | None, who: str, method: str, run: Callable[[], Coroutine[Any, Any, Outcome]]
) -> Outcome:
    """Runs an async call, and records it if there is a recorder."""
    return await (run() if recorder is None else recorder.call_async(who, method, run))


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
