"""`Span`: one thing that a worker did, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf.scheduler.transport.transport import DRIVER

Kind = Literal["call", "put", "get", "send", "recv", "lock", "timer", "memory"]
Status = Literal["ok", "failed", "unfinished"]
"""`unfinished`: a call whose process was killed, or still runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A call, a transfer of items, a wait for devices, a timer, or what a part of a worker takes.

    Times are nanoseconds of a clock that all processes share.
    """

    kind: Kind
    who: str
    """`rollout[1]`, or `driver`."""
    thread: int
    """Tells the threads of a process apart."""
    name: str
    """The method, channel, tag, devices, timer or part."""
    key: str = ""
    """The channel's key as text; for `send` and `recv` the worker at the other end."""
    within: str = ""
    """The method of the worker's call during which it happened; "" outside of calls."""
    start: int
    end: int
    waited: int = 0
    """How much of it was spent waiting: for an item, for room, for devices; of a call, in all of its transfers."""
    items: int = 0
    bytes: int = 0
    """Of the encoded items; of `memory`, what the part takes at that moment."""
    route: str = ""
    """How the items went, as in `rlinf.scheduler.transport.routes`; of a get, from the process that hosts the queue."""
    status: Status = "ok"
    ids: tuple[int, ...] = ()
    """The numbers of the items; the put and the get of one item have the same."""

    @property
    def group(self) -> str:
        """The worker's group, or `driver`."""
        return self.who.rpartition("[")[0] or DRIVER

    @property
    def rank(self) -> int:
        """The worker's rank; 0 for the driver."""
        _, bracket, rank = self.who.rpartition("[")
        return int(rank[:-1]) if bracket else 0

    @property
    def worked(self) -> int:
        """Nanoseconds that were not spent waiting."""
        return self.end - self.start - self.waited
