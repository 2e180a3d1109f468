"""Who a worker is, and what its cluster gives it: an address, a place and services, injected before its constructor runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.protocols import Channel, Child, DeviceLock, Messenger, Rank, Work

ALONE = "alone"
"""The group of a worker that was built by hand."""


@dataclass(frozen=True, slots=True, order=True)
class WorkerAddress:
    """A worker, or a process that a worker has started: a group and a path of ranks, `rollout:0` or `rollout:0:3`.

    Raises:
        ConfigError: a rank is negative.
    """

    root_group_name: str
    ranks: tuple[int, ...]
    """The rank in the group, then the number of the child, of its child, …"""

    def __init__(self, root_group_name: str, ranks: int | Sequence[int]) -> None:
        path = (ranks,) if isinstance(ranks, int) else tuple(ranks)
        if any(rank < 0 for rank in path):
            raise ConfigError("WorkerAddress", f"expected ranks of at least 0, found {list(path)}")
        object.__setattr__(self, "root_group_name", root_group_name)
        object.__setattr__(self, "ranks", path)

    @classmethod
    def from_name(cls, name: str) -> WorkerAddress:
        """The address that `get_name` wrote.

        Raises:
            ConfigError: it can't be read.
        """
        group, *ranks = name.split(":")
        # `isdigit` alone takes superscripts and digits of other scripts.
        if not group or not all(rank.isascii() and rank.isdigit() for rank in ranks):
            raise ConfigError("WorkerAddress", f"'{name}' is no address", "Write group:rank, or group:rank:child.")
        return cls(group, [int(rank) for rank in ranks])

    def get_name(self) -> str:
        """`rollout:0:3`."""
        return ":".join([self.root_group_name, *map(str, self.ranks)])

    def get_parent_address(self) -> WorkerAddress | None:
        """Who has started it; None for a worker of a group."""
        return WorkerAddress(self.root_group_name, self.ranks[:-1]) if len(self.ranks) > 1 else None

    def get_child_address(self, rank: int) -> WorkerAddress:
        """The address of a process that it has started."""
        return WorkerAddress(self.root_group_name, (*self.ranks, rank))

    def get_parent_rank(self) -> int:
        """The rank in the group of the worker to which it belongs."""
        return self.ranks[0]

    @property
    def rank(self) -> int:
        """The last rank of the path."""
        return self.ranks[-1]

    def __str__(self) -> str:
        return self.get_name()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """Where one worker is."""

    group: str
    rank: int
    devices: tuple[int, ...]
    """Global ranks of its accelerators."""
    threads: int
    pid: int
    node: int = 0
    """The rank of its node in the cluster."""
    accelerator_type: str = ""
    """`NV_GPU`, …; "" if it was placed on no accelerator."""

    @property
    def label(self) -> str:
        """`rollout[1]`."""
        return f"{self.group}[{self.rank}]"

    @property
    def address(self) -> WorkerAddress:
        """`rollout:1`."""
        return WorkerAddress(self.group, self.rank)


def _alone(what: str) -> NoReturn:
    raise RLinfError(what, "this worker was built outside a cluster", "Launch it in a group.")


class _NoMessenger:
    """The messenger of a worker that stands alone."""

    def send(self, item: Any, group: str, rank: Rank, *, tag: str = "", async_op: bool = False) -> Work[None] | None:
        _alone(f"send to {group}[{rank}]")

    def recv(
        self, group: str, rank: Rank, *, tag: str = "", timeout: float | None = None, async_op: bool = False, into: Any = None
    ) -> Any:
        _alone(f"recv from {group}[{rank}]")

    def broadcast(self, item: Any, members: Any, src: Any, *, tag: str = "", async_op: bool = False) -> Any:
        _alone("broadcast")


class UncontendedLock:
    """The device lock of a worker that stands alone: nobody else wants its devices."""

    def acquire(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def release(self) -> None:
        """Nobody waits for the devices."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *exception: object) -> None:
        pass


class Services:
    """What else a worker asks of its cluster; these are the answers of a worker that stands alone."""

    def create_channel(self, name: str, **options: Any) -> Channel:
        _alone(f"channel '{name}'")

    def connect_channel(self, name: str) -> Channel:
        _alone(f"channel '{name}'")

    def start_child(self, function: Callable[..., Any], args: tuple[Any, ...], name: str) -> Child:
        _alone(f"child '{name}'")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What a cluster injects into a worker."""

    group: str = ALONE
    """The name of the worker's group."""
    rank: int = 0
    """0 … world_size − 1."""
    world_size: int = 1
    """How many workers the group has."""
    devices: tuple[int, ...] = ()
    """The global ranks of the accelerators that the worker was placed on."""
    threads: int = 1
    """How many CPU threads the worker's computations may use."""
    node: int = 0
    """The rank of the worker's node in the cluster."""
    accelerator_type: str = ""
    """`NV_GPU`, …; "" if the worker was placed on no accelerator."""
    hardware: tuple[Any, ...] = ()
    """What the worker was placed on, one by one: accelerators, or robots with their configuration."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """`RANK`, `MASTER_ADDR`, …; see `Worker.environment`."""
    children: tuple[int, ...] = ()
    """Where the process is below its worker: empty for the worker itself."""
    messenger: Messenger = field(default_factory=_NoMessenger)
    """How it sends and receives."""
    services: Services = field(default_factory=Services)
    """Channels and child processes."""
    device_lock: DeviceLock = field(default_factory=UncontendedLock)
    """Held while the worker alone uses its devices; shared with all workers on any of them."""
    rendezvous: str = ""
    """The address at which the group's ranks meet, `tcp://host:port`; "" where each is alone or they share a process."""
    span: Callable[[str], AbstractContextManager[Any]] = nullcontext
    """Entered with the tag of a timer while it runs, so that a trace can show it."""
    memory: Callable[[str, int], None] | None = None
    """Is told what a part of the worker takes, in bytes, so that a trace can say it; None where nobody records it."""

    @property
    def address(self) -> WorkerAddress:
        """`rollout:0`."""
        return WorkerAddress(self.group, (self.rank, *self.children))

    @property
    def info(self) -> WorkerInfo:
        """Where the worker is."""
        return WorkerInfo(
            group=self.group,
            rank=self.rank,
            devices=self.devices,
            threads=self.threads,
            pid=os.getpid(),
            node=self.node,
            accelerator_type=self.accelerator_type,
        )

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that tell libraries such as torch which rank this is."""
        names = {"GROUP_NAME": self.group, "WORKER_NAME": f"{self.group}:{self.rank}"}
        ranks = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "CLUSTER_NODE_RANK": self.node, **_ONE_PROCESS}
        # What the cluster says comes last, and counts.
        return {**names, **{name: str(value) for name, value in ranks.items()}, "MASTER_ADDR": "127.0.0.1", **self.environment}


_ONE_PROCESS = {
    "LOCAL_RANK": 0,
    "LOCAL_WORLD_SIZE": 1,
    "NODE_RANK": 0,
    "NODE_LOCAL_RANK": 0,
    "NODE_LOCAL_WORLD_SIZE": 1,
    "MASTER_PORT": 0,
}
"""Of a process that nobody else belongs to; port 0 takes any free one."""

CONTEXT: ContextVar[WorkerContext] = ContextVar("rlinf_worker_context")


@contextmanager
def injected(context: WorkerContext) -> Generator[None]:
    """Workers that are constructed inside get this context; the first of them is the current worker until then."""
    token = CONTEXT.set(context)
    try:
        with CurrentWorker.running(None):
            yield
    finally:
        CONTEXT.reset(token)


class CurrentWorker:
    """`Worker.current_worker`: the worker whose code runs here; None outside of workers."""

    _here: ContextVar[Any] = ContextVar("rlinf_current_worker", default=None)
    _of_process: Any = None

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        here = self._here.get()
        # A new thread begins with an empty context, in which no worker is set.
        return CurrentWorker._of_process if here is None else here

    @classmethod
    def constructed(cls, worker: Any) -> None:
        """A worker's constructor is about to run."""
        # One that is built by hand, or by the code of another worker, is not the one that runs here.
        if CONTEXT.get(None) is not None and cls._here.get() is None:
            cls._here.set(worker)

    @classmethod
    def own_process(cls, worker: Any) -> None:
        """The whole process is this worker's, with all of its threads."""
        cls._of_process = worker

    @classmethod
    @contextmanager
    def running(cls, worker: Any) -> Generator[None]:
        """The code that runs inside is this worker's."""
        token = cls._here.set(worker)
        try:
            yield
        finally:
            cls._here.reset(token)
