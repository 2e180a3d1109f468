"""The workers by which `ClusterContract` looks at async methods, messages and children."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlinf.core.worker import Worker

TIMEOUT_S = 60.0


class Peer(Worker):
    """A worker that talks to the other rank of its group."""

    def __init__(self) -> None:
        super().__init__()
        self.known = Worker.current_worker is self
        self.opened = asyncio.Event()

    @property
    def peer(self) -> int:
        """The other rank."""
        return 1 - self.rank

    async def wait_until_open(self) -> int:
        """Waits for `open_all`."""
        await self.opened.wait()
        return self.rank

    def open_all(self) -> None:
        """Ends all waits of `wait_until_open`."""
        self.opened.set()

    async def fail_later(self) -> None:
        """Raises after its first await."""
        await asyncio.sleep(0)
        raise KeyError("the peer fails on purpose")

    def stream(self) -> Iterator[int]:
        """Yields, which a call can't carry."""
        yield self.rank

    async def receive(self, tag: str, count: int) -> list[Any]:
        """Awaits items of the other rank, which it asks for all at once."""
        works = [self.recv(self.group_name, self.peer, async_op=True, tag=tag) for _ in range(count)]
        return [await work for work in works]

    def deliver(self, tag: str, items: list[Any]) -> None:
        """Sends items to the other rank."""
        for item in items:
            self.send(item, dst_group_name=self.group_name, dst_rank=self.peer, tag=tag)

    def mixed(self, count: int) -> list[int]:
        """Sends and receives with and without handles, in turns; both sides send first."""
        sent: list[Any] = []
        for i in range(count):
            if i % 3:
                # Not waited for here, so that operations of both kinds are under way together.
                sent.append(self.send(i, self.group_name, self.peer, async_op=True))
            else:
                self.send(i, self.group_name, self.peer)
        got: list[Any] = []
        for i in range(count):
            got.append(self.recv(self.group_name, self.peer, async_op=i % 2 == 0, timeout=TIMEOUT_S))
        for work in sent:
            work.wait(TIMEOUT_S)
        return [item if isinstance(item, int) else item.wait(TIMEOUT_S) for item in got]

    def into(self) -> tuple[float, float]:
        """Receives into arrays that are there, at once and with a handle."""
        first, second = np.zeros((2, 3), np.float32), np.zeros(4)
        self.send_tensor(np.full((2, 3), self.rank, np.float32), self.group_name, self.peer)
        self.send_tensor(np.full(4, self.rank + 2.0), self.group_name, self.peer)
        self.recv_tensor(first, self.group_name, self.peer, timeout=TIMEOUT_S)
        self.recv_tensor(second, self.group_name, self.peer, async_op=True).wait(TIMEOUT_S)
        return float(first.mean()), float(second.mean())

    def to_itself(self, item: Any) -> Any:
        """Sends to its own rank."""
        self.send(item, self.group_name, self.rank)
        return self.recv(self.group_name, self.rank, timeout=TIMEOUT_S)

    def send_to(self, group: str, rank: int) -> None:
        """Sends to anybody."""
        self.send(0, group, rank)

    def take(self, group: str, rank: int) -> Any:
        """Receives from anybody."""
        return self.recv(group, rank, timeout=TIMEOUT_S)

    def share(self, async_op: bool) -> Any:
        """Broadcasts from rank 1 to both."""
        item = {"rank": self.rank, "array": np.arange(1 << 15) * self.rank}
        found = self.broadcast(item, groups=[(self.group_name, [0, 1])], src=(self.group_name, 1), async_op=async_op)
        found = found.wait(TIMEOUT_S) if async_op else found
        return found["rank"], int(found["array"][-1])

    @Worker.timer("nap")
    def nap(self) -> tuple[str, bool]:
        """Runs under a timer; the worker's name, and whether it knows that it runs."""
        with self.worker_timer("inside"):
            return self.worker_address.get_name(), self.known and Worker.current_worker is self

    def variables(self) -> dict[str, str]:
        """What libraries read."""
        return dict(self.environment)

    def parent(self, factor: int) -> tuple[str, Any]:
        """Starts a child, sends it a number, and gets what it made of it."""
        child = self.start_child(multiply, factor)
        self.send(self.rank + 1, self.group_name, child.rank)
        found = self.recv(self.group_name, child.rank, timeout=TIMEOUT_S)
        child.wait(TIMEOUT_S)
        return child.name, found


class Clash(Worker):
    """A worker whose method has the name of a group's."""

    def execute_on(self) -> None:
        """Never called."""


def multiply(factor: int) -> None:
    """What a child does: multiplies a number that its worker sends."""
    me = Worker.current_worker
    me.send(factor * me.recv(me.group_name, me.rank, timeout=TIMEOUT_S), me.group_name, me.rank)
