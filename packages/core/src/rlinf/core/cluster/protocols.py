"""What a cluster offers, as protocols: worker groups, channels, messages, locks, and the handles of what goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from rlinf.core.cluster.futures import Future
from rlinf.core.cluster.handover import HandoverPolicy

W_co = TypeVar("W_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)
Rank: TypeAlias = int | tuple[int, ...]
"""A rank in a group, or the path `(rank, child)` of a process that a worker has started."""


class Work(Future[R_co], Awaitable[R_co], Protocol[R_co]):
    """The handle of an operation that goes on by itself; can be awaited in an async method."""

    async def async_wait(self) -> R_co:
        """The same as `await work`."""
        ...


class Child(Protocol):
    """A process that a worker has started, and that ends with it."""

    @property
    def name(self) -> str:
        """Its address: `rollout:0:3`."""
        ...

    @property
    def rank(self) -> tuple[int, ...]:
        """The path by which others send to it."""
        ...

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    def wait(self, timeout: float | None = None) -> None:
        """Waits for its end; `DeadlineExceeded` after `timeout` seconds."""
        ...

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    def stop(self) -> None:
        """Ends it now."""
        ...


class Messenger(Protocol):
    """Messages between workers, in order for each pair and tag."""

    def send(self, item: Any, group: str, rank: Rank, *, tag: str = "", async_op: bool = False) -> Any:
        """Sends to a worker; returns when the item is on its way, or with `async_op` its `Work` at once."""
        ...

    def recv(
        self, group: str, rank: Rank, *, tag: str = "", timeout: float | None = None, async_op: bool = False, into: Any = None
    ) -> Any:
        """The next item from a worker, or with `async_op` its `Work`; `DeadlineExceeded` after `timeout` seconds.

        It is written into the array or tensor `into`, if there is one.
        """
        ...

    def broadcast(
        self, item: Any, members: Sequence[tuple[str, Rank]], src: tuple[str, Rank] | None, *, tag: str = "", async_op: bool = False
    ) -> Any:
        """The source's item on every member, or with `async_op` its `Work`."""
        ...


class DeviceLock(Protocol):
    """A worker's devices, for itself while it holds them: `with lock:`, or `async with lock:` in an async method."""

    def acquire(self, timeout: float | None = None) -> None:
        """Waits for the devices; who holds them already may acquire them again. `DeadlineExceeded` after `timeout` seconds."""
        ...

    def release(self) -> None:
        """Gives them back, once for each `acquire`."""
        ...

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *exception: object) -> None: ...


class Channel(Protocol):
    """A named set of first-in first-out queues, one for each key."""

    @property
    def name(self) -> str:
        """The channel's name."""
        ...

    @property
    def maxsize(self) -> int:
        """How many items each key holds before a put blocks; 0 for any number."""
        ...

    def put(self, item: Any, weight: int = 0, key: Any = "default", async_op: bool = False, *, timeout: float | None = None) -> Any:
        """Appends an item; blocks while the queue is full. With `async_op`, a `Work[None]` at once; the order is kept."""
        ...

    def put_nowait(self, item: Any, weight: int = 0, key: Any = "default") -> None:
        """Appends an item, or raises `ChannelFull`."""
        ...

    def get(self, key: Any = "default", async_op: bool = False, *, timeout: float | None = None) -> Any:
        """The oldest item; `DeadlineExceeded` after `timeout` seconds. With `async_op`, a `Work` of it at once.

        A `Work` that is cancelled, or dropped before its result was asked for, leaves its item in the channel.
        """
        ...

    def get_nowait(self, key: Any = "default") -> Any:
        """The oldest item, or raises `ChannelEmpty`."""
        ...

    def get_batch(
        self, target_weight: int = 0, key: Any = "default", async_op: bool = False, *, timeout: float | None = None
    ) -> Any:
        """The oldest items, until their weights reach `target_weight`; always at least one."""
        ...

    def qsize(self, key: Any = "default") -> int:
        """How many items wait."""
        ...

    def empty(self, key: Any = "default") -> bool:
        """Whether no item waits."""
        ...

    def full(self, key: Any = "default") -> bool:
        """Whether a put would block."""
        ...

    def close(self) -> None:
        """Takes nothing more: a get has what is left, then `EndOfStream`; a put has `ChannelClosed`."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The items of the default key, until the channel is closed and empty."""
        ...


class WorkerGroup(Protocol[W_co]):
    """Workers of one class, one for each rank; any method of the class can be called on the group."""

    @property
    def name(self) -> str:
        """The group's name."""
        ...

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        ...

    @property
    def cluster(self) -> Cluster:
        """Where the group runs."""
        ...

    def shutdown(self) -> None:
        """Ends all workers, and the calls that have not ended; the name can then be launched again. A second call does nothing."""
        ...

    def __getattr__(self, method: str) -> Callable[..., Future[list[Any]]]: ...

    def execute_on(self, *ranks: int | Sequence[int]) -> WorkerGroup[W_co]:
        """A view of some ranks: `execute_on(0, 2)` or `execute_on([0, 2])`; the group itself is unchanged."""
        ...


class GroupSpec(Protocol[W_co]):
    """What a cluster needs to know to start a worker group."""

    @property
    def worker(self) -> type[W_co]:
        """The class of the workers."""
        ...

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments of its constructor."""
        ...

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of its constructor."""
        ...


class Placement(Protocol):
    """Says where the processes of each component run."""

    @property
    def components(self) -> tuple[str, ...]:
        """The components that are placed."""
        ...

    def get_strategy(self, component: str) -> Any:
        """The `placement_strategy` to launch a component with."""
        ...

    def get_world_size(self, component: str) -> int:
        """How many processes a component has."""
        ...

    def describe(self) -> str:
        """The plan as a table."""
        ...


class Cluster(Protocol):
    """Runs worker groups and carries what they say to each other."""

    @property
    def placement(self) -> Placement:
        """What its configuration says of where components go."""
        ...

    def handover_policy(self) -> HandoverPolicy | None:
        """Who decides which work goes from a worker to another of its group; None if all of it stays."""
        ...

    def launch(self, spec: GroupSpec[Any], *, name: str, placement_strategy: Any | None = None) -> Any:
        """Starts a worker group and returns it."""
        ...

    def prepare(self, worker: type[Any], *, name: str, placement_strategy: Any | None = None) -> None:
        """Starts the processes of a group that is launched later under that name, so that several groups start at the same time."""
        ...

    def create_channel(self, name: str, *, maxsize: int = 0, near: str | None = None) -> Channel:
        """A new channel; `near` names the worker group whose rank 0 hosts it."""
        ...

    def connect_channel(self, name: str, *, timeout: float | None = None) -> Channel:
        """The channel of that name, which anybody in the cluster has created; waits until it is."""
        ...

    def shutdown(self) -> None:
        """Ends what this cluster started, and nothing else."""
        ...
