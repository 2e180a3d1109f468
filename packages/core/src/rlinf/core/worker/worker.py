"""`Worker`: the base of everything that a cluster runs; a class that does not know whether it is remote.

What a worker has from its cluster (rank, devices, messages, lock, log) is injected before its constructor runs. Built by hand, in a
test or a notebook, it is rank 0 of 1 with nobody to talk to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeVar

from rlinf.core.protocols import Channel, Child, Cluster, DeviceLock, Messenger
from rlinf.core.worker.compat import RENAMED, WORKER, answers, refuse_parent
from rlinf.core.worker.context import CONTEXT, CurrentWorker, WorkerAddress, WorkerContext, WorkerInfo
from rlinf.core.worker.correspondence import Correspondent
from rlinf.core.worker.timers import TimerDecorator, Timers

W = TypeVar("W", bound="Worker")
F = TypeVar("F", bound=Callable[..., Any])


def idempotent(method: F) -> F:
    """Declares that a method of a worker may run twice: its calls are issued again if its process is restarted under them."""
    method.__rlinf_idempotent__ = True  # pyright: ignore[reportFunctionMemberAccess]
    return method


@dataclass(frozen=True, slots=True)
class WorkerGroupSpec(Generic[W]):
    """A worker class and its constructor's arguments, ready to be launched."""

    worker: type[W]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def launch(self, cluster: Cluster, placement_strategy: Any | None = None, name: str | None = None, **options: Any) -> Any:
        """Starts the group on a cluster.

        Args:
            cluster: where.
            placement_strategy: which devices each rank gets; by default one process on each accelerator of the cluster, or one
                on the first node if there is none.
            name: the group's name, unique in the cluster; by default the class's name.
            options: what else the cluster's `launch` knows, such as `max_concurrency`.

        Returns:
            The worker group, once every rank is constructed.
        """
        return cluster.launch(self, name=name or self.worker.__name__, placement_strategy=placement_strategy, **options)


@answers(WORKER, RENAMED)
class Worker(Correspondent):
    """Derive from it, write methods, launch with `create_group(…).launch(…)`."""

    _context: WorkerContext
    _timers: Timers
    current_worker: ClassVar[CurrentWorker] = CurrentWorker()
    """The worker whose code runs; None outside of workers."""
    timer: ClassVar[TimerDecorator] = TimerDecorator()
    """`@Worker.timer("load")` adds the seconds of each call of a method to the worker's timer `load`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Injects the context, so that a subclass need not call `super().__init__()`."""
        self = super().__new__(cls)
        self._context = CONTEXT.get(WorkerContext())
        self._timers = Timers(self._context.span)
        CurrentWorker.constructed(self)
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes nothing itself; a subclass need not call it.

        Args:
            args: those of the next class, where a subclass has several bases.
            kwargs: likewise.

        Raises:
            AbsentArgument: they are those of RLinf's child workers.
        """
        refuse_parent(args, kwargs)
        super().__init__(*args, **kwargs)

    @classmethod
    def create_group(cls: type[W], *args: Any, **kwargs: Any) -> WorkerGroupSpec[W]:
        """The class with its constructor's arguments, to be launched on a cluster."""
        return WorkerGroupSpec(cls, args, kwargs)

    @property
    def group_name(self) -> str:
        """The name of the worker's group."""
        return self._context.group

    @property
    def rank(self) -> int:
        """The worker's rank in its group."""
        return self._context.rank

    @property
    def world_size(self) -> int:
        """How many workers the group has."""
        return self._context.world_size

    @property
    def node(self) -> int:
        """The rank of the worker's node in the cluster."""
        return self._context.node

    @property
    def devices(self) -> tuple[int, ...]:
        """The global ranks of the accelerators that the worker was placed on."""
        return self._context.devices

    @property
    def accelerator_type(self) -> str:
        """`NV_GPU`, …; "" if the worker was placed on no accelerator."""
        return self._context.accelerator_type

    @property
    def has_accelerator(self) -> bool:
        """Whether the worker was placed on accelerators."""
        return bool(self._context.devices)

    @property
    def has_device(self) -> bool:
        """Whether the worker was placed on accelerators for which torch has a device; virtual ones stand for CPU cores."""
        return self.accelerator_type not in ("", "VIRTUAL")

    @property
    def hardware_infos(self) -> tuple[Any, ...]:
        """What the worker was placed on, one by one; the `config` of a robot is what `cluster.node_groups` says of it."""
        return self._context.hardware

    @property
    def threads(self) -> int:
        """How many CPU threads the worker's computations may use."""
        return self._context.threads

    @property
    def worker_address(self) -> WorkerAddress:
        """`rollout:0`; of a child process `rollout:0:3`."""
        return self._context.address

    @property
    def worker_info(self) -> WorkerInfo:
        """Where the worker is."""
        return self._context.info

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables that tell libraries such as torch which rank this is.

        `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `NODE_RANK`, `NODE_LOCAL_RANK`,
        `NODE_LOCAL_WORLD_SIZE`, `CLUSTER_NODE_RANK`, `GROUP_NAME`, `WORKER_NAME`. On the `ray` back-end the process has them in its
        environment before the constructor runs; on `local`, where workers share a process, they are here only.
        """
        return self._context.variables

    @property
    def rendezvous(self) -> str:
        """The address at which the group's ranks meet, `tcp://host:port`; "" where there is nobody to meet."""
        return self._context.rendezvous

    @property
    def device_lock(self) -> DeviceLock:
        """`with self.device_lock:` gives the worker its devices for itself."""
        return self._context.device_lock

    @property
    def messenger(self) -> Messenger:
        """Messages to other workers; `send`, `recv` and `broadcast` use it."""
        return self._context.messenger

    def create_channel(self, name: str, **options: Any) -> Channel:
        """A new channel, named and chosen as in the cluster's `create_channel`."""
        return self._context.services.create_channel(name, **options)

    def connect_channel(self, name: str) -> Channel:
        """The channel of that name, which somebody has created."""
        return self._context.services.connect_channel(name)

    def start_child(self, function: Callable[..., Any], *args: Any, name: str = "") -> Child:
        """Runs `function(*args)` in a process of its own, which ends with this worker, and whose failure is this worker's.

        In it `Worker.current_worker` is the child: its `worker_address` is below this worker's, and it may send, receive and use
        channels. Others reach it by this worker's group and the child's `rank`, a path such as `(0, 3)`.

        Args:
            function: a function of a module, or of the script.
            args: what it is called with; must be picklable.
            name: for messages; by default the function's name.
        """
        return self._context.services.start_child(function, args, name or getattr(function, "__name__", "child"))

    def acquire_free_port(self, max_port_num: int | None = None) -> int:
        """A TCP port of this machine on which nobody listens now.

        Args:
            max_port_num: the highest that will do.

        Raises:
            ConfigError: none of them is free.
        """
        from rlinf.core.process.ports import free_port  # `import rlinf.core` starts no process, and loads nothing that does

        return free_port() if max_port_num is None else free_port(max_port_num=max_port_num)

    @property
    def log(self) -> logging.Logger:
        """The worker's logger, named `rlinf.worker.<group>.<rank>`."""
        return logging.getLogger(".".join(["rlinf.worker", self.group_name, *map(str, self.worker_address.ranks)]))

    def log_debug(self, message: str) -> None:
        """Writes to the worker's log, for who looks for a fault."""
        self.log.debug(message)

    def log_info(self, message: str) -> None:
        """Writes to the worker's log."""
        self.log.info(message)

    def log_warning(self, message: str) -> None:
        """Writes to the worker's log, as a warning."""
        self.log.warning(message)

    def log_error(self, message: str) -> None:
        """Writes to the worker's log, as an error."""
        self.log.error(message)

    def log_on_first_rank(self, message: str) -> None:
        """Writes to the log of rank 0; does nothing on the others."""
        if self.rank == 0:
            self.log.info(message)

    def log_on_last_rank(self, message: str) -> None:
        """Writes to the log of the last rank; does nothing on the others."""
        if self.rank == self.world_size - 1:
            self.log.info(message)

    def worker_timer(self, tag: str) -> AbstractContextManager[None]:
        """Adds the seconds spent inside to the worker's timer `tag`."""
        return self._timers.timed(tag)

    @property
    def records_memory(self) -> bool:
        """Whether a trace takes what `record_memory` says."""
        return self._context.memory is not None

    def record_memory(self, part: str, size: int) -> None:
        """Writes into the trace what a part of the worker takes, such as `parameters` or `optimizer`; nothing without a trace.

        Args:
            part: what it is.
            size: its bytes now.
        """
        if self._context.memory is not None:
            self._context.memory(part, size)

    def pop_execution_time(self, tag: str) -> float:
        """Seconds of one timer since it was read last.

        Raises:
            UnknownName: it has not run since.
        """
        return self._timers.pop(tag)

    @idempotent
    def pop_execution_times(self) -> dict[str, float]:
        """Seconds by tag since the last call."""
        return self._timers.pop_all()
