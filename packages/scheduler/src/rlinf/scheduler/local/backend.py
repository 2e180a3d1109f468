"""The `local` back-end: every worker in this process, one running at a time, in a deterministic order; no Ray."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, TypeVar

from rlinf.core.errors import RLinfError, WorkerError
from rlinf.core.protocols import GroupSpec
from rlinf.core.worker_context import WorkerContext
from rlinf.scheduler.calls import SHUT_DOWN, Failure, Process
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.identity import plan_fields, rank_variables
from rlinf.scheduler.launching import LaunchOptions
from rlinf.scheduler.local.children import LocalServices
from rlinf.scheduler.local.cooperative import CooperativeMonitor, CooperativeScheduler
from rlinf.scheduler.local.process import LocalCall, LocalProcess
from rlinf.scheduler.logs import WORKERS, Console, WorkerLog
from rlinf.scheduler.placement import ProcessPlan
from rlinf.scheduler.supervisor import Supervisor
from rlinf.scheduler.trace.recording import Recording
from rlinf.scheduler.trace.transfers import traced_locks, traced_transport
from rlinf.scheduler.transport.channels import ChannelList, ChannelRegistry, LocalChannels
from rlinf.scheduler.transport.encoding import Blob, Blobs, snapshot
from rlinf.scheduler.transport.locks import DeviceLock, Locks
from rlinf.scheduler.transport.messenger import PeerMessenger
from rlinf.scheduler.transport.pending import Hosted, Pending
from rlinf.scheduler.transport.queues import Queues
from rlinf.scheduler.transport.requests import Get, Put, Request
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.transport import DRIVER, OPEN_TRANSPORTS, Transport, address
from rlinf.scheduler.transport.waiting import Wait
from rlinf.scheduler.watch.graph import WaitGraph
from rlinf.scheduler.watch.stacks import Stack, own_stacks
from rlinf.scheduler.watch.stall import Stalls
from rlinf.scheduler.watch.waits import graph_here

R = TypeVar("R")
END_S = 30.0
"""How long the workers of a group that is shut down may take to end."""


class LocalTransport:
    """The post of a cluster in one process: there is one set of queues, whatever the host."""

    def __init__(self, run: str, scheduler: CooperativeScheduler) -> None:
        self._run = run
        self._scheduler = scheduler
        self.queues = Queues(lambda: CooperativeMonitor(scheduler))
        self.routes = Routes("socket", lambda _, __: "process")
        self.channel_list = ChannelRegistry(CooperativeMonitor(scheduler))
        self._channels = LocalChannels(self.channel_list, self.queues.end, self._address)

    @property
    def run(self) -> str:
        """See `Transport`."""
        return self._run

    def who(self) -> str:
        """See `Transport`."""
        return self._scheduler.me().name

    def in_worker(self) -> bool:
        """See `Transport`."""
        try:
            return self._scheduler.me().name != DRIVER
        except RLinfError:
            return False

    @property
    def asks_driver(self) -> bool:
        """See `Transport`."""
        return False

    def ask_driver(self, question: tuple[Any, ...], content: Sequence[Blob], wait: Wait) -> tuple[Any, list[Blob]]:
        """See `Transport`; never called."""
        raise wait.closed("the driver is this process")

    @property
    def channels(self) -> ChannelList:
        """See `Transport`."""
        return self._channels

    def put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False) -> None:
        """See `Transport`."""
        self.queues.put(queue, (weight, snapshot(blobs)), maxsize, wait, now=now)

    def get(self, host: str, queue: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> list[Blobs]:
        """See `Transport`."""
        return [blobs for _, blobs in self.queues.get(queue, target, wait, now=now)]

    def size(self, host: str, queue: Hashable, wait: Wait) -> int:
        """See `Transport`."""
        return self.queues.size(queue)

    def start_put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait) -> Pending[None]:
        """See `Transport`."""
        return self._pending(Put(queue, self.who(), (weight, snapshot(blobs)), maxsize), wait, lambda _: None)

    def start_get(
        self, host: str, queue: Hashable, target: int | None, wait: Wait, result: Callable[[list[Blobs]], R]
    ) -> Pending[R]:
        """See `Transport`."""
        return self._pending(Get(queue, self.who(), target, holds=True), wait, result)

    def _pending(self, request: Request, wait: Wait, result: Callable[[list[Blobs]], R]) -> Pending[R]:
        monitor, hosted = CooperativeMonitor(self._scheduler), Hosted(self.queues, request)
        return Pending(hosted, wait, result, monitor, give_way=self._scheduler.give_way, cooperative=True)

    def _address(self) -> str:
        group, bracket, rank = self.who().rpartition("[")
        return f"{group}.{rank[:-1]}" if bracket else DRIVER


class LocalBackend:
    """Implements `Backend` in this process."""

    cooperative = True
    replaceable = False

    def __init__(self, config: ClusterConfig, run: str) -> None:
        self.timeout_s = config.timeout_s
        self.failures = Failures(lambda _: None)
        self.failures.explain = Stalls(self.wait_graph, self.stacks, config.log_dir).explain
        self.unseen: list[LocalCall] = []
        """Calls that failed, and nobody has waited for them yet."""
        self.scheduler = CooperativeScheduler(self._first_failure, self.wait_graph)
        with ExitStack() as started:
            started.callback(Console().close)
            self.recording = Recording.of(config, run)
            if self.recording is not None:
                started.callback(self.recording.end)
            self._ends = started.pop_all()
        self.recorder = None if self.recording is None else self.recording.recorder
        self._locks = Locks(lambda: CooperativeMonitor(self.scheduler))
        self._log_dir = config.log_dir
        self._logs: dict[str, list[WorkerLog]] = {}
        """By group."""
        self._processes: dict[str, list[LocalProcess]] = {}
        self._sizes: dict[str, int] = {}
        """The groups and their world sizes."""
        transport = self._untraced = LocalTransport(run, self.scheduler)
        OPEN_TRANSPORTS[run] = transport
        self.channels = transport.channel_list
        self.transport: Transport = traced_transport(transport, self.recorder)

    def launch(
        self,
        spec: GroupSpec[Any],
        group: str,
        plans: Sequence[ProcessPlan],
        supervisor: Supervisor,
        options: LaunchOptions,
    ) -> list[Process]:
        """See `Backend`."""
        processes = self._processes[group] = list[LocalProcess]()
        calls: list[LocalCall] = []
        self._sizes[group] = len(plans)
        logs = self._logs.setdefault(group, [])
        for plan in plans:
            info = WorkerContext(**plan_fields(group, plan, plans)).info
            log = WorkerLog(f"{WORKERS}.{address(group, plan.rank)}", self._log_dir, group, plan.rank)
            logs.append(log)
            processes.append(LocalProcess(self, info, log, options, spec))
            calls.append(processes[-1].construct(self._context(group, plan, plans, options, processes[-1].fail)))
        try:
            for call in calls:
                call.wait()
        except Exception:
            for process in processes:
                process.end()
            del self._sizes[group], self._processes[group]
            raise
        return list(processes)

    def end(self, group: str) -> None:
        """See `Backend`."""
        del self._sizes[group]
        for process in self._processes.pop(group):
            process.shutdown()
        wait = Wait(DRIVER, f"shutdown of '{group}'", "its workers to end", END_S)
        self.scheduler.end_all(lambda name: name.rpartition("[")[0] == group, SHUT_DOWN, wait)
        for log in self._logs.pop(group):
            log.close()

    def wait_graph(self) -> WaitGraph:
        """See `Backend`."""
        return graph_here(self._names(), self._untraced.queues, self._locks)

    def stacks(self) -> dict[str, list[Stack]]:
        """See `Backend`."""
        names = self._names()
        return {stack.thread: [stack] for stack in own_stacks() if stack.thread in names}

    def stop(self) -> None:
        """See `Backend`."""
        OPEN_TRANSPORTS.pop(self.transport.run, None)
        self.scheduler.stop("the cluster was shut down")
        for log in [log for logs in self._logs.values() for log in logs]:
            log.close()
        self._ends.close()

    def _names(self) -> list[str]:
        return [DRIVER, *(process.info.label for processes in self._processes.values() for process in processes)]

    def _context(
        self,
        group: str,
        plan: ProcessPlan,
        plans: Sequence[ProcessPlan],
        options: LaunchOptions,
        fail: Callable[[Failure], None],
    ) -> WorkerContext:
        owner = f"{group}[{plan.rank}]"
        fields = plan_fields(group, plan, plans)

        def groups() -> dict[str, int]:
            return self._sizes

        return WorkerContext(
            **fields,
            environment=rank_variables(group, plan, plans, isolated=options.isolate_gpu),
            messenger=PeerMessenger(self.transport, address(group, plan.rank), groups),
            services=LocalServices(self.scheduler, self.transport, groups, fields, fail),
            device_lock=DeviceLock(traced_locks(self._locks, self.recorder), owner, plan.devices, in_thread=False),
            span=nullcontext if self.recorder is None else self.recorder.timers(owner),
        )

    def _first_failure(self) -> Exception | None:
        if not self.unseen:
            return None
        call = self.unseen.pop(0)
        try:
            call.wait()
        except WorkerError as error:
            return error
        return None
