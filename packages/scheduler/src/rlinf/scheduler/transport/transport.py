"""`Transport`: what carries items between the processes of one cluster; channels, and `send` and `recv`, are made of it.

Every process (or, on the `local` back-end, the one process) has a transport. A queue lives in some process, its host, known by its
address: `driver`, or `<group>.<rank>`. Whatever is sent is a put into such a queue, and whatever is received is a get from one.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, cast

from rlinf.scheduler.transport.encoding import Blobs
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.transport.work import Operation, complete

DRIVER = "driver"


class Transport(ABC):
    """One process's access to all queues of the cluster."""

    run: str
    """Tells the clusters of one process apart."""
    routes: Routes
    """How items go."""
    asks_driver: bool
    """Whether the driver is another process."""
    guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """Entered while a put or a get is waited for; see `Failures.guard`."""

    @abstractmethod
    def who(self) -> str:
        """Who asks, for messages: `driver`, or `rollout[1]`."""

    @abstractmethod
    def in_worker(self) -> bool:
        """Whether this thread is a worker's, not the driver's."""

    @abstractmethod
    def ask(self, kind: str, *question: Any, wait: Wait) -> Any:
        """What a service of the driver answers."""

    @abstractmethod
    def start_put(
        self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False
    ) -> Operation:
        """Begins to append an encoded item, which is taken as it is now.

        It is done when the item is on its way, or, for a bounded queue, when it has found room; with `now` it fails without.
        """

    @abstractmethod
    def start_get(self, host: str, queue: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> Operation:
        """Begins to take the oldest encoded item, or those whose weights reach `target`; with `now` it fails without."""

    @abstractmethod
    def size(self, host: str, queue: Hashable, wait: Wait) -> int:
        """How many items wait."""

    def put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False) -> None:
        """`start_put`, to its end."""
        with self.guard():
            complete(self.start_put(host, queue, weight, blobs, maxsize, wait, now=now), wait)

    def get(self, host: str, queue: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> list[Blobs]:
        """`start_get`, to its end."""
        with self.guard():
            return complete(self.start_get(host, queue, target, wait, now=now), wait)


OPEN_TRANSPORTS: dict[str, Transport] = {}
"""The transports of this process by run, so that a channel that arrives finds that of its cluster."""


def channel_of(queue: Hashable) -> str | None:
    """The channel of a queue, whose name is a pair; None of a queue of messages, whose name has four parts."""
    if type(queue) is tuple and len(parts := cast("tuple[Hashable, ...]", queue)) == 2:
        return cast("str", parts[0])
    return None


def address(group: str, rank: int | tuple[int, ...]) -> str:
    """Where a worker's queues are, or those of a process that it has started: `rollout.1`, `rollout.1:3`."""
    return f"{group}.{rank}" if isinstance(rank, int) else f"{group}.{':'.join(map(str, rank))}"


def label(host: str) -> str:
    """An address for messages: `rollout[1]`."""
    group, dot, rank = host.rpartition(".")
    return f"{group}[{rank}]" if dot else host
