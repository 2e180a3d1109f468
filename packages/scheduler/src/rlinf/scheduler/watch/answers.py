"""What a worker's process tells the driver of itself, and of others of its node."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial

from rlinf.scheduler.transport.queues import Queues
from rlinf.scheduler.transport.sockets.server import Server
from rlinf.scheduler.transport.waits import Use, activities
from rlinf.scheduler.watch.processes import describe, stopped
from rlinf.scheduler.watch.stacks import Stack, answer_signals, foreign_stacks, own_stacks

Look = dict[int, tuple[str, list[Stack]]]
"""What can be seen of processes from outside, by id: their state, and their stacks."""


def answer(who: str, server: Server) -> None:
    """Answers all questions of the driver's `Watcher` from now on, some in each process, some for its whole node."""
    answer_signals()
    server.serve("activities", partial(activities, who))
    server.serve("stacks", own_stacks)
    server.serve("uses", partial(uses_of, server.queues))
    # In a thread of its own: py-spy and signals take seconds.
    server.serve("look", look, waits=True)


def uses_of(queues: Queues, names: Sequence[bytes]) -> list[Use]:
    """The last use of queues of this process, whose names are pickled."""
    loaded = [pickle.loads(name) for name in names]  # noqa: S301 - the names were in requests to this process before
    return [queues.use(name) for name in loaded]


def look(pids: Sequence[int], stacks: bool) -> Look:
    """The state of processes of this node that do not answer, and their stacks if they can have any."""
    found = foreign_stacks([pid for pid in pids if not stopped(pid)]) if stacks else {}
    return {pid: (describe(pid), found.get(pid, [])) for pid in pids}
