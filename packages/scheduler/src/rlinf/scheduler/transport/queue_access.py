"""`QueueAccess`: one process's access to all queues of a run, its own and those of others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rlinf.core.errors import ChannelClosed, DeadlineExceeded
from rlinf.scheduler.transport.channels import Status
from rlinf.scheduler.transport.encoding import Blobs, snapshot
from rlinf.scheduler.transport.pending import Done, Hosted, Pending, Source
from rlinf.scheduler.transport.queue_lines import QueueLines
from rlinf.scheduler.transport.queue_service import Sender
from rlinf.scheduler.transport.queues import Queues
from rlinf.scheduler.transport.requests import Get, Put
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.transport import label
from rlinf.scheduler.transport.waiting import ThreadMonitor, Wait

R = TypeVar("R")
Location = tuple[str, str]
"""A channel, and a process that hosts it."""


class QueueAccess:
    """Implements what `Transport` says of queues.

    Args:
        me: this process's address.
        queues: what this process hosts.
        lines: to what others host.
        timeout_s: the default deadline of a wait.
        status: how a channel is, as the driver knows.
        routes: how items go.
    """

    def __init__(
        self, me: str, queues: Queues, lines: QueueLines, timeout_s: float, status: Callable[[str], Status], routes: Routes
    ) -> None:
        self._me = me
        self._queues = queues
        self._lines = lines
        self._timeout_s = timeout_s
        self._status = status
        self._routes = routes
        self._known: set[str] = set()
        self._lost: dict[Location, str] = {}
        self._counting = threading.Lock()
        self._traffic: dict[Location, list[int]] = {}

    def put(self, host: str, queue: Any, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False) -> None:
        """See `Transport`."""
        self._check(host, queue, wait)
        blobs, _ = self._routes.staged(host, blobs, wait)
        if host == self._me:
            self._queues.put(queue, (weight, snapshot(blobs)), maxsize, wait, now=now)
        else:
            self._deliver(host, queue, (weight, blobs), maxsize, wait, now=now)
            self._count(host, queue, puts=1)

    def get(self, host: str, queue: Any, target: int | None, wait: Wait, *, now: bool = False) -> list[Blobs]:
        """See `Transport`."""
        self._check(host, queue, wait)
        if host == self._me:
            return [blobs for _, blobs in self._queues.get(queue, target, wait, now=now)]
        items = self._lines.get(host, queue, target, wait, now=now)
        self._count(host, queue, gets=len(items))
        return items

    def size(self, host: str, queue: Any, wait: Wait) -> int:
        """See `Transport`."""
        self._check(host, queue, wait)
        return self._queues.size(queue) if host == self._me else self._lines.size(host, queue, wait)

    def start_put(self, host: str, queue: Any, weight: int, blobs: Blobs, maxsize: int, wait: Wait) -> Pending[None]:
        """See `Transport`."""
        self._check(host, queue, wait)
        blobs, _ = self._routes.staged(host, blobs, wait)
        source: Source
        if host == self._me:
            source = Hosted(self._queues, Put(queue, self._me, (weight, snapshot(blobs)), maxsize))
        elif maxsize:
            source = self._lines.start_put(host, queue, (weight, blobs), maxsize, wait)
            self._count(host, queue, puts=1)
        else:
            source = self._posted(host, queue, (weight, blobs), wait)
        return Pending(source, wait, lambda _: None, ThreadMonitor(self._timeout_s))

    def start_get(self, host: str, queue: Any, target: int | None, wait: Wait, result: Callable[[list[Blobs]], R]) -> Pending[R]:
        """See `Transport`."""
        self._check(host, queue, wait)

        def counted(items: list[Blobs]) -> R:
            self._count(host, queue, gets=len(items))
            return result(items)

        if host == self._me:
            hosted = Hosted(self._queues, Get(queue, self._me, target, holds=True))
            return Pending(hosted, wait, result, ThreadMonitor(self._timeout_s))
        errand = self._lines.start_get(host, queue, target, wait)
        return Pending(errand, wait, counted, ThreadMonitor(self._timeout_s))

    def end(self, name: str, reason: str, hosts: Sequence[str]) -> dict[str, dict[Sender, int]]:
        """Puts nothing more into a channel; says how many items are on their way to its hosts, at most."""
        self._lines.ended[name] = reason
        return {host: self._lines.sent(host) for host in hosts}

    def lose(self, host: str, reasons: Mapping[str, str]) -> None:
        """A process that hosted channels is gone."""
        for name, reason in reasons.items():
            self._lost[name, host] = reason

    def traffic(self, names: Sequence[str], host: str) -> list[tuple[int, int]]:
        """How many items this process has put into channels at another one, and how many it has got, for each."""
        with self._counting:
            found = [self._traffic.get((name, host), (0, 0)) for name in names]
            return [(puts, gets) for puts, gets in found]

    def _deliver(self, host: str, queue: Any, item: tuple[int, Blobs], maxsize: int, wait: Wait, *, now: bool = False) -> None:
        """A put at another process. A message to one that is being started again waits for it; a channel that it had is lost."""
        while True:
            try:
                return self._lines.put(host, queue, item, maxsize, wait, now=now)
            except ChannelClosed:
                if len(queue) == 2:
                    raise
                self._routes.forget(host)
                self._lines.await_return(host, wait)

    def _posted(self, host: str, queue: Any, item: tuple[int, Blobs], wait: Wait) -> Done:
        try:
            self._deliver(host, queue, item, 0, wait)
        except (ChannelClosed, DeadlineExceeded) as error:
            return Done(error)
        self._count(host, queue, puts=1)
        return Done()

    def _check(self, host: str, queue: Any, wait: Wait) -> None:
        """Refuses a channel that is known to be lost, so that a process that took its host's place is not mistaken for it."""
        if len(queue) != 2:
            return
        name: str = queue[0]
        if name not in self._known:
            status = self._status(name)
            if status.ended:
                self._lines.ended[name] = status.ended
            for gone, reason in (status.lost or {}).items():
                self._lost[name, gone] = reason
            self._known.add(name)
        if self._lost and (name, host) in self._lost:
            raise wait.closed(self._lost[name, host])

    def _count(self, host: str, queue: Any, *, puts: int = 0, gets: int = 0) -> None:
        if len(queue) == 2:
            with self._counting:
                counts = self._traffic.setdefault((queue[0], host), [0, 0])
                counts[0] += puts
                counts[1] += gets


def loss(host: str, traffic: Sequence[tuple[int, int]]) -> str:
    """What is known of the items of a channel whose host died.

    Args:
        host: its address.
        traffic: what each process that lives has put and got.
    """
    puts, gets = sum(puts for puts, _ in traffic), sum(gets for _, gets in traffic)
    known = f"of {puts} items that the others had put there, they had got {gets}; what it had got itself is not known"
    return f"{label(host)}, which hosted it, died ({known})"
