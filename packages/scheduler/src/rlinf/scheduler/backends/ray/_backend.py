"""The `ray` back-end: one Ray actor for each worker. Ray places, starts and calls, `SocketTransport` carries messages."""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlinf.scheduler.backends.ray._ray import ray as ray  # isort: skip - sets what Ray reads when it is imported
from ray.exceptions import ActorDiedError, RayError

from rlinf.core.cluster.futures import gather_within
from rlinf.core.errors import ClusterError, DeadlineExceeded, RLinfError, WorkerError
from rlinf.core.protocols import GroupSpec
from rlinf.scheduler.backends.ray._launcher import GroupLauncher, LaunchContext
from rlinf.scheduler.backends.ray._nodes import Nodes
from rlinf.scheduler.backends.ray._process import RayProcess
from rlinf.scheduler.backends.ray.guard import Guard
from rlinf.scheduler.backends.ray.services import Services, own_services
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.hardware import Inventory
from rlinf.scheduler.placement import ProcessPlan
from rlinf.scheduler.trace.recording import Recording
from rlinf.scheduler.trace.transfers import traced_transport
from rlinf.scheduler.transport.channel_registry import ChannelRegistry
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo, short_folder
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport
from rlinf.scheduler.transport.transport import DRIVER, Transport, address
from rlinf.scheduler.transport.waits import Wait, longer
from rlinf.scheduler.watch.graph import WaitGraph
from rlinf.scheduler.watch.heartbeat import Heartbeat
from rlinf.scheduler.watch.silence import SilenceWatch
from rlinf.scheduler.watch.stacks import Stack
from rlinf.scheduler.watch.stall import Stalls
from rlinf.scheduler.watch.watcher import Watcher
from rlinf.scheduler.workers.calls import Process
from rlinf.scheduler.workers.launching import LaunchOptions
from rlinf.scheduler.workers.logs import relay
from rlinf.scheduler.workers.supervisor import Supervisor

FAREWELL_S = 1.0
"""How long after the failure that ends a run its other workers live, so that the consequences can be seen."""
END_S = 30.0
"""How long the processes of a group that is shut down may take to end."""
SHUT_DOWN = "the cluster was shut down"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A group whose processes start."""

    of: tuple[type[Any], tuple[ProcessPlan, ...], Supervisor, LaunchOptions]
    """What a launch must ask for to take them over."""
    processes: list[RayProcess]
    started: list[Future[tuple[int, str]]]
    """What `RayProcess.meet` of each gives."""


class RayBackend:
    """Implements `Backend` with Ray.

    Raises:
        ConfigError: there is no Ray at the address.
    """

    cooperative = False

    def __init__(self, config: ClusterConfig, inventory: Inventory, run: str, nodes: Nodes) -> None:
        self._config = config
        self._processes: dict[str, RayProcess] = {}
        self._launches: Counter[str] = Counter()
        """How often a group of each name was launched."""
        self._prepared: dict[str, _Begun] = {}
        """By name, the groups whose processes start and that are not launched yet."""
        self._stopping = False
        self.failures = Failures(self._end)
        self.recording, self._ends = Recording.begin(config, run)
        folder = Path(tempfile.mkdtemp(prefix="rlinf-", dir=short_folder()))
        # Ends are called in reverse: while the folder is being removed, the guard is still there.
        self._ends.callback(Guard(folder=folder).end)
        self._ends.callback(shutil.rmtree, folder, ignore_errors=True)
        ip = nodes.driver_ip
        place = Location(nodes.here, str(folder / DRIVER), None if ip is None else (ip, 0))
        run_info = RunInfo(run=run, driver=place, authkey=secrets.token_bytes(32), timeout_s=config.timeout_s, route=config.route)
        self._untraced = DriverTransport(run_info, on_lost=self._lost, on_log=self._logged)
        self._logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path()) if nodes.owned else None
        self._services = Services(own_services() if nodes.owned else {}, self._broken, self._logs)
        self._launch = LaunchContext(
            config=config,
            inventory=inventory,
            nodes=nodes,
            run_info=replace(run_info, driver=self._untraced.server.place),
            folder=folder,
            trace_dir=None if self.recording is None else self.recording.folder,
            remark=self._services.check,
        )
        self._transport = traced_transport(self._untraced, None if self.recording is None else self.recording.recorder)
        self._watcher = Watcher(self._untraced)
        self._untraced.guard = self.failures.guard
        self._untraced.group_registry.over = lambda: self.failures.over
        self.failures.explain = Stalls(self._watcher.wait_graph, self._watcher.stacks, config.log_dir).explain
        self._heartbeat = Heartbeat(self._watcher.wait_graph, config.heartbeat_s)
        self._silence = SilenceWatch(self._watcher.silent, self._stopped, config.stopped_grace_s)

    @property
    def transport(self) -> Transport:
        return self._transport

    @property
    def channels(self) -> ChannelRegistry:
        return self._untraced.channels

    @property
    def replaceable(self) -> bool:
        return self._logs is not None and not self._untraced.channels.names() and not self.failures.listened

    def prepare(
        self, spec: GroupSpec[Any], group: str, plans: Sequence[ProcessPlan], supervisor: Supervisor, options: LaunchOptions
    ) -> None:
        begun = self._prepared[group] = self._begin(spec, group, plans, supervisor, options)
        for process in begun.processes:
            process.import_class()

    def launch(
        self, spec: GroupSpec[Any], group: str, plans: Sequence[ProcessPlan], supervisor: Supervisor, options: LaunchOptions
    ) -> list[Process]:
        self.failures.check()
        begun = self._prepared.pop(group, None)
        if begun is not None and begun.of != (spec.worker, tuple(plans), supervisor, options):
            self._undo(group, begun.processes)
            hosts = [address(group, process.info.rank) for process in begun.processes]
            self._untraced.directory.await_absence(hosts, Wait(DRIVER, f"launch of '{group}'", "other processes to end", END_S))
            begun = None
        begun = begun or self._begin(spec, group, plans, supervisor, options)
        processes = begun.processes
        try:
            for process in processes:
                process.spec = spec
            pids, rendezvous = self._meet(processes, begun.started)
            constructs = [process.construct(pid, rendezvous) for process, pid in zip(processes, pids, strict=True)]
            gather_within(self._config.timeout_s, constructs, remedy=longer(None))
            self._untraced.group_registry.add(group, spec.worker, processes)
            for process in processes:
                process.up()
        except BaseException:
            self._undo(group, processes)
            raise
        return list(processes)

    def end(self, group: str) -> None:
        hosts = [address(group, rank) for rank in range(self._untraced.sizes.pop(group))]
        self._untraced.group_registry.remove(group)
        for process in [self._processes.pop(host) for host in hosts]:
            process.shutdown()
        self._untraced.directory.await_absence(hosts, Wait(DRIVER, f"shutdown of '{group}'", "its processes to end", END_S))

    def wait_graph(self) -> WaitGraph:
        return self._watcher.wait_graph()

    def stacks(self) -> dict[str, list[Stack]]:
        return self._watcher.stacks()

    def stop(self) -> None:
        # From now on the end of a process is no failure.
        self._stopping = True
        self._heartbeat.stop()
        self._silence.end()
        self._services.end()
        self.failures.stop(SHUT_DOWN)
        self._untraced.close(SHUT_DOWN)
        self._untraced.stop()
        for process in list(self._processes.values()):
            process.end()
        self._ends.close()

    def _begin(
        self, spec: GroupSpec[Any], group: str, plans: Sequence[ProcessPlan], supervisor: Supervisor, options: LaunchOptions
    ) -> _Begun:
        """Starts the processes of a group, and waits for nothing."""
        self.failures.check()
        launcher = GroupLauncher(self._launch, spec.worker, group, plans, options, self._launches[group])
        self._launches[group] += 1
        # Before the processes start: their constructors may already send to its ranks.
        self._untraced.sizes[group] = len(plans)
        processes: list[RayProcess] = []
        try:
            for plan in plans:
                process = RayProcess(spec, group, plan, self._config.timeout_s, supervisor, self.failures, launcher)
                processes.append(process)
                self._processes[address(group, plan.rank)] = process
            started = [process.meet() for process in processes]
        except BaseException:
            self._undo(group, processes)
            raise
        return _Begun(of=(spec.worker, tuple(plans), supervisor, options), processes=processes, started=started)

    def _undo(self, group: str, processes: Sequence[RayProcess]) -> None:
        """Ends the processes of a group that there will not be."""
        for process in processes:
            self._processes.pop(address(group, process.info.rank), None)
            process.end()
        self._untraced.sizes.pop(group)

    def _meet(self, processes: Sequence[RayProcess], started: Sequence[Future[tuple[int, str]]]) -> tuple[list[int], str]:
        """Waits until all processes run; returns their ids, and where their ranks meet."""
        pids: list[int] = []
        rendezvous = ""
        deadline = time.monotonic() + self._config.timeout_s
        for process, future in zip(processes, started, strict=True):
            info = process.info
            try:
                pid, place = process.await_start(future, deadline)
            except TimeoutError as error:
                problem = f"its process did not start in {self._config.timeout_s:g} s"
                raise DeadlineExceeded(info.label, problem, longer(None)) from error
            except RayError as error:
                # If one of Ray's own processes has ended, that is the cause, and is raised instead.
                self._services.check()
                self.failures.check()
                problem = f"its process did not start: {_gist(error)}"
                raise WorkerError(info.group, info.rank, "__init__", problem, remote_traceback=str(error)) from error
            pids.append(pid)
            rendezvous = rendezvous or place
        return pids, rendezvous

    def _end(self, error: RLinfError) -> None:
        """The run is over: nobody waits any longer, and after a moment nobody is left."""
        reason = f"{error.place}: {error.problem}"
        if isinstance(error, WorkerError):
            process = self._processes.get(address(error.group, error.rank))
            died = process is not None and process.gone
            reason = f"{error.group}[{error.rank}] died" if died else error.place
        self._untraced.close(reason)
        timer = threading.Timer(FAREWELL_S, self._clear)
        timer.daemon = True
        timer.start()

    def _clear(self) -> None:
        if not self._stopping:
            for process in list(self._processes.values()):
                process.end()

    def _broken(self, name: str, pid: int, how: str) -> None:
        """One of Ray's own processes has ended, and with it, sooner or later, everything."""
        if not self._stopping:
            remedy = f"Ray's logs are in {self._logs}."
            self.failures.end(ClusterError(f"Ray's {name}, pid {pid}", f"{how}; without it no worker can go on", remedy))

    def _lost(self, host: str, pid: int) -> bool:
        """A process has failed; what comes of it is settled in a thread of its own."""
        process = self._processes.get(host)
        known = None if process is None else process.incarnations.get(pid)
        if process is None or known is None or self._stopping:
            return False

        def handle_exit(incarnation: int = known) -> None:
            process.handle_exit(incarnation)
            # `DriverTransport` expects its return from when it was lost.
            self._untraced.directory.settle(host)

        threading.Thread(target=handle_exit, name="rlinf-exit", daemon=True).start()
        return True

    def _stopped(self, host: str, pid: int, seconds: float) -> None:
        """A process, or a child of one, has been stopped for too long: it is taken for failed."""
        # The address of a child is that of its worker and more: `rollout.1:3`.
        while host not in self._processes and (end := max(host.rfind("."), host.rfind(":"))) > 0:
            host = host[:end]
        process = self._processes.get(host)
        if process is not None and not self._stopping:
            how = f"the process died (killed, as pid {pid} was stopped, state T, for {seconds:.0f} s; see cluster.stopped_grace_s)"
            process.kill(how)

    def _logged(self, host: str, level: int, message: str) -> None:
        """A worker logged something."""
        process = self._processes.get(host)
        if process is not None:
            process.tail.add(f"{logging.getLevelName(level)}: {message}")
        relay(host, level, message)


def _gist(error: RayError) -> str:
    """The line of Ray's message that says what happened: the last one of an exception in the process, else the first."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return (lines[-1] if isinstance(error, ActorDiedError) and "creation task" in lines[0] else lines[0]) if lines else repr(error)
