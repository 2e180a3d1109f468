"""The contract of channels, as an examiner."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rlinf.core.errors import ChannelClosed, ChannelEmpty, ChannelFull, ContractError, DeadlineExceeded, EndOfStream, UnknownName
from rlinf.core.protocols import Channel, Cluster
from rlinf.core.testing.checks import expect, expect_equal, expect_raised, run_checks
from rlinf.core.worker import Worker

SHORT_S = 0.2
TIMEOUT_S = 60.0


@dataclass(kw_only=True)
class ChannelContract:
    """Examines the channels of a cluster.

        ChannelContract(cluster=cluster).run()

    Attributes:
        cluster: a running cluster; a group named `prefix` is launched on it, and channels of that prefix are created.
        prefix: what the names begin with, so that one cluster can be examined several times.
        near: create the channels near that group, instead of where the cluster likes.
        options: more arguments of `create_channel`, such as another place for the channels.
    """

    cluster: Cluster
    prefix: str = "channel-contract"
    near: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    _group: Any = field(default=None, init=False, repr=False)
    _count: int = field(default=0, init=False, repr=False)

    def run(self, report: Callable[[str], None] | None = None) -> list[str]:
        """The sentences that hold, all of them, each told to `report` at once; a ContractError says which doesn't, and why."""
        self._group = Forwarder.create_group().launch(self.cluster, name=self.prefix).execute_on(0)
        return run_checks(self, CHECKS, report)

    @property
    def group(self) -> Any:
        """A worker that forwards items."""
        return self._group

    def channel(self, maxsize: int = 0) -> Any:
        """A new channel."""
        self._count += 1
        options = {"near": self.prefix, **self.options} if self.near else self.options
        create: Any = self.cluster.create_channel
        return create(f"{self.prefix}-{self._count}", maxsize=maxsize, **options)


class Forwarder(Worker):
    """A worker at the other end of a channel."""

    def forward(self, source: Channel, target: Channel, count: int) -> int:
        """Gets and puts `count` items."""
        for _ in range(count):
            target.put(source.get())
        return count

    def fill(self, channel: Channel, count: int, key: str = "default", *, mixed: bool = False) -> int:
        """Puts 0 … count − 1; if `mixed`, every other one asynchronously."""
        works = [channel.put(i, key=key, async_op=mixed and i % 2 == 1) for i in range(count)]
        for work in works:
            if work is not None:
                work.wait()
        return count

    def fill_until_closed(self, channel: Channel) -> tuple[int, str]:
        """How many items it could put, and what it was told then."""
        for count in range(1_000_000):
            try:
                channel.put(count)
            except ChannelClosed as error:
                return count, str(error)
        raise ContractError(channel.name, "it was never closed")

    def drain(self, channel: Channel) -> list[Any]:
        """All items until the end."""
        return list(channel)

    def create(self, name: str) -> str:
        """Creates a channel, and puts its own name into it."""
        channel = self.create_channel(name)
        channel.put(name)
        return channel.name


def _in_order(suite: ChannelContract) -> None:
    channel = suite.channel()
    for i in range(5):
        channel.put(i)
    expect_equal([channel.get() for _ in range(5)], [0, 1, 2, 3, 4], "channel.get")


def _keys(suite: ChannelContract) -> None:
    channel = suite.channel()
    channel.put("a", key=("x", 1))
    channel.put("b", key=2)
    expect_equal((channel.get(key=2), channel.get(("x", 1))), ("b", "a"), "channel.get by key")
    expect_raised(DeadlineExceeded, lambda: channel.get(key=("x", 1), timeout=SHORT_S), "channel.get of an empty key")


def _size(suite: ChannelContract) -> None:
    channel = suite.channel(maxsize=2)
    expect_equal((channel.qsize(), channel.empty(), channel.full()), (0, True, False), "a new channel's qsize, empty, full")
    channel.put("a")
    channel.put("b")
    expect_equal((channel.qsize(), channel.qsize("other")), (2, 0), "channel.qsize")
    expect_equal((channel.empty(), channel.full(), channel.full("other")), (False, True, False), "channel.empty and full")


def _snapshot(suite: ChannelContract) -> None:
    channel = suite.channel()
    # A channel may carry small and large arrays in different ways.
    small, large = np.zeros(4), np.zeros(1 << 16)
    channel.put({"small": small, "large": large})
    work = channel.put({"small": small, "large": large}, async_op=True)
    small += 1
    large += 1
    work.wait(TIMEOUT_S)
    for _ in range(2):
        item = channel.get()
        expect_equal((item["small"].sum(), item["large"].sum()), (0.0, 0.0), "an array that changed after channel.put")
        item["small"] += 1


def _deadline(suite: ChannelContract) -> None:
    channel = suite.channel()
    error = expect_raised(DeadlineExceeded, lambda: channel.get("nothing", timeout=SHORT_S), "channel.get of an empty channel")
    for word in (channel.name, "nothing"):
        expect(word in str(error), "the deadline's message", f"expected '{word}' in it, found '{error}'")


def _nowait(suite: ChannelContract) -> None:
    channel = suite.channel(maxsize=1)
    expect_raised(ChannelEmpty, channel.get_nowait, "channel.get_nowait of an empty channel")
    channel.put_nowait("a")
    expect_raised(ChannelFull, lambda: channel.put_nowait("b"), "channel.put_nowait into a full channel")
    expect_equal(channel.get_nowait(), "a", "channel.get_nowait")


def _batch(suite: ChannelContract) -> None:
    channel = suite.channel()
    for item, weight in (("a", 2), ("b", 2), ("c", 3), ("d", 9), ("e", 1)):
        channel.put(item, weight)
    expect_equal(channel.get_batch(4), ["a", "b"], "channel.get_batch that reaches its target")
    expect_equal(channel.get_batch(4), ["c"], "channel.get_batch before an item that would exceed it")
    expect_equal(channel.get_batch(4), ["d"], "channel.get_batch at an item heavier than its target")
    expect_raised(DeadlineExceeded, lambda: channel.get_batch(4, timeout=SHORT_S), "channel.get_batch of too little")
    expect_equal(channel.qsize(), 1, "channel.qsize after a batch that did not come")
    work = channel.get_batch(4, async_op=True)
    channel.put("f", weight=3)
    expect_equal(work.wait(TIMEOUT_S), ["e", "f"], "channel.get_batch, asynchronous")


def _bounded(suite: ChannelContract) -> None:
    for mixed in (False, True):
        channel = suite.channel(maxsize=2)
        filling = suite.group.fill(channel, 6, mixed=mixed)
        other = suite.channel(maxsize=1)
        other.put("not full", key="another")
        expect_equal([channel.get() for _ in range(6)], [0, 1, 2, 3, 4, 5], "a bounded channel")
        expect_equal(filling.wait(TIMEOUT_S), [6], "the filler's result")


def _through_worker(suite: ChannelContract) -> None:
    source, target = suite.channel(), suite.channel()
    forwarding = suite.group.forward(source, target, 3)
    for i in range(3):
        source.put({"i": i, "array": np.full((2, 3), i, np.float32)})
    items = [target.get() for _ in range(3)]
    forwarding.wait(TIMEOUT_S)
    expect_equal([item["i"] for item in items], [0, 1, 2], "items through a worker")
    expect_equal([float(item["array"].sum()) for item in items], [0.0, 6.0, 12.0], "arrays through a worker")


def _asynchronous(suite: ChannelContract) -> None:
    channel = suite.channel()
    gets = [channel.get(async_op=True) for _ in range(3)]
    expect(not gets[0].done(), "channel.get(async_op=True).done()", "expected False before there is an item")
    expect_raised(DeadlineExceeded, lambda: gets[0].wait(SHORT_S), "channel.get(async_op=True).wait(…)")
    suite.group.fill(channel, 5, mixed=True).wait(TIMEOUT_S)
    expect_equal([get.wait(TIMEOUT_S) for get in gets], [0, 1, 2], "asynchronous gets")
    expect_equal((gets[0].wait(), gets[0].done()), (0, True), "a handle that is asked again")
    expect_equal([channel.get(), channel.get()], [3, 4], "gets after asynchronous ones")

    async def main() -> Any:
        await channel.put("awaited", async_op=True)
        return await channel.get(async_op=True)

    expect_equal(asyncio.run(main()), "awaited", "await channel.get(async_op=True)")


def _given_up(suite: ChannelContract) -> None:
    channel = suite.channel()
    cancelled, dropped = channel.get(async_op=True), channel.get(async_op=True)
    for i in range(3):
        channel.put(i)
    expect(cancelled.cancel(), "channel.get(async_op=True).cancel()", "expected True before its result was asked for")
    # Its last reference, so that it is collected at once.
    del dropped
    expect_equal([channel.get() for _ in range(3)], [0, 1, 2], "items of gets that were given up")


def _closed(suite: ChannelContract) -> None:
    channel = suite.channel()
    draining = suite.group.drain(channel)
    for i in range(5):
        channel.put(i)
    channel.close()
    channel.close()
    expect_equal(draining.wait(TIMEOUT_S), [[0, 1, 2, 3, 4]], "a loop over a channel that is closed")
    for get in (channel.get, channel.get_nowait, lambda: channel.get_batch(2), lambda: channel.get("new")):
        expect_raised(EndOfStream, get, "a get of a closed channel")
    expect_raised(ChannelClosed, lambda: channel.put(5), "channel.put into a closed channel")
    rest = suite.channel()
    rest.put("a", weight=1)
    rest.close()
    expect_equal(rest.get_batch(10), ["a"], "the last batch of a closed channel")


def _closed_while_full(suite: ChannelContract) -> None:
    channel = suite.channel(maxsize=3)
    filling = suite.group.fill_until_closed(channel)
    got = [channel.get() for _ in range(5)]
    channel.close()
    got += list(channel)
    ((count, told),) = filling.wait(TIMEOUT_S)
    expect_equal(got, list(range(count)), "what was put before a channel was closed")
    expect("closed" in told, "the error of a put that waited for room", f"expected 'closed' in it, found '{told}'")


def _connected(suite: ChannelContract) -> None:
    name = f"{suite.prefix}-created"
    suite.group.create(name).wait(TIMEOUT_S)
    channel = suite.cluster.connect_channel(name)
    expect_equal(channel.get(), name, "a channel that a worker created")
    copy = pickle.loads(pickle.dumps(channel))  # noqa: S301 - what was dumped a moment ago
    copy.put("copied")
    expect_equal((channel.get(), copy.name), ("copied", name), "a channel that was pickled")
    connect: Any = suite.cluster.connect_channel
    # One letter too few, so that there is a nearest name.
    error = expect_raised(UnknownName, lambda: connect(f"{name[:-1]}", timeout=SHORT_S), "connect_channel of no channel")
    expect(name in str(error), "the error of an unknown channel", f"expected the nearest name in it, found '{error}'")


CHECKS: Final[dict[str, Callable[[ChannelContract], None]]] = {
    "Items of one key come in the order in which they were put.": _in_order,
    "Keys are queues of their own, and any hashable is a key.": _keys,
    "The size counts what waits, by key; empty and full agree with it.": _size,
    "A put takes the item as it is; what happens to it later is not seen, and what comes out can be written to.": _snapshot,
    "A get ends at its deadline, with a message that names channel and key.": _deadline,
    "get_nowait and put_nowait say at once that there is no item, or no room.": _nowait,
    "A batch reaches its weight or stops before exceeding it, has at least one item, and loses none.": _batch,
    "A full channel makes its producer wait, loses nothing, and keeps the order of synchronous and asynchronous puts.": _bounded,
    "A channel can be given to a worker, which gets and puts.": _through_worker,
    "Asynchronous gets are served in order, can be awaited, and outlive a wait that was too short.": _asynchronous,
    "A get that is cancelled or dropped leaves its item in its place.": _given_up,
    "A closed channel is drained and then at its end; nothing can be put into it.": _closed,
    "Closing wakes the threads that wait for room; what was put before is there, and nothing else.": _closed_while_full,
    "A worker can create a channel, and others connect to it by name.": _connected,
}
