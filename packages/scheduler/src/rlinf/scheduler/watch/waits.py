"""What a process does, as a line of the wait graph: with what is known of those who could end its wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlinf.scheduler.transport.queues import Queues
from rlinf.scheduler.transport.transport import label
from rlinf.scheduler.transport.waits import Activity, Use, activities
from rlinf.scheduler.watch.answers import uses_of
from rlinf.scheduler.watch.graph import Waiter, WaitGraph
from rlinf.scheduler.workers.device_lock import Locks


def waiter(who: str, doing: Activity, uses: Mapping[tuple[str, bytes], Use], locks: Locks) -> Waiter:
    """One line of the graph.

    Args:
        who: whose.
        doing: what one of its threads does.
        uses: the last use of queues, by host and pickled name.
        locks: those of the run.
    """
    blocked = doing.blocked
    if blocked is None:
        return Waiter(who=who, method=doing.method, seconds=doing.seconds)
    peers, note = blocked.peers, ""
    use = uses.get((blocked.host, blocked.queue))
    if blocked.goal == "the lock":
        holders, note = locks.ahead(who)
        peers = tuple(sorted(holders))
    elif use is not None:
        last, note = use.describe(for_room=blocked.goal == "room")
        peers = peers or ((last,) if last else ())
    elif blocked.queue and not peers:
        note = f"{label(blocked.host)}, which hosts it, does not answer"
        peers = (label(blocked.host),)
    return Waiter(
        who=who,
        method=doing.method,
        seconds=doing.seconds,
        goal=blocked.goal,
        place=blocked.place,
        waited=blocked.seconds,
        peers=peers,
        note=note,
    )


def graph_here(names: Iterable[str], queues: Queues, locks: Locks) -> WaitGraph:
    """The graph of a run whose workers are all in this process."""
    said = {name: activities(name) for name in names}
    waits = [doing.blocked for found in said.values() for doing in found if doing.blocked and doing.blocked.queue]
    uses = {(wait.host, wait.queue): uses_of(queues, [wait.queue])[0] for wait in waits}
    return WaitGraph(tuple(waiter(name, doing, uses, locks) for name, found in said.items() for doing in found))
