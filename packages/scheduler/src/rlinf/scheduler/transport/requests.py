"""Requests to queues: a put or a get that is done, or waits its turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from rlinf.core.errors import ChannelEmpty, ChannelFull, EndOfStream, RLinfError
from rlinf.scheduler.transport.encoding import Blobs
from rlinf.scheduler.transport.waiting import Wait

Item = tuple[int, Blobs]
"""Weight and content."""
Problem = tuple[str, str]
"""Why a request failed: `closed`, `end`, `empty`, `full` or `cancelled`; and the reason."""
Entry: TypeAlias = tuple[int, int, Blobs]
"""Number in order of arrival, weight and content."""


class Request:
    """A put or a get that is done, or waits its turn.

    Args:
        name: which queue.
        peer: who asks.
        now: fail instead of waiting.
    """

    __slots__ = ("callbacks", "done", "name", "now", "peer", "problem")

    def __init__(self, name: Hashable, peer: str, *, now: bool = False) -> None:
        self.name = name
        self.peer = peer
        self.now = now
        self.done = False
        self.problem: Problem | None = None
        self.callbacks: list[Callable[[], None]] = []


class Put(Request):
    """Appends an item once fewer than `maxsize` are there; 0 for any number."""

    __slots__ = ("item", "maxsize")

    def __init__(self, name: Hashable, peer: str, item: Item, maxsize: int, *, now: bool = False) -> None:
        super().__init__(name, peer, now=now)
        self.item = item
        self.maxsize = maxsize


class Get(Request):
    """Takes the oldest item (`target` None), or the oldest ones whose weights reach `target`.

    Args:
        name: which queue.
        peer: who asks.
        target: how much.
        now: fail instead of waiting.
        holds: the items may come back, until `Queues.took` says that they have arrived.
    """

    __slots__ = ("entries", "holds", "target")

    def __init__(self, name: Hashable, peer: str, target: int | None, *, now: bool = False, holds: bool = False) -> None:
        super().__init__(name, peer, now=now)
        self.target = target
        self.holds = holds
        self.entries: list[Entry] = []

    @property
    def items(self) -> list[Item]:
        """What it took."""
        return [(weight, blobs) for _, weight, blobs in self.entries]


def failure(problem: Problem, wait: Wait) -> RLinfError:
    """The error of a request that failed."""
    kind, reason = problem
    if kind == "end":
        return EndOfStream(wait.place, f"{wait.who} can't have {wait.goal}: {reason}, and all items were taken")
    if kind == "empty":
        return ChannelEmpty(wait.place, f"{wait.who} found no item")
    if kind == "full":
        return ChannelFull(wait.place, f"{wait.who} found no room")
    if kind == "cancelled":
        return RLinfError(wait.place, f"{wait.who} cancelled its wait for {wait.goal}")
    return wait.closed(reason)
