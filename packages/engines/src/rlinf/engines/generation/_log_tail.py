"""What a process said last."""

from __future__ import annotations

from pathlib import Path


def log_tail(path: Path, lines: int = 20, size: int = 16384) -> str:
    """The last lines of a file; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(line.rstrip() for line in text.splitlines()[-lines:])
