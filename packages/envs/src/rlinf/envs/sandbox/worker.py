"""One fork server from outside: starts it, hands it programs one at a time, and replaces it where it fails."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlinf.core.errors import RLinfError
from rlinf.core.process import ChildProcess, ConnectionLost, connection
from rlinf.core.sandbox import Execution, ExecutionResult
from rlinf.envs.sandbox.watching import Watched

_log = logging.getLogger(__name__)
START_S: Final = 120.0
"""Within which a server has to be ready; it takes a fifth of a second where nothing else runs."""
_FAILURES: Final = 3
_REPLY: Final = 1 << 16


class Refused(Exception):
    """The machine does not allow what a level needs; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How servers are started."""

    command: tuple[str, ...]
    """Their command line, but for the last two arguments: where the connection's file is, and the setting."""
    setting: dict[str, Any]
    """What they are told of all programs, but for what is a worker's own."""
    own_users: bool
    """Whether each runs its programs as a user of its own."""


class SandboxWorker:
    """One server, and its folder.

    Args:
        launch: how it is started.
        number: which of its pool it is, from 0.

    Raises:
        Refused: the machine does not allow the level.
    """

    def __init__(self, launch: Launch, number: int) -> None:
        self._launch, self._number = launch, number
        self._ends: Final[bool] = launch.setting["bubblewrap"]
        self._scratch = tempfile.mkdtemp(prefix="rlinf-sandbox-")
        self._process: ChildProcess | None = None
        self._ready = False
        try:
            self._expect_ready(self._started())
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The server's process id; 0 while there is none."""
        return 0 if self._process is None else self._process.pid

    def execute(self, execution: Execution) -> ExecutionResult:
        """Runs one program, and waits until nothing of it is left.

        Raises:
            RLinfError: no server can be started that runs it.
        """
        try:
            result, failures = None, 0
            while result is None:
                process = self._started()
                self._expect_ready(process)
                result = self._executed(process, execution)
                failures += result is None
                if failures == _FAILURES:
                    raise RLinfError("sandbox", f"worker {self._number} ended {failures} times before a program began")
        except Refused as error:
            self._stop()
            raise RLinfError("sandbox", f"worker {self._number} could not be started: {error}") from error
        except BaseException:
            self._stop()
            raise
        if self._ends and self._process is not None:
            # Its successor starts while nobody waits for it.
            self._process.wait(START_S)
            self._started()
        return result

    def close(self) -> None:
        """Ends the server and removes its folder."""
        self._stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _started(self) -> ChildProcess:
        if self._process is not None and not self._process.has_ended():
            return self._process
        self._stop()
        user = own_user(self._number) if self._launch.own_users else 0
        setting = {**self._launch.setting, "scratch": self._scratch, "user": user}
        command = [*self._launch.command, str(Path(connection.__file__).parent), json.dumps(setting)]
        self._process = ChildProcess(command, env=_ENVIRONMENT, connect=True, limit=_REPLY)
        self._ready = False
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.connection.close()
            self._process = None

    def _expect_ready(self, process: ChildProcess) -> None:
        if self._ready:
            return
        try:
            message = process.connection.wait_for(START_S)
        except ConnectionLost:
            process.wait(START_S)
            raise Refused(f"its process {process.cause('its start')}") from None
        if message is None:
            raise Refused(f"its process was not ready within {START_S:g} s")
        if "refused" in message[0]:
            raise Refused(message[0]["refused"])
        self._ready = True

    def _executed(self, process: ChildProcess, execution: Execution) -> ExecutionResult | None:
        """What became of a program; None if the server ended before it began."""
        limits = execution.limits
        cpu_s = limits.wall_s if limits.cpu_s is None else limits.cpu_s
        began = time.monotonic()
        with Watched(execution, cpu_s) as watched:
            try:
                process.connection.send_descriptors(watched.theirs)
                process.connection.send({"cpu_s": cpu_s, "memory_mb": limits.memory_mb, "processes": limits.processes})
                watched.follow(process.connection, ends=self._ends)
            except ConnectionLost as error:
                # A machine without memory may kill any process. What a program does to its server must not stop who asked.
                _log.warning("sandbox worker %d failed and is replaced: %s; its process %s", self._number, error, process.cause())
                self._stop()
                if not watched.began:
                    return None
            return watched.result(time.monotonic() - began)


_ENVIRONMENT: Final = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""All that a program finds; libraries that are imported for it beforehand must not start threads, which a fork would lose."""


def own_user(number: int) -> int:
    """A user that nobody is, for the programs of one worker of this process: they can't reach those of others.

    Processes are counted by user, and a user's can be signalled by its own.
    """
    last = 0
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        last = max(last, first + count - 1)
    # Below 65536 are those of the machine, if there are more.
    room = last - 65536 if last > 1 << 20 else 0
    return 65536 + (os.getpid() * 64 + number) % min(room, 1 << 30) if room > 0 else last
