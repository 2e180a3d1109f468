"""`Transport`: what carries items between the processes of one cluster; channels and messengers are made of it.

Every process (or, on the `local` back-end, the one process) has a post. A queue lives in some process, its host, known by its
address: `driver`, or `<group>.<rank>`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rlinf.scheduler.transport.encoding import Blob, Blobs
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.waiting import Wait

if TYPE_CHECKING:
    from rlinf.scheduler.transport.channels import ChannelList
    from rlinf.scheduler.transport.pending import Pending

R = TypeVar("R")
DRIVER = "driver"


class Transport(Protocol):
    """One process's access to all queues of the cluster."""

    @property
    def run(self) -> str:
        """Tells the clusters of one process apart."""
        ...

    def who(self) -> str:
        """Who asks, for messages: `driver`, or `rollout[1]`."""
        ...

    def in_worker(self) -> bool:
        """Whether this thread is a worker's, not the driver's."""
        ...

    @property
    def asks_driver(self) -> bool:
        """Whether the driver is another process."""
        ...

    def ask_driver(self, question: tuple[Any, ...], content: Sequence[Blob], wait: Wait) -> tuple[Any, list[Blob]]:
        """The driver's answer to a question of another process, its kind first."""
        ...

    @property
    def channels(self) -> ChannelList:
        """The channels of the run."""
        ...

    @property
    def routes(self) -> Routes:
        """How items go."""
        ...

    def put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False) -> None:
        """Appends an encoded item; returns when it is on its way, or, for a bounded queue, when it has found room.

        With `now`, `ChannelFull` if there is none.
        """
        ...

    def get(self, host: str, queue: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> list[Blobs]:
        """The oldest encoded item, or those whose weights reach `target`; with `now`, `ChannelEmpty` if they are not there."""
        ...

    def start_put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait) -> Pending[None]:
        """Begins a put; the item is taken as it is now."""
        ...

    def start_get(
        self, host: str, queue: Hashable, target: int | None, wait: Wait, result: Callable[[list[Blobs]], R]
    ) -> Pending[R]:
        """Begins a get, whose handle gives what `result` makes of the items."""
        ...

    def size(self, host: str, queue: Hashable, wait: Wait) -> int:
        """How many items wait."""
        ...


OPEN_TRANSPORTS: dict[str, Transport] = {}
"""The posts of this process by run, so that a channel that arrives in a message finds the post of its cluster."""


def address(group: str, rank: int | tuple[int, ...]) -> str:
    """Where a worker's queues are, or those of a process that it has started: `rollout.1`, `rollout.1:3`."""
    return f"{group}.{rank}" if isinstance(rank, int) else f"{group}.{':'.join(map(str, rank))}"


def label(host: str) -> str:
    """An address for messages: `rollout[1]`."""
    group, dot, rank = host.rpartition(".")
    return f"{group}[{rank}]" if dot else host
