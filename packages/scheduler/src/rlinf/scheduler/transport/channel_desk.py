"""`ChannelDesk`: what the driver does about channels: answers questions, ends them, and says what became of a dead host's items."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rlinf.core.errors import RLinfError
from rlinf.scheduler.transport.channels import ChannelRegistry
from rlinf.scheduler.transport.encoding import Blob
from rlinf.scheduler.transport.queue_access import QueueAccess, loss
from rlinf.scheduler.transport.queue_service import Sender
from rlinf.scheduler.transport.server import Answer
from rlinf.scheduler.transport.transport import DRIVER, label
from rlinf.scheduler.transport.waiting import Wait

ANSWERS_S = 5.0
"""How long a process may take to say what it has sent; one that is stopped says nothing."""
POSTS_S = 5.0
"""How long items that were sent may take to come."""


class Asking(Protocol):
    """See `ControlConnections.ask`."""

    def __call__(self, question: str, detail: Any = None, *, timeout: float) -> dict[str, Any]:
        """The answers of the processes that give one in time, by address."""
        ...


class ChannelDesk:
    """The driver's.

    Args:
        channels: the list.
        ask: asks every other process.
        mine: the driver's own access to queues.
        end_at: ends a channel's queues in one process, given its address, the channel, the reason, and what is under way.
    """

    def __init__(
        self,
        channels: ChannelRegistry,
        ask: Asking,
        mine: QueueAccess,
        end_at: Callable[[str, str, str, dict[Sender, int]], None],
    ) -> None:
        self._channels = channels
        self._ask = ask
        self._mine = mine
        self._end_at = end_at

    def answer(self, peer: str, request: tuple[Any, ...], _: list[Blob]) -> Answer:
        """Answers a process; see `RemoteChannels`."""
        channels = self._channels
        match request:
            case ("create", name, maxsize, site):
                return Answer(channels.create(name, maxsize, site, peer))
            case ("find", name, timeout):
                return Answer(channels.find(name, Wait(label(peer), f"channel '{name}'", "its creation", timeout)))
            case ("host", name, key, decide):
                return Answer(channels.host(name, key, peer, decide=decide))
            case ("status", name):
                return Answer(channels.status(name))
            case ("fate", name, host, seconds):
                wait = Wait(label(peer), f"channel '{name}'", f"news of {label(host)}", seconds)
                return Answer(channels.fate(name, host, wait))
            case ("end", name, by):
                reason = f"closed by {by}"
                if channels.mark_ended(name, reason):
                    self.end(name, reason)
                return Answer()
            case other:
                raise RLinfError("channels", f"unknown question {other!r}")

    def end(self, name: str, reason: str) -> None:
        """Ends a channel: first nobody sends any more, then, when all is there that was sent, its queues end."""
        hosts = sorted({DRIVER, *self._channels.hosts_of(name)})
        sent = [self._mine.end(name, reason, hosts)]
        sent += self._ask("channel ends", (name, reason, hosts), timeout=ANSWERS_S).values()
        for host in hosts:
            under_way: dict[Sender, int] = {}
            for one in sent:
                under_way |= one.get(host, {})
            with contextlib.suppress(RLinfError):  # a host that is gone has nothing to end
                self._end_at(host, name, reason, under_way)

    def lost(self, host: str) -> None:
        """A process died: whoever uses a channel that it hosted is told so, and how many items that concerns."""
        names = self._channels.hosted_by(host)
        if not names:
            return
        traffic: list[Sequence[tuple[int, int]]] = [self._mine.traffic(names, host)]
        traffic += self._ask("channel traffic", (names, host), timeout=ANSWERS_S).values()
        reasons = {name: loss(host, [one[i] for one in traffic]) for i, name in enumerate(names)}
        for name, reason in reasons.items():
            self._channels.mark_lost(name, host, reason)
        self._mine.lose(host, reasons)
        self._ask("channel lost", (host, reasons), timeout=ANSWERS_S)
