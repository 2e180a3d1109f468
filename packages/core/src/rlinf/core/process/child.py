"""`ChildProcess`: a program in a process group of its own that never outlives the process that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from rlinf.core.process import supervisor
from rlinf.core.process.connection import LIMIT, Connection
from rlinf.core.process.exits import exit_reason, log_ending

if sys.platform == "linux":
    import fcntl

SEND_S = 30.0
"""Within which a child has to take some of what it is sent; a stopped one does not."""
REAP_S = 10.0
"""Within which the kernel ends a process that was killed; one that hangs in a driver may take for ever."""
_POLL_S = 0.005


class ChildProcess:
    """A running program. Everything in its process group ends with it, and at the latest with this process.

    However this process ends, even by SIGKILL, the kernel then kills the child's process group at once. With `grace_s` a supervisor
    process stands in between, which asks with SIGTERM first, and which also finds what has left the group. A child that is
    garbage-collected is killed. Other threads may use it, and end; forks of this process leave it alone.

    Args:
        command: the program and its arguments, such as `[python, "-m", "module"]` with another interpreter.
        env: its environment variables; None for those of this process.
        log: the file to which its standard output and error are appended; None for those of this process.
        connect: gives it a `Connection`, which it takes up by `Connection.to_parent()`; otherwise its standard input is empty.
        send_s: seconds within which it has to take some of a message that is sent to it; more if it is slow to start.
        limit: bytes of the longest message that is accepted from it.
        pass_fds: further descriptors that it inherits, under the same numbers.
        grace_s: seconds that it is given to end by itself, in `stop` and after the end of this process.

    Raises:
        OSError: the program can't be started. With `grace_s`, it then exits with status 127 instead.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        connect: bool = False,
        send_s: float = SEND_S,
        limit: int = LIMIT,
        pass_fds: Sequence[int] = (),
        grace_s: float = 0.0,
    ) -> None:
        self._log = log
        self._grace_s = grace_s
        self._connection: Connection | None = None
        if grace_s:
            command = supervisor.command_line(command, watched=[os.getpid()], grace_s=grace_s)
        with contextlib.ExitStack() as opened:
            output = None if log is None else opened.enter_context(log.open("ab"))
            stdin: int | socket.socket = subprocess.DEVNULL
            if connect:
                ours, stdin = socket.socketpair()
                opened.enter_context(stdin)
                self._connection = Connection(ours, send_s=send_s, limit=limit)
            try:
                self._group = _Group(command, env, stdin, output, pass_fds, tied=not grace_s)
            except BaseException:
                if self._connection is not None:
                    self._connection.close()
                raise
        # Unlike `__del__`, this is certain to run at the end of the interpreter, too.
        self._finalizer = weakref.finalize(self, self._group.kill)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._group.process.pid

    @property
    def connection(self) -> Connection:
        """This side of the connection.

        Raises:
            RuntimeError: it was started without.
        """
        if self._connection is None:
            raise RuntimeError("this child was started without connect=True")
        return self._connection

    @property
    def returncode(self) -> int | None:
        """Its exit status, -n if signal n killed it; None until `wait`, `stop` or `kill` has seen its end."""
        return self._group.process.returncode

    def has_ended(self) -> bool:
        """Whether it has ended by now."""
        return self._group.has_ended()

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for its end; then ends what is left of its process group.

        Args:
            timeout: seconds; None for as long as it takes.

        Returns:
            Its exit status as `returncode`; None if it still runs.
        """
        return self._group.kill() if self._group.wait(timeout) else None

    def stop(self) -> int | None:
        """Ends it and its process group: SIGTERM and `grace_s` seconds first if it has them, then SIGKILL.

        Returns:
            As `wait`; None only if the kernel does not end it either.
        """
        if self._grace_s:
            # To the supervisor alone, which passes it on; it needs a moment more to look for what has left the group.
            self._group.signal(signal.SIGTERM)
            self._group.wait(self._grace_s + REAP_S)
        return self._group.kill()

    def kill(self) -> int | None:
        """Ends it and its process group at once by SIGKILL; as `stop` otherwise."""
        return self._group.kill()

    def cause(self, doing: str = "") -> str:
        """How it ended and what its log says last: `was killed by SIGSEGV during its start; the last lines of its log: …`.

        Args:
            doing: what it was doing, for the message.
        """
        return f"{exit_reason(self.returncode)}{doing and f' during {doing}'}{log_ending(self._log)}"


class _Group:
    """The process, and what is needed to end its group; apart from `ChildProcess`, so that this can be garbage-collected."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None,
        stdin: int | socket.socket,
        output: IO[bytes] | None,
        pass_fds: Sequence[int],
        *,
        tied: bool,
    ) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._pipe = read = -1
        if tied and sys.platform == "linux":
            read, self._pipe = os.pipe()
            pass_fds = (*pass_fds, read)
        try:
            self.process = subprocess.Popen(  # noqa: S603
                command,
                env=env,
                stdin=stdin if isinstance(stdin, int) else stdin.fileno(),
                stdout=output,
                stderr=output,
                pass_fds=pass_fds,
                # Ctrl-C in a terminal then reaches this process alone, which ends the child in order.
                start_new_session=True,
            )
            if read >= 0:
                # `Popen` returns once the program has replaced the fork; by then the session and its group are there.
                _kill_on_close(read, self.process.pid)
                _open_pipes.add(self._pipe)
        except BaseException:
            if self._pipe >= 0:
                os.close(self._pipe)
            raise
        finally:
            if read >= 0:
                # The child's copy keeps the open file, and with it its settings, alive.
                os.close(read)

    def has_ended(self) -> bool:
        """Looks without reaping: until `kill`, the process id, which is its group's, can't become another process's."""
        if self.process.returncode is not None:
            return True
        if sys.platform != "linux":
            return self.process.poll() is not None
        return _waited(self.process.pid, os.WNOHANG)

    def wait(self, timeout: float | None) -> bool:
        """Whether it has ended, within some seconds."""
        if timeout is None:
            if sys.platform == "linux":
                return self.process.returncode is not None or _waited(self.process.pid, 0)
            timeout = float("inf")
        until = time.monotonic() + timeout
        while not self.has_ended():
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)
        return True

    def signal(self, number: int) -> None:
        """Signals the process alone, unless it was reaped."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.process.returncode is None and os.getpid() == self._owner:
                os.kill(self.process.pid, number)

    def kill(self) -> int | None:
        """Kills the group and reaps the process; does nothing in a fork of this process, whose child it is not."""
        if os.getpid() != self._owner:
            return self.process.returncode
        with self._lock:
            if self.process.returncode is None:
                # Not reaped yet, so that no other group has this number.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(REAP_S)
            if self._pipe >= 0:
                _open_pipes.discard(self._pipe)
                os.close(self._pipe)
                self._pipe = -1
        return self.process.returncode


def _waited(pid: int, flags: int) -> bool:
    if sys.platform != "linux":
        raise NotImplementedError
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | flags) is not None
    except ChildProcessError:  # it was reaped by another thread
        return True


_open_pipes: set[int] = set()
"""The write ends of pipes whose closing kills a child."""


def _kill_on_close(descriptor: int, group: int) -> None:
    """Has the kernel kill a process group when the other end of a pipe is closed, be the processes stuck, stopped or computing.

    The settings belong to the open file, not to a process: the child, which inherits the descriptor, need not know of it. A parent
    that is killed just before this leaves a child whose `Connection` ends. PR_SET_PDEATHSIG will not do: it fires already when the
    *thread* ends that started the child, and for one process only.
    """
    if sys.platform != "linux":
        raise NotImplementedError
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, -group)
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _close_pipes() -> None:
    """A fork has copies of all descriptors, and would keep the children of a parent that it outlives."""
    while _open_pipes:
        os.close(_open_pipes.pop())


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_pipes)


def is_running(pid: int) -> bool:
    """Whether a process of this machine has not ended; one that has ended and was not reaped (a zombie) is not running."""
    return process_state(pid) not in ("", "Z", "X")


def process_state(pid: int) -> str:
    """The kernel's letter for a process, such as "R", "S" or "T" (stopped); "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
