"""How much memory a buffer takes, and how much there is."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlinf.core.data import ArraySpec

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where control groups are, and which of them this process is in."""

_FLAGS = 4 + 3
"""Bytes of a slot's reward (float32) and of its three flags."""


_PRIORITY = 32
"""Bytes of a priority in a sum tree at most: itself and the nodes above, twice as many as there are up to the next power of 2."""


def bytes_of_slot(observation: Mapping[str, ArraySpec], action: ArraySpec, *, chunk: int = 1, prioritized: bool = False) -> int:
    """What one slot of a replay buffer takes: an observation in its own type, an action, a reward and flags.

    Args:
        observation: by key, what is kept.
        action: one control step; vectors are kept in float32, numbers in int64.
        chunk: K, control steps in one decision.
        prioritized: whether it is sampled by priority.
    """
    seen = bytes_of_observation(observation) + (_PRIORITY if prioritized else 0)
    numbered = np.issubdtype(np.dtype(action.dtype), np.integer)
    return seen + chunk * math.prod(action.shape) * (8 if numbered else 4) + _FLAGS


def bytes_of_observation(observation: Mapping[str, ArraySpec]) -> int:
    """What the observation of a slot takes of it, which may be on a disk."""
    return sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in observation.values())


def available_memory() -> int:
    """Bytes that a new array could take: what is free or can be freed, but no more than a control group allows this process."""
    limits = [_available(), *_limits_of_groups()]
    return min(limits)


def _available() -> int:
    """Of the machine."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        # No Linux: all of the memory, of which others use a part.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits_of_groups() -> list[int]:
    """What control groups, if there are any, leave to this process: its own and those around it."""
    try:
        groups = dict(line.split(":", 2)[1:] for line in _OWN.read_text().splitlines())
    except OSError:
        return []
    found: list[int] = []
    for top, name, limit, used in (
        (_GROUPS, "", "memory.max", "memory.current"),
        (_GROUPS / "memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        own = top / groups.get(name, "").lstrip("/")
        # A container that is shown the path of its group outside has the files of that group at the top.
        for folder in (own, *(above for above in own.parents if above.is_relative_to(top))):
            try:
                most, now, stat = ((folder / file).read_text().strip() for file in (limit, used, "memory.stat"))
            except OSError:
                continue
            # Without a limit version 2 says "max"; version 1 says a number beyond all memory, which bounds nothing.
            if most.isdigit():
                found.append(max(0, int(most) - int(now) + _freeable(stat)))
    return found


def _freeable(stat: str) -> int:
    """Of what a group uses, what the kernel keeps of files that were read and gives up when memory is asked for."""
    numbers = dict(line.split() for line in stat.splitlines())
    # Version 1 counts what is in the groups below under another name.
    return int(numbers.get("total_inactive_file", numbers.get("inactive_file", 0)))
