"""How much memory processes have."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def resident(*, own: bool = True, children: bool = True) -> int:
    """Bytes of memory in use by this process and its descendants; where there is no /proc, the most this process ever used.

    Args:
        own: whether this process counts.
        children: whether its descendants do.
    """
    if not (_PROC / "self" / "statm").exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Bytes on macOS, kilobytes elsewhere.
        return (peak if sys.platform == "darwin" else peak * 1024) if own else 0
    here = os.getpid()
    pids = family(here) if children else [here]
    pages = [of_process(pid, "statm").split() for pid in pids if own or pid != here]
    # The second number of `statm` is the resident set. Pages that processes share count for each of them.
    return sum(int(fields[1]) for fields in pages if fields) * os.sysconf("SC_PAGE_SIZE")


def family(pid: int) -> Iterator[int]:
    """A process, and its living descendants."""
    yield pid
    for task in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            children = task.read_text().split()
        # It has ended since it was listed.
        except OSError:
            continue
        for child in children:
            yield from family(int(child))


def of_process(pid: int, name: str) -> str:
    """A file of a process below /proc; "" if the process is gone."""
    try:
        return (_PROC / str(pid) / name).read_text()
    except OSError:
        return ""
