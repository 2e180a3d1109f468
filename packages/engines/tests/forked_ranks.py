"""Ranks that are copies of one process, which has imported what they need: torch and the compiler are most of a rank's time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import connection
from typing import Any


def _rank(target: Callable[..., None], rank: int, arguments: tuple[Any, ...], done: Any) -> None:
    target(rank, *arguments)
    # The first rank serves the store at which the others still take leave.
    done.wait(60.0)
    # Past the interpreter's end, in which a thread of gloo that still holds a tensor may abort (pytorch/pytorch#190489).
    os._exit(0)


def forked(world_size: int, target: Callable[..., None], *arguments: Any) -> bool:
    """Whether `target(rank, *arguments)` came to its end in every rank; the first that fails ends the others."""
    forks = multiprocessing.get_context("fork")
    done = forks.Barrier(world_size)
    ranks = [forks.Process(target=_rank, args=(target, rank, arguments, done), daemon=True) for rank in range(world_size)]
    for one in ranks:
        one.start()
    waiting = {one.sentinel for one in ranks}
    while waiting and not any(one.exitcode for one in ranks):
        waiting -= set(connection.wait(waiting))
    if not waiting:
        # A sentinel may be seen before the exit code.
        for one in ranks:
            one.join(60.0)
    ended = all(one.exitcode == 0 for one in ranks)
    for one in ranks:
        # Nobody may be left at a barrier whose memory the next one would get.
        one.kill()
        one.join(60.0)
    return ended
