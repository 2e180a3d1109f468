"""What the kernel says of a process that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_STATES: Final = {
    "R": "busy in native code that holds Python's lock",
    "S": "blocked in native code that holds Python's lock",
    "D": "waiting in the kernel for a disk or a driver",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
}
STOPPED: Final = "stopped (state T)"
"""How the description of a process begins that runs no code until somebody continues it."""


def state(pid: int) -> str:
    """The letter of a process in `/proc`: R if any of its threads runs, else that of its main thread; "" if it is gone."""
    try:
        letter = _letter(Path(f"/proc/{pid}/stat"))
        if letter in "SD" and any(_letter(task / "stat") == "R" for task in Path(f"/proc/{pid}/task").iterdir()):
            return "R"
    except (OSError, IndexError):
        return ""
    return letter


def stopped(pid: int) -> bool:
    """Whether a process runs no code now, whatever one sends it."""
    return state(pid) in ("T", "t", "Z", "X", "")


def describe(pid: int) -> str:
    """`stopped (state T), pid 123`."""
    letter = state(pid)
    return f"gone, pid {pid}" if not letter else f"{_STATES.get(letter, 'busy')} (state {letter}), pid {pid}"


def _letter(path: Path) -> str:
    # The second field, a name in parentheses, may itself contain spaces and parentheses.
    return path.read_text().rpartition(")")[2].split()[0]
