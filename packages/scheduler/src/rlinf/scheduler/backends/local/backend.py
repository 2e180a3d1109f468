"""The `local` back-end: every worker in this process, one running at a time, in a deterministic order; no Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from rlinf.core.cluster.futures import gather_within
from rlinf.core.errors import RLinfError
from rlinf.core.protocols import GroupSpec
from rlinf.core.worker.context import WorkerContext
from rlinf.scheduler.backends.local.children import LocalServices
from rlinf.scheduler.backends.local.cooperative import CooperativeMonitor, CooperativeScheduler
from rlinf.scheduler.backends.local.process import LocalCall, LocalProcess
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.placement import ProcessPlan
from rlinf.scheduler.trace.recording import Recording
from rlinf.scheduler.trace.transfers import traced_locks, traced_transport
from rlinf.scheduler.transport.channel_registry import ChannelRegistry, Traffic
from rlinf.scheduler.transport.encoding import Blobs, snapshot
from rlinf.scheduler.transport.p2p import PeerMessenger
from rlinf.scheduler.transport.queues import Get, Put, Queues
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.transport import DRIVER, OPEN_TRANSPORTS, Transport, address
from rlinf.scheduler.transport.waits import Wait, longer
from rlinf.scheduler.transport.work import Operation
from rlinf.scheduler.watch.graph import WaitGraph
from rlinf.scheduler.watch.stacks import Stack, own_stacks
from rlinf.scheduler.watch.stall import Stalls
from rlinf.scheduler.watch.waits import graph_here
from rlinf.scheduler.workers.calls import SHUT_DOWN, Failure, Process
from rlinf.scheduler.workers.device_lock import DeviceLock, Locks
from rlinf.scheduler.workers.identity import plan_fields, rank_variables
from rlinf.scheduler.workers.launching import LaunchOptions
from rlinf.scheduler.workers.logs import WORKERS, WorkerLog
from rlinf.scheduler.workers.supervisor import Supervisor

END_S = 30.0
"""How long the workers of a group that is shut down may take to end."""


class LocalTransport(Transport):
    """The transport of a cluster in one process: there is one set of queues, whatever the host."""

    asks_driver = False

    def __init__(self, run: str, scheduler: CooperativeScheduler) -> None:
        self.run = run
        self._scheduler = scheduler
        self.queues = Queues(lambda: CooperativeMonitor(scheduler))
        # This route has no shared memory, of which one process has no need.
        self.routes = Routes("socket", lambda _, __: "process")
        self.channels = ChannelRegistry(CooperativeMonitor(scheduler), self)

    def who(self) -> str:
        return self._scheduler.me().name

    def in_worker(self) -> bool:
        try:
            return self._scheduler.me().name != DRIVER
        # A thread that takes no part in the cluster.
        except RLinfError:
            return False

    def ask(self, kind: str, *question: Any, wait: Wait) -> Any:
        """See `Transport`; only channels are asked for, as a worker of this process has the driver's groups."""
        if kind != "channel":
            raise wait.closed("the driver is this process")
        # From the label `env[0]` back to the address `env.0`, by which the registry knows who asks.
        group, bracket, rank = self.who().rpartition("[")
        return self.channels.answer(f"{group}.{rank[:-1]}" if bracket else DRIVER, *question)

    def start_put(
        self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False
    ) -> Operation:
        return self.queues.start(Put(queue, self.who(), (weight, snapshot(blobs)), maxsize, now=now))

    def start_get(self, host: str, queue: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> Operation:
        return self.queues.start(Get(queue, self.who(), target, now=now))

    def size(self, host: str, queue: Hashable, wait: Wait) -> int:
        return self.queues.size(queue)

    def stop_puts(self, channel: str, reason: str, hosts: Sequence[str]) -> None:
        """See `Processes`; nothing is on its way."""

    def end_queues(self, channel: str, reason: str, hosts: Sequence[str]) -> None:
        self.queues.end(channel, reason)

    def traffic(self, channels: Sequence[str], host: str) -> Sequence[Traffic]:
        """See `Processes`; nothing is counted, as no host is lost."""
        return []

    def lose(self, host: str, reasons: Mapping[str, str]) -> None:
        """No host is lost."""


class LocalBackend:
    """Implements `Backend` in this process."""

    cooperative = True
    replaceable = False

    def __init__(self, config: ClusterConfig, run: str) -> None:
        self.timeout_s = config.timeout_s
        # What the driver waits for ends with the failure, and workers run only while it waits.
        self.failures = Failures(lambda _: None)
        self.failures.explain = Stalls(self.wait_graph, self.stacks, config.log_dir).explain
        self.ended = 0
        self.scheduler = CooperativeScheduler(self.failures, self.wait_graph)
        self.recording, self._ends = Recording.begin(config, run)
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
        self.channels = transport.channels
        self.transport: Transport = traced_transport(transport, self.recorder)

    def prepare(
        self, spec: GroupSpec[Any], group: str, plans: Sequence[ProcessPlan], supervisor: Supervisor, options: LaunchOptions
    ) -> None:
        """See `Backend`; there are no processes to start."""

    def launch(
        self, spec: GroupSpec[Any], group: str, plans: Sequence[ProcessPlan], supervisor: Supervisor, options: LaunchOptions
    ) -> list[Process]:
        self.failures.check()
        processes = self._processes[group] = list[LocalProcess]()
        calls: list[LocalCall] = []
        # Before the workers are built: their constructors may already send to each other's ranks.
        self._sizes[group] = len(plans)
        logs = self._logs[group] = list[WorkerLog]()
        for plan in plans:
            info = WorkerContext(**plan_fields(group, plan, plans)).info
            log = WorkerLog(f"{WORKERS}.{address(group, plan.rank)}", self._log_dir, group, plan.rank)
            logs.append(log)
            processes.append(LocalProcess(self, info, log, options, spec))
            calls.append(processes[-1].construct(self._context(group, plan, plans, options, processes[-1].fail)))
        try:
            # Only when all have begun: a constructor may wait for that of another rank.
            gather_within(self.timeout_s, calls, remedy=longer(None))
        except BaseException as error:
            # After Ctrl-C one of them may still run, and be long about it.
            self._end(group, f"launch of '{group}'", waits=isinstance(error, Exception))
            raise
        return list(processes)

    def end(self, group: str) -> None:
        self._end(group, f"shutdown of '{group}'", waits=True)

    def _end(self, group: str, place: str, *, waits: bool) -> None:
        """Ends a group, whether it was launched or not; with `waits` all of its tasks have ended then."""
        del self._sizes[group]
        processes = self._processes.pop(group)
        for process in processes:
            process.shutdown()
        try:
            wait = Wait(DRIVER, place, "its workers to end", END_S) if waits else None
            self.scheduler.end_all(lambda name: name.rpartition("[")[0] == group, SHUT_DOWN, wait)
        finally:
            for process in processes:
                self._locks.forget(process.info.label, os.getpid())
            for log in self._logs.pop(group):
                log.close()

    def wait_graph(self) -> WaitGraph:
        return graph_here(self._names(), self._untraced.queues, self._locks)

    def stacks(self) -> dict[str, list[Stack]]:
        found: dict[str, list[Stack]] = {DRIVER: []}
        for stack in own_stacks():
            # The threads of a worker, and of its children, have its label as their name; all others are the driver's.
            who = stack.thread if stack.thread.rpartition("[")[0] in self._processes else DRIVER
            found.setdefault(who, []).append(stack)
        return found

    def stop(self) -> None:
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
            memory=None if self.recorder is None else self.recorder.memory(owner),
        )
