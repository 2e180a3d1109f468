"""`Watcher`: the driver's view of what all processes of a Ray cluster are doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlinf.core.errors import RLinfError
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport
from rlinf.scheduler.transport.transport import DRIVER, label
from rlinf.scheduler.transport.waits import Activity, Blocked, Use, Wait, activities
from rlinf.scheduler.watch.answers import Look, look, uses_of
from rlinf.scheduler.watch.graph import Waiter, WaitGraph
from rlinf.scheduler.watch.stacks import Stack, own_stacks
from rlinf.scheduler.watch.waits import waiter

ANSWER_S = 1.0
"""How long a process has to answer; one that computes in Python does so in milliseconds."""
LOOK_S = 15.0


class Watcher:
    """Asks all processes what they are doing.

    Args:
        transport: the driver's.
    """

    def __init__(self, transport: DriverTransport) -> None:
        self._transport = transport

    def wait_graph(self) -> WaitGraph:
        """Who waits for whom at this moment. Takes a second if a process does not answer."""
        answers, silent = self._ask("activities")
        said: dict[str, list[Activity]] = {DRIVER: activities(DRIVER), **answers}
        uses = self._uses([doing.blocked for all_of_one in said.values() for doing in all_of_one if doing.blocked])
        waiters = [waiter(label(host), doing, uses, self._transport.locks) for host, found in said.items() for doing in found]
        for host, (state, _) in self._look(silent, stacks=False).items():
            waiters.append(Waiter(who=label(host), note=f"does not answer: {state}"))
        return WaitGraph(tuple(sorted(waiters, key=lambda waiter: _natural(waiter.who))))

    def silent(self) -> dict[str, tuple[int, str]]:
        """The processes that do not answer at this moment, by address: their ids, and how they look from outside."""
        _, silent = self._ask("activities")
        return {host: (silent[host], state) for host, (state, _) in self._look(silent, stacks=False).items()}

    def stacks(self) -> dict[str, list[Stack]]:
        """The Python stacks of the driver and of all workers: `rollout[1]` → a stack for each thread. Stopped ones have none."""
        said, silent = self._ask("stacks")
        found: dict[str, list[Stack]] = {DRIVER: own_stacks(), **{label(host): stacks for host, stacks in said.items()}}
        for host, (state, stacks) in self._look(silent, stacks=True).items():
            found[label(host)] = stacks or [Stack(state, ())]
        return dict(sorted(found.items(), key=lambda item: _natural(item[0])))

    def _ask(self, kind: str) -> tuple[dict[str, Any], dict[str, int]]:
        """What processes answer to a question, by address; and the ids of those that do not answer."""
        controls = self._transport.controls
        pids = controls.pids()
        said = controls.ask(kind, timeout=ANSWER_S)
        # One that has ended meanwhile is not silent.
        return said, {host: pid for host, pid in pids.items() if host not in said and host in controls.pids()}

    def _uses(self, waits: Sequence[Blocked]) -> dict[tuple[str, bytes], Use]:
        """What the hosts of queues know of those that are waited for."""
        wanted: dict[str, list[bytes]] = {}
        for wait in waits:
            if wait.queue and not wait.peers and wait.queue not in wanted.setdefault(wait.host, []):
                wanted[wait.host].append(wait.queue)
        found: dict[tuple[str, bytes], Use] = {}
        for host, names in wanted.items():
            if host == DRIVER:
                uses = uses_of(self._transport.queues, names)
            else:
                uses = self._transport.controls.ask("uses", names, hosts=[host], timeout=ANSWER_S).get(host, [])
            # A host that has not answered leaves its queues out.
            found.update({(host, name): use for name, use in zip(names, uses, strict=False)})
        return found

    def _look(self, silent: Mapping[str, int], *, stacks: bool) -> dict[str, tuple[str, list[Stack]]]:
        """What is seen from outside of processes that do not answer, by address; on other nodes a process there looks."""
        nodes: dict[str, list[str]] = {}
        for host in silent:
            nodes.setdefault(self._transport.directory.node(host), []).append(host)
        found: dict[str, tuple[str, list[Stack]]] = {}
        for node, hosts in nodes.items():
            pids = [silent[host] for host in hosts]
            seen = look(pids, stacks) if node == self._transport.server.place.node else self._look_there(node, silent, pids, stacks)
            found.update({host: seen.get(silent[host], (f"pid {silent[host]}", [])) for host in hosts})
        return found

    def _look_there(self, node: str, silent: Mapping[str, int], pids: Sequence[int], stacks: bool) -> Look:
        for host in self._transport.directory.hosts(node):
            if host not in silent:
                with suppress(RLinfError):
                    wait = Wait(DRIVER, f"the node of {label(host)}", "a look at its processes", LOOK_S)
                    return self._transport.connections.ask(host, "look", pids, stacks, wait=wait)
        return {}


def _natural(who: str) -> tuple[bool, str, int]:
    """The driver first, then the groups by name and their ranks by number."""
    group, _, rank = who.rstrip("]").rpartition("[")
    return (who != DRIVER, group, int(rank) if rank.isdigit() else 0)
