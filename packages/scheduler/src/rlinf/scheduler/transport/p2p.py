"""`PeerMessenger`: what one worker sends to others and receives from them. A receiver hosts a queue for each sender and tag."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rlinf.core.errors import ConfigError, DeadlineExceeded, UnknownName, did_you_mean
from rlinf.core.protocols import Rank
from rlinf.scheduler.transport.encoding import Blobs, decode, encode, fill
from rlinf.scheduler.transport.transport import Transport, address, label
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.transport.work import AllOf, OrderedTasks, Pending

R = TypeVar("R")
Groups = Callable[[], Mapping[str, int]]
"""The groups that were launched so far, and their world sizes."""


class PeerMessenger:
    """Implements `rlinf.core.protocols.Messenger`.

    Args:
        transport: this process's.
        me: this worker's address.
        groups: asks which groups there are.
        timeout_s: the default deadline of a wait for a send in the background; None if a send takes no time.
    """

    def __init__(self, transport: Transport, me: str, groups: Groups, timeout_s: float | None = None) -> None:
        self._transport = transport
        self._me = me
        self._who = label(me)
        self._groups = groups
        self._timeout_s = timeout_s
        self._sizes: Mapping[str, int] = {}
        self._sending: dict[str, OrderedTasks] = {}
        """Sends that go on by themselves, by receiver."""

    def send(self, item: Any, group: str, rank: Rank, *, tag: str = "", async_op: bool = False) -> Any:
        to = self._address(group, rank, "send to")
        wait = Wait(self._who, f"send to {label(to)}, tag '{tag}'", "delivery")
        return self._put(to, tag, self._encoded(item, to, wait), wait, async_op)

    def recv(
        self, group: str, rank: Rank, *, tag: str = "", timeout: float | None = None, async_op: bool = False, into: Any = None
    ) -> Any:
        sender = self._address(group, rank, "recv from")
        wait = Wait(self._who, f"recv from {label(sender)}, tag '{tag}'", "an item", timeout, peers=(label(sender),))
        return self._get(sender, tag, wait, async_op, into)

    def broadcast(
        self, item: Any, members: Sequence[tuple[str, Rank]], src: tuple[str, Rank] | None, *, tag: str = "", async_op: bool = False
    ) -> Any:
        """See `Messenger`. The source encodes the item once, and sends it to each member in the order of their addresses."""
        source, others = self._members(members, src)
        names = ", ".join(label(host) for host in [source, *others])
        place = f"broadcast from {label(source)} among {names}, tag '{tag}'"
        # The members are part of the tag, so that broadcasts among others do not mix with this one.
        tag = f"broadcast {names} {tag}"
        if self._me != source:
            return self._get(source, tag, Wait(self._who, place, "the object", peers=(label(source),)), async_op)
        # Encoded for no receiver in particular: GPU memory goes by way of the CPU.
        blobs, wait = encode(item, place=place), Wait(self._who, place, "delivery")
        if len(others) > 1:
            blobs = self._transport.routes.several(blobs)
        works = [self._put(to, tag, blobs, wait, async_op) for to in others]
        return AllOf(works, item, place) if async_op else item

    def _encoded(self, item: Any, to: str, wait: Wait) -> Blobs:
        routes = self._transport.routes
        gpu: list[Any] | None = []
        blobs = encode(item, gpu=gpu, place=wait.place)
        if gpu:  # only now it matters what the receiver can open
            gpu = [] if routes.by_nccl(to, wait) else None
            blobs = encode(item, routes.opens(to, wait), gpu, place=wait.place)
        return routes.left(to, blobs, gpu or (), wait)

    def _put(self, to: str, tag: str, blobs: Blobs, wait: Wait, async_op: bool) -> Any:
        queue = ("p2p", to, self._me, tag)
        wait = replace(wait, host=to, queue=queue)
        if self._timeout_s is None:
            operation = self._transport.start_put(to, queue, 0, blobs, 0, wait)
            return Pending(operation, wait, lambda _: None) if async_op else None

        def put() -> None:
            sent = False
            try:
                self._explained(to, lambda: self._transport.put(to, queue, 0, blobs, 0, wait))
                sent = True
            finally:
                # The parts that it has left here would be kept for ever if nobody came for them.
                self._transport.routes.settle(blobs, sent=sent)

        tasks = self._sending.get(to)
        # While sends go on in the background, this one must stay behind them.
        if not async_op and (tasks is None or tasks.idle):
            return put()
        if tasks is None:
            tasks = self._sending.setdefault(to, OrderedTasks(f"{self._who} send to {label(to)}", self._timeout_s))
        work = tasks.add(put, wait)
        return work if async_op else work.wait()

    def _get(self, sender: str, tag: str, wait: Wait, async_op: bool, into: Any = None) -> Any:
        queue: Hashable = ("p2p", self._me, sender, tag)
        wait = replace(wait, host=self._me, queue=queue, peers=(label(sender),))

        def made(items: list[Blobs]) -> Any:
            item = decode(self._transport.routes.fetched(sender, items[0], wait))
            return item if into is None else fill(into, item, wait.place)

        if async_op:
            return Pending(self._transport.start_get(self._me, queue, None, wait), wait, made)
        return made(self._explained(sender, lambda: self._transport.get(self._me, queue, None, wait)))

    def _members(self, members: Sequence[tuple[str, Rank]], src: tuple[str, Rank] | None) -> tuple[str, list[str]]:
        """The source's address and those of the others, in an order that is the same everywhere."""
        hosts = [self._address(group, rank, "broadcast to") for group, rank in members]
        if not hosts:
            raise ConfigError("broadcast()", "it names no members", 'Write groups=[("actor", 0), ("rollout", [0, 1])].')
        source = hosts[0] if src is None else self._address(*src, "broadcast from")
        for host in hosts:
            if hosts.count(host) > 1:
                raise ConfigError("broadcast()", f"{label(host)} is named twice", "Name each member once.")
        for host, what in ((source, "the source"), (self._me, "who calls it")):
            if host not in hosts:
                named = ", ".join(map(label, hosts))
                raise ConfigError("broadcast()", f"{what}, {label(host)}, is no member of it ({named})", "Name all members.")
        return source, sorted(host for host in hosts if host != source)

    def _address(self, group: str, rank: Rank, what: str) -> str:
        """The address of a worker, whose rank exists if its group does."""
        first = rank if isinstance(rank, int) else rank[0]
        if first >= self._sizes.get(group, 0):  # it may have been launched again, with more ranks
            self._sizes = self._groups()
        size = self._sizes.get(group)
        if first < 0 or (size is not None and first >= size):
            problem = f"{group} has no rank {first}"
            raise UnknownName(f"{what} {group}[{first}]", problem, f"Ranks: 0-{size - 1}." if size else "Ranks count from 0.")
        return address(group, rank)

    def _explained(self, host: str, run: Callable[[], R]) -> R:
        """Runs an operation; if its deadline comes because there is no such group, the error says so."""
        try:
            return run()
        except DeadlineExceeded as error:
            group, known = host.rpartition(".")[0], self._groups()
            if group in known:
                raise
            hint = did_you_mean(group, list(known), label="Launched")
            raise DeadlineExceeded(error.place, f"{error.problem}; no group '{group}' was launched", hint) from error
