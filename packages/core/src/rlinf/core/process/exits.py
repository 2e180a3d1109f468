"""Why a process ended: its exit code in words, and the last lines of its log."""

from __future__ import annotations

import signal
from pathlib import Path

LINES = 20


def exit_reason(returncode: int | None, *, out_of_memory: bool = False) -> str:
    """`exited with status 3`, `was killed by SIGSEGV`.

    Args:
        returncode: as of `ChildProcess`: -n for signal n, None for a process that has not ended.
        out_of_memory: whether the kernel has killed processes because memory ran out; it does so by SIGKILL.
    """
    if returncode is None:
        return "has not ended"
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    why = ": the kernel ran out of memory" if out_of_memory and -returncode == signal.SIGKILL else ""
    return f"was killed by {name}{why}"


def log_tail(log: Path, lines: int = LINES, *, size: int = 1 << 15) -> str:
    """The last lines of a file, of its last `size` bytes; "" if there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            # The first byte may be in the midst of a character.
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(line.rstrip() for line in text.splitlines()[-lines:])


def log_ending(log: Path | None) -> str:
    """The last lines of a log as the end of a sentence, `; the last lines of its log: …`; "" if there is no log."""
    if log is None:
        return ""
    tail = log_tail(log)
    if not tail:
        return "; its log is empty"
    indented = "".join(f"\n  {line}" for line in tail.splitlines())
    return f"; the last lines of its log:{indented}\n"
