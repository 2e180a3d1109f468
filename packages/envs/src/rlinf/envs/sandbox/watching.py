"""One program from outside: the open files that it is given, what it prints, and until when."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import time
from typing import Any, Final, Self

from rlinf.core.errors import RLinfError
from rlinf.core.process import Connection, ConnectionLost
from rlinf.core.sandbox import Execution, ExecutionResult, Reason

END_S: Final = 60.0
_END_FACTOR: Final = 10.0
"""Within which a program that was told to end has to be cleared away: so many seconds, and so many times those that it had."""
_CHUNK: Final = 1 << 16


class Watched:
    """A program on its way: a context manager that closes its files.

    Args:
        execution: what is run.
        cpu_s: the processor seconds that it has.
    """

    def __init__(self, execution: Execution, cpu_s: float) -> None:
        self._limits, self._cpu_s = execution.limits, cpu_s
        self._reason: Reason | None = None
        self._told = bytearray()
        with contextlib.ExitStack() as opened:
            program = opened.enter_context(os.fdopen(_filled(execution.program), "rb"))
            stdin = opened.enter_context(os.fdopen(_filled(execution.stdin), "rb"))
            (stdout, stdout_w), (stderr, stderr_w) = os.pipe(), os.pipe()
            self._report, theirs = socket.socketpair()
            for file in (stdout_w, stderr_w):
                opened.callback(os.close, file)
            opened.enter_context(theirs)
            self.theirs: Final = [program.fileno(), stdin.fileno(), stdout_w, stderr_w, theirs.fileno()]
            """What goes to the server: the program, its three standard streams, and the socket of its monitor."""
            self._theirs = opened.pop_all()
        self._output = {stdout: bytearray(), stderr: bytearray()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._theirs.close()
        self._report.close()
        for file in self._output:
            os.close(file)

    def follow(self, server: Connection, *, ends: bool) -> None:
        """Reads until the server says that nothing of the program is left; has it end where it prints too much or takes too long.

        Args:
            server: the connection to it, over which `theirs` were sent.
            ends: whether the server serves this program only, and says so by its end.

        Raises:
            ConnectionLost: the server is gone, or does not clear the program away.
        """
        self._theirs.close()
        poll = select.poll()
        for file in (*self._output, self._report.fileno(), server.fileno()):
            poll.register(file, select.POLLIN)
        until, told = time.monotonic() + self._limits.wall_s, False
        end_s = END_S + _END_FACTOR * self._limits.wall_s
        while True:
            for file, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000):
                if file == server.fileno():
                    if _is_done(server, ends=ends):
                        return self._drain()
                elif not self._read(file):
                    poll.unregister(file)
            late = time.monotonic() >= until
            if told and late:
                raise ConnectionLost(f"a program was not cleared away within {end_s:g} s")
            if not told and (late or self._reason is not None):
                self._reason = self._reason or "timeout"
                with contextlib.suppress(OSError):  # it has just ended
                    self._report.send(b"end")
                until, told = time.monotonic() + end_s, True

    @property
    def began(self) -> bool:
        """Whether the program was started, as far as is known."""
        return bool(self._told)

    def result(self, seconds: float) -> ExecutionResult:
        """What became of it.

        Args:
            seconds: how long it took as seen from here.

        Raises:
            RLinfError: it was not run.
        """
        report: dict[str, Any] = json.loads(self._told) if self._told.strip() else {}
        if "refused" in report:
            raise RLinfError("sandbox", f"a program could not be confined, and was not run: {report['refused']}")
        stdout, stderr = (bytes(text).decode(errors="replace") for text in self._output.values())
        return ExecutionResult(
            reason=self._reason or _reason(report, self._cpu_s),
            status=report.get("status"),
            stdout=stdout,
            stderr=stderr,
            wall_s=report.get("wall_s", seconds),
            cpu_s=report.get("cpu_s", 0.0),
        )

    def _read(self, file: int) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(file, _CHUNK)
        except BlockingIOError:
            return False
        except ConnectionError:  # the monitor was killed
            return False
        if file not in self._output:
            self._told += data
            return bool(data)
        kept = self._output[file]
        room = (self._limits.output_kb << 10) - len(kept)
        kept += data[:room]
        if len(data) > room:
            self._reason = self._reason or "output"
        return bool(data)

    def _drain(self) -> None:
        """Takes what is left in pipes that nobody writes to any more."""
        for file in (*self._output, self._report.fileno()):
            os.set_blocking(file, False)
            while self._read(file):
                pass


def _is_done(server: Connection, *, ends: bool) -> bool:
    try:
        return server.receive() is not None
    except ConnectionLost:
        if ends:
            return True
        raise


def _filled(text: str) -> int:
    """A file in memory that can be read from its beginning, and no more be changed."""
    file = os.memfd_create("rlinf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # A program with half a surrogate pair is one that Python refuses, as it should.
    data = memoryview(text.encode(errors="surrogatepass"))
    while data:
        data = data[os.write(file, data) :]
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return file


def _reason(report: dict[str, Any], cpu_s: float) -> Reason:
    """How a program ended that nobody told to."""
    status, about = report.get("status"), report.get("about")
    if status == 0:
        return "ok"
    # The kernel's two signals for a process without time: the second can't be told from others but by the time.
    if status is not None and (-status == 24 or (-status == 9 and report["cpu_s"] >= cpu_s)):
        return "timeout"
    if about == "M":
        return "memory"
    if about == "P":
        return "processes"
    return "killed" if status is None or status < 0 else "error"
