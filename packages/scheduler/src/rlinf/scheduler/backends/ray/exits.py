"""What runs above a worker's process on this machine, how the process ended, and what keeps it from running: in words."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from rlinf.core.process import exit_reason, supervisor
from rlinf.scheduler.watch.processes import state

STOPPED = "its process is stopped (state T), as by SIGSTOP"
GRACE_S = 1.0
"""How long a process may take to follow Ray or the driver."""


def supervised(interpreter: str | None, status: Path, driver: int) -> str:
    """The command of an interpreter below a supervisor, which says in the file `status` how it ended."""
    command = supervisor.command_line([], watched=[driver], grace_s=GRACE_S, status=str(status), detached=True)
    return f"{shlex.join(command)} {interpreter or shlex.quote(sys.executable)}"


def exit_of(status: Path, seconds: float) -> str:
    """How the process of a status file ended, `it was killed by SIGSEGV`; "" if the file does not come within some seconds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            how, number, *oom = status.read_text().split()
        # The supervisor has not written it yet.
        except OSError:
            if time.monotonic() >= deadline:
                return ""
            time.sleep(0.01)
            continue
        return f"it {exit_reason(int(number) if how == 'exited' else -int(number), out_of_memory=bool(oom))}"


def obstacle(pid: int) -> str:
    """What keeps a process from running: "" if nothing does, or nobody knows."""
    return STOPPED if state(pid) in ("T", "t") else ""
