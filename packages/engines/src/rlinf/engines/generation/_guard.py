"""Runs a program until it ends, or whoever started this is gone; then nothing of its process group stays.

    python _guard.py PROGRAM [ARGUMENT …]        # standard input: a pipe that the one who starts it keeps open

The end of the pipe, which comes however the other side died, asks the program to end (SIGTERM), and after a while makes it
(SIGKILL). Run as a file, so it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

GRACE_S = 15.0
"""Between asking and making."""
POLL_S = 0.1
_SIGNALLED = 128
"""A shell's exit status for signal 0."""


def main(command: Sequence[str]) -> int:
    """Returns the program's exit status, 128 + n for signal n."""
    asked: list[float] = []

    def ask(*_: object) -> None:
        asked.append(time.monotonic())

    signal.signal(signal.SIGTERM, ask)
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603
    threading.Thread(target=_wait_for_the_end, args=(ask,), daemon=True).start()
    told = False
    while program.poll() is None:
        if asked and not told:
            told = True
            _signal(program.pid, signal.SIGTERM)
        elif asked and time.monotonic() > asked[0] + GRACE_S:
            _signal(program.pid, signal.SIGKILL)
        time.sleep(POLL_S)
    _signal(program.pid, signal.SIGKILL)
    return program.returncode if program.returncode >= 0 else _SIGNALLED - program.returncode


def _wait_for_the_end(ask: Callable[[], None]) -> None:
    while os.read(0, 1):
        pass
    ask()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # the thread still reads
