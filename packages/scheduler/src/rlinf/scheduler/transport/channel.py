"""`Channel`: named queues that any process of a cluster can use."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator
from typing import Any, Literal, overload

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ChannelClosed, ConfigError, EndOfStream, RLinfError
from rlinf.scheduler.newest import newest
from rlinf.scheduler.transport.channel_registry import ChannelInfo, Site
from rlinf.scheduler.transport.encoding import Blobs, decode, encode
from rlinf.scheduler.transport.transport import OPEN_TRANSPORTS, Transport, label
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.transport.work import Pending


class Channel:
    """A named set of first-in first-out queues, one for each key.

    Any process of the cluster can use it, in any of its threads, and can send it to others in messages. Items of one key come in
    the order in which each process put them. An item is delivered once; what a process that fails had not got yet goes to the next.
    """

    def __init__(self, transport: Transport, info: ChannelInfo) -> None:
        self._transport = transport
        self._info = info
        self._name = info.name
        self._hosts: dict[Hashable, str] = {}
        """Where the keys of a distributed channel are; that never changes."""
        self._under_way: set[Pending[None]] = set()
        """Puts of this object that have not found room yet."""

    @classmethod
    def create(
        cls,
        name: str,
        maxsize: int = 0,
        distributed: bool = False,
        node_rank: int | None = None,
        local: bool = False,
        disable_distributed_log: bool = True,
        *,
        near: str | None = None,
    ) -> Channel:
        """A new channel, made by a worker of a cluster, or in the process that made the cluster.

        Its items are in the driver's process, unless one of four arguments says otherwise.

        Args:
            name: unique in the cluster.
            maxsize: how many items each key holds before a put blocks; 0 for any number.
            distributed: each key is in the process that uses it first.
            node_rank: a process of this node hosts it.
            local: this process hosts it.
            disable_distributed_log: not needed; a channel has no process of its own that would log.
            near: rank 0 of this group hosts it.

        Raises:
            DuplicateName: the cluster has a channel of that name.
            UnknownName: there is no group `near`.
            RLinfError: this process has no running cluster.
        """
        del disable_distributed_log
        site = Site(near=near, distributed=distributed, node_rank=node_rank, local=local)
        return cls.create_at(_transport_here(f"channel '{name}'"), name, maxsize, site)

    @classmethod
    def create_at(cls, transport: Transport, name: str, maxsize: int, site: Site) -> Channel:
        """`create`, for a transport that is known."""
        wait = Wait(transport.who(), f"channel '{name}'", "it to be created")
        return cls(transport, transport.ask("channel", "create", name, maxsize, site, wait=wait))

    @classmethod
    def connect(cls, name: str, current_worker: Any = None, *, timeout: float | None = None) -> Channel:
        """The channel of a name, wherever it was created; waits until it is.

        Args:
            name: its name.
            current_worker: the worker that asks; not needed.
            timeout: seconds to wait for its creation; None is the cluster's `timeout_s`.

        Raises:
            UnknownName: nobody created it in time.
            RLinfError: this process has no running cluster.
        """
        del current_worker
        return cls.connect_at(_transport_here(f"channel '{name}'"), name, timeout)

    @classmethod
    def connect_at(cls, transport: Transport, name: str, timeout: float | None = None) -> Channel:
        """`connect`, for a transport that is known."""
        wait = Wait(transport.who(), f"channel '{name}'", "it to be created", timeout)
        return cls(transport, transport.ask("channel", "find", name, timeout, wait=wait))

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._name

    @property
    def maxsize(self) -> int:
        """How many items each key holds before a put blocks; 0 for any number."""
        return self._info.maxsize

    @property
    def distributed(self) -> bool:
        """Whether each key is in the process that uses it first."""
        return not self._info.host

    @overload
    def put(
        self,
        item: Any,
        weight: int = 0,
        key: Hashable = "default",
        async_op: Literal[False] = False,
        *,
        timeout: float | None = None,
    ) -> None: ...

    @overload
    def put(
        self, item: Any, weight: int = 0, key: Hashable = "default", *, async_op: Literal[True], timeout: float | None = None
    ) -> Pending[None]: ...

    @overload
    def put(
        self, item: Any, weight: int = 0, key: Hashable = "default", async_op: bool = False, *, timeout: float | None = None
    ) -> Any: ...

    def put(
        self, item: Any, weight: int = 0, key: Hashable = "default", async_op: bool = False, *, timeout: float | None = None
    ) -> Any:
        """Appends an item as it is now; blocks while the queue is full.

        Args:
            item: anything that can be pickled; arrays and CPU tensors are fast.
            weight: what the item counts for in `get_batch`.
            key: which queue.
            async_op: return a handle at once. Puts of one process keep their order, however they are mixed.
            timeout: seconds to wait for room; None is the cluster's `timeout_s`.

        Raises:
            Unpicklable: the item can't be pickled.
            ConfigError: the weight is below 0, or the key can't be hashed.
            DeadlineExceeded: the queue stayed full.
            ChannelClosed: the channel was closed, or the process that hosts it is gone.
        """
        host, queue = self._locate(key)
        wait = self._wait(key, "room", timeout, host, queue)
        if async_op:
            operation = self._transport.start_put(host, queue, weight, self._blobs(item, weight), self._info.maxsize, wait)
            work: Pending[None] = Pending(operation, wait, lambda _: None)
            # Added first: `then` calls back at once if it is done already.
            self._under_way.add(work)
            work.then(lambda: self._under_way.discard(work))
            return work
        self._transport.put(host, queue, weight, self._blobs(item, weight), self._info.maxsize, wait)
        return None

    def put_nowait(self, item: Any, weight: int = 0, key: Hashable = "default") -> None:
        """Appends an item if there is room.

        Raises:
            ChannelFull: there is none.
            ChannelClosed: as for `put`, and so are other errors.
        """
        host, queue = self._locate(key)
        wait = self._wait(key, "room", None, host, queue)
        self._transport.put(host, queue, weight, self._blobs(item, weight), self._info.maxsize, wait, now=True)

    @overload
    def get(self, key: Hashable = "default", *, async_op: Literal[True], timeout: float | None = None) -> Pending[Any]: ...

    @overload
    def get(self, key: Hashable = "default", async_op: bool = False, *, timeout: float | None = None) -> Any: ...

    def get(self, key: Hashable = "default", async_op: bool = False, *, timeout: float | None = None) -> Any:
        """The oldest item.

        Args:
            key: which queue.
            async_op: return a handle at once; while it waits it is in line for an item. A handle that is cancelled or dropped
                before its result was asked for leaves its item in the channel.
            timeout: seconds to wait for an item; None is the cluster's `timeout_s`.

        Raises:
            DeadlineExceeded: no item came.
            EndOfStream: the channel was closed, and all its items were taken.
            ChannelClosed: the process that hosts the channel is gone, or the run has failed.
        """
        host, queue = self._locate(key)
        wait = self._wait(key, "an item", timeout, host, queue)
        if async_op:
            return Pending(self._transport.start_get(host, queue, None, wait), wait, _one)
        return decode(self._transport.get(host, queue, None, wait)[0])

    def get_nowait(self, key: Hashable = "default") -> Any:
        """The oldest item if there is one.

        Raises:
            ChannelEmpty: there is none.
            EndOfStream: there will be none.
            ChannelClosed: as for `get`.
        """
        host, queue = self._locate(key)
        return decode(self._transport.get(host, queue, None, self._wait(key, "an item", None, host, queue), now=True)[0])

    @overload
    def get_batch(
        self, target_weight: int = 0, key: Hashable = "default", async_op: Literal[False] = False, *, timeout: float | None = None
    ) -> list[Any]: ...

    @overload
    def get_batch(
        self, target_weight: int = 0, key: Hashable = "default", *, async_op: Literal[True], timeout: float | None = None
    ) -> Pending[list[Any]]: ...

    @overload
    def get_batch(
        self, target_weight: int = 0, key: Hashable = "default", async_op: bool = False, *, timeout: float | None = None
    ) -> Any: ...

    def get_batch(
        self, target_weight: int = 0, key: Hashable = "default", async_op: bool = False, *, timeout: float | None = None
    ) -> Any:
        """The oldest items, in order, until their weights reach `target_weight` or the next would exceed it; at least one.

        Blocks until that is decided; a bounded queue that is full is taken as it is, and so is what is left in a closed channel.

        Args:
            target_weight: how much.
            key: which queue.
            async_op: as for `get`.
            timeout: as for `get`.

        Raises:
            ConfigError: the weight is below 0.
            DeadlineExceeded: not enough came; what is there stays there.
            EndOfStream: as for `get`.
            ChannelClosed: as for `get`.
        """
        expect_at_least(f"channel '{self._name}'.get_batch(target_weight)", target_weight, 0)
        host, queue = self._locate(key)
        wait = self._wait(key, f"items of weight {target_weight}", timeout, host, queue)
        if async_op:
            return Pending(self._transport.start_get(host, queue, target_weight, wait), wait, _all)
        return _all(self._transport.get(host, queue, target_weight, wait))

    def qsize(self, key: Hashable = "default") -> int:
        """How many items wait."""
        # A look must not decide where a key of a distributed channel is.
        host, queue = self._locate(key, decide=False)
        return self._transport.size(host, queue, self._wait(key, "its size", None, host, queue)) if host else 0

    def empty(self, key: Hashable = "default") -> bool:
        """Whether no item waits."""
        return self.qsize(key) == 0

    def full(self, key: Hashable = "default") -> bool:
        """Whether a put would block now; never if any number of items fits."""
        return self.maxsize > 0 and self.qsize(key) >= self.maxsize

    def close(self) -> None:
        """Takes nothing more, from anybody; a second call does nothing.

        A `get` takes what is still there and then raises `EndOfStream`, at which a loop over the channel ends. A `put` raises
        `ChannelClosed`, also one that waits for room. Items that were put before arrive before the end; for this object's own puts
        that still wait for room, this waits first.

        Raises:
            DeadlineExceeded: one of them found no room; the channel is still open.
        """
        # A copy: each handle takes itself out as it ends.
        for work in list(self._under_way):
            # Somebody else has closed it, which is what this call is for.
            with contextlib.suppress(ChannelClosed):
                work.wait()
        who = self._transport.who()
        self._transport.ask("channel", "end", self._name, who, wait=Wait(who, f"channel '{self._name}'", "it to end"))

    def __iter__(self) -> Iterator[Any]:
        """The items of the default key, until the channel is closed and empty."""
        return self.items()

    def items(self, key: Hashable = "default") -> Iterator[Any]:
        """The items of a key, until the channel is closed and empty; raises as `get`."""
        while True:
            try:
                item = self.get(key)
            except EndOfStream:
                return
            yield item

    async def __aiter__(self) -> AsyncIterator[Any]:
        """As `for`, for asyncio."""
        while True:
            try:
                item = await self.get(async_op=True)
            except EndOfStream:
                return
            yield item

    def _blobs(self, item: Any, weight: int) -> Blobs:
        place = f"channel '{self._name}'"
        # Of a weight below 0 a batch would never be full.
        expect_at_least(f"{place}.put(weight)", weight, 0)
        return encode(item, place=place)

    def _locate(self, key: Hashable, *, decide: bool = True) -> tuple[str, Hashable]:
        try:
            hash(key)
        except TypeError as error:
            remedy = "Use a text, a number or a tuple of them."
            raise ConfigError(f"channel '{self._name}'", f"a key is hashable, found {key!r}", remedy) from error
        host = self._info.host or self._hosts.get(key, "")
        if not host:
            wait = Wait(self._transport.who(), f"channel '{self._name}'", f"the place of key {key!r}")
            host = self._transport.ask("channel", "host", self._name, key, decide, wait=wait)
            if host:
                self._hosts[key] = host
        return host, (self._name, key)

    def _wait(self, key: Hashable, goal: str, timeout: float | None, host: str, queue: Hashable) -> Wait:
        return Wait(self._transport.who(), f"channel '{self._name}', key {key!r}", goal, timeout, host, queue)

    def __reduce__(self) -> Any:
        return _received, (self._transport.run, self._info)

    def __repr__(self) -> str:
        return f"Channel({self._name!r}, host={label(self._info.host) if self._info.host else 'where a key is first used'})"


def _one(items: list[Blobs]) -> Any:
    return decode(items[0])


def _all(items: list[Blobs]) -> list[Any]:
    return [decode(blobs) for blobs in items]


def _received(run: str, info: ChannelInfo) -> Channel:
    transport = OPEN_TRANSPORTS.get(run)
    if transport is None:
        problem = "this process does not belong to the channel's cluster"
        raise RLinfError(f"channel '{info.name}'", problem, "Use it in a worker.")
    return Channel(transport, info)


def _transport_here(place: str) -> Transport:
    """That of the cluster that this thread belongs to: of a worker's process, else of the cluster that was made last here.

    Raises:
        RLinfError: there is none.
    """
    for transport in list(OPEN_TRANSPORTS.values()):
        if transport.in_worker():
            return transport
    return newest(place).transport
