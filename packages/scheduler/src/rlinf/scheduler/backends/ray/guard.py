"""`Guard`: a small shell that outlives this process for a moment, and clears up behind it if it was killed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

# `read` fails at the end of its input, which comes when this process is gone, however it went.
_SCRIPT = """
read -r line && exit
[ -n "$1" ] && rm -rf "$1"
shift
[ $# -eq 0 ] || kill -9 "$@" 2>/dev/null
"""


class Guard:
    """Waits for a line on its standard input; if there comes an end instead, it kills processes and removes a folder.

    Args:
        pids: whom to kill. Ray's processes end with this one, but for two agents, which wait a minute for servers that are gone.
        folder: what to remove; None removes nothing.
    """

    def __init__(self, pids: Iterable[int] = (), folder: Path | None = None) -> None:
        command = ["/bin/sh", "-c", _SCRIPT, "guard", "" if folder is None else str(folder), *map(str, pids)]
        # In a session of its own, so that it survives what ends this process's group.
        self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)  # noqa: S603

    def end(self) -> None:
        """Nothing is left to guard."""
        with contextlib.suppress(BrokenPipeError):
            self._shell.communicate(b"\n")
