"""How many CPU cores there are for this process."""

from __future__ import annotations

import os


def own_cores() -> int:
    """CPU cores that this process may use; all of the machine where the platform does not say."""
    # Not `os.cpu_count` alone, which counts cores that a batch system or `taskset` has forbidden; macOS knows no others.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
