"""`Cluster`: where worker groups run."""

from __future__ import annotations

import atexit
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from rlinf.core.cluster.handover import HandoverPolicy
from rlinf.core.errors import ClusterError, ConfigError, RLinfError, UnknownName, did_you_mean
from rlinf.core.process import free_port
from rlinf.core.protocols import GroupSpec
from rlinf.core.worker import Worker, WorkerGroupSpec
from rlinf.scheduler.backends.interface import Backend
from rlinf.scheduler.backends.local.backend import LocalBackend
from rlinf.scheduler.compat import answers_of_cluster
from rlinf.scheduler.config import ClusterConfig, read_cluster
from rlinf.scheduler.hardware import Inventory, Node, NodeGroup, take_inventory
from rlinf.scheduler.machine import this_node
from rlinf.scheduler.membership import NodeInfo
from rlinf.scheduler.newest import NEWEST
from rlinf.scheduler.node_groups import CLUSTER
from rlinf.scheduler.placement import HybridComponentPlacement, PlacementStrategy
from rlinf.scheduler.transport.channel import Channel
from rlinf.scheduler.transport.channel_registry import Site
from rlinf.scheduler.transport.transport import DRIVER, Transport, address
from rlinf.scheduler.watch.graph import WaitGraph
from rlinf.scheduler.workers.group import WorkerGroup
from rlinf.scheduler.workers.group_registry import not_launched
from rlinf.scheduler.workers.planning import LaunchPlan, plan_launch
from rlinf.scheduler.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from rlinf.scheduler.backends.ray._nodes import Nodes

_LOG = logging.getLogger("rlinf.scheduler")


@answers_of_cluster
class Cluster:
    """Starts worker groups, and carries what they say to each other. A context manager; ends what it started, nothing else.

    Making one checks its configuration and its placement, and starts nothing: Ray starts with the first group or channel. But if
    the placement depends on nodes that are not this one (`num_nodes` other than 1, without `virtual_accelerators`), it joins their
    Ray, and waits for them, at once.

    Args:
        num_nodes: how many machines; overrides the configuration.
        cluster_cfg: the `cluster` section of a run's configuration, plain containers; see `ClusterConfig`.
        distributed_log_dir: where the workers' logs go; overrides `log_dir` of the configuration.

    Raises:
        ConfigError: the section has a fault; raised before anything is started, as is `PlacementError`. Or there is no Ray to join,
            or the ranks of its nodes contradict each other.
        DeadlineExceeded: not all nodes came; the message says who did.
    """

    def __init__(
        self,
        num_nodes: int | None = None,
        cluster_cfg: Mapping[str, Any] | None = None,
        distributed_log_dir: str | None = None,
    ) -> None:
        given = {"num_nodes": num_nodes, "log_dir": distributed_log_dir}
        if not isinstance(cast("object", cluster_cfg), Mapping | None):
            raise ConfigError("cluster", f"expected a section, found {cluster_cfg!r}", 'Write it as {"backend": "local"}.')
        self._config = read_cluster({**(cluster_cfg or {}), **{key: value for key, value in given.items() if value is not None}})
        self._run = secrets.token_hex(8)
        self._groups: dict[str, WorkerGroup[Any]] = {}
        self._nodes: Nodes | None = None
        self._backend: Backend | None = None
        self._ended = self._started_again = False
        try:
            self._inventory = self._take_inventory()
            told = ""
            if self._config.component_placement == "auto":
                # Only here, as it is of no use to a cluster whose placement is written.
                from rlinf.scheduler.planner.recipes import plan_placement

                self._config, told = plan_placement(self._config, self._inventory)
            self._placement = HybridComponentPlacement(None, self, told=told)
            self._placement.check(simulated=self._config.backend == "local")
        except BaseException:
            # The nodes may have been joined before the fault was found.
            self.shutdown()
            raise
        # In place: other modules have imported the list itself.
        NEWEST[:] = [self]

    @property
    def config(self) -> ClusterConfig:
        """The configuration, validated."""
        return self._config

    @property
    def placement(self) -> HybridComponentPlacement:
        """Where `cluster.component_placement` says that each component goes."""
        return self._placement

    @property
    def node(self) -> Node:
        """The first machine that the placement is for."""
        return self._inventory.nodes[0]

    @property
    def inventory(self) -> Inventory:
        """All that the placement is for: nodes, hardware, node groups."""
        return self._inventory

    @property
    def num_nodes(self) -> int:
        """How many machines."""
        return len(self._inventory.nodes)

    @property
    def num_accelerators(self) -> int:
        """How many accelerators a placement can name."""
        return self._inventory.accelerators

    @property
    def accelerator_ranks(self) -> list[list[int]]:
        """The cluster-wide ranks of each node's accelerators."""
        return self._inventory.accelerator_ranks

    def get_node_info(self, node_rank: int) -> NodeInfo:
        """What a node is. Joins the Ray of several nodes if that has not been done yet.

        Raises:
            UnknownName: there is no such node.
        """
        if not 0 <= node_rank < self.num_nodes:
            raise UnknownName("get_node_info", f"no node {node_rank}", f"Nodes: 0-{self.num_nodes - 1}.")
        node = self._inventory.nodes[node_rank]
        of_ray = self._nodes is not None or (self._config.backend == "ray" and self.num_nodes > 1)
        info = self._joined().infos[node_rank] if of_ray else this_node(self._config, node_rank)
        return replace(info, hardware=node, num_cpus=node.cores)

    def get_node_ip(self, node_rank: int) -> str:
        """A node's address, that of the loopback interface if there is one node; raises `UnknownName` if it is not there."""
        return self.get_node_info(node_rank).node_ip

    def get_node_group(self, label: str = CLUSTER) -> NodeGroup:
        """A node group.

        Raises:
            UnknownName: there is none of that label.
        """
        if label not in self._inventory.groups:
            hint = did_you_mean(label, list(self._inventory.groups), label="The cluster has")
            raise UnknownName("get_node_group", f"no node group '{label}'", hint)
        return self._inventory.groups[label]

    @staticmethod
    def find_free_port(max_port_num: int = 65535) -> int:
        """A TCP port of this machine up to `max_port_num` that nobody uses now; raises `ConfigError` if there is none."""
        return free_port(max_port_num=max_port_num)

    def handover_policy(self) -> HandoverPolicy | None:
        """Who decides which work moves between the workers of a group, by `cluster.auto_scheduler`; None for nobody."""
        return self._config.auto_scheduler.work()

    def describe(self) -> str:
        """What the cluster has, and where each component goes."""
        return f"{self._config.backend} cluster: {self._placement.describe()}"

    def launch(
        self,
        spec: GroupSpec[Any],
        *,
        name: str,
        placement_strategy: PlacementStrategy | None = None,
        supervisor: Supervisor | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> WorkerGroup[Any]:
        """Starts a worker group, and returns once every rank is constructed.

        Args:
            spec: what `Worker.create_group(…)` returned.
            name: the group's name, unique in this cluster.
            placement_strategy: which devices each rank gets; by default one process on each accelerator, or without one on node 0.
            supervisor: what happens when a process of the group fails, or the fields of it; by default that ends the run.
            options: see `LaunchOptions`.

        Raises:
            PlacementError: the cluster lacks what the strategy names.
            WorkerError: a constructor failed (its method is `__init__`); what this launch started is ended.
        """
        place = f"launch of '{name}'"
        planned = self._plan(spec.worker, name, placement_strategy=placement_strategy, supervisor=supervisor, **options)
        try:
            processes = self._running(place).launch(spec, name, *planned)
        except ClusterError as error:
            self._start_again(error)
            processes = self._running(place).launch(spec, name, *planned)
        if (recording := self._running(place).recording) is not None:
            recording.placed(name, [process.devices for process in planned[0]])
        group = self._groups[name] = WorkerGroup(
            name,
            spec.worker,
            processes,
            self._config.timeout_s,
            cluster=self,
            cooperative=self._running(place).cooperative,
            end=lambda: self._end(name, group),
        )
        return group

    def prepare(self, worker: type[Worker], *, name: str, **asked: Any) -> None:
        """Starts the processes of a group that is launched later, so that several groups start and import at the same time.

        Returns at once. A launch of that name takes them over if it asks for the same, or else starts others; it tells what failed.

        Args:
            worker: the class of the group.
            name: as for `launch`.
            asked: the other arguments of `launch`, which says what they raise.
        """
        planned = self._plan(worker, name, **asked)
        # The launch meets it again, and may then start another Ray.
        with suppress(ClusterError):
            self._running(f"preparation of '{name}'").prepare(WorkerGroupSpec(worker), name, *planned)

    def _plan(self, worker: type[Any], name: str, **asked: Any) -> LaunchPlan:
        self._running(f"launch of '{name}'")
        return plan_launch(worker, name, self._inventory, self._groups, **asked)

    def group(self, name: str) -> WorkerGroup[Any]:
        """A group that was launched before.

        Raises:
            UnknownName: there is none of that name.
        """
        if name not in self._groups:
            raise not_launched(name, self._groups)
        return self._groups[name]

    def _end(self, name: str, group: WorkerGroup[Any]) -> None:
        """Ends a group, unless it has ended, or another one has its name."""
        if self._backend is not None and self._groups.get(name) is group:
            del self._groups[name]
            self._backend.end(name)

    def create_channel(
        self,
        name: str,
        *,
        maxsize: int = 0,
        near: str | None = None,
        distributed: bool = False,
        node_rank: int | None = None,
        local: bool = False,
    ) -> Channel:
        """A new channel.

        Args:
            name: unique in this cluster.
            maxsize: how many items each key holds before a put blocks; 0 for any number.
            near: the group whose rank 0 hosts the channel, best its consumer; by default the driver's process hosts it.
            distributed: each key is hosted by the process that uses it first.
            node_rank: a process of this node hosts it.
            local: the driver's process hosts it, as it does by default.

        Raises:
            DuplicateName: there is a channel of that name.
            UnknownName: there is no group `near`.
            PlacementError: no process of the cluster is on the node.
        """
        site = Site(near=near, distributed=distributed, node_rank=node_rank, local=local)
        return Channel.create_at(self._running(f"channel '{name}'").transport, name, maxsize, site)

    def connect_channel(self, name: str, *, timeout: float | None = None) -> Channel:
        """The channel of a name, wherever it was created; see `Channel.connect`."""
        return Channel.connect_at(self._running(f"channel '{name}'").transport, name, timeout)

    @property
    def transport(self) -> Transport:
        """The driver's access to queues, of which channels are made."""
        return self._running("transport").transport

    def on_failure(self, callback: Callable[[RLinfError], None]) -> None:
        """Calls a function with each failure of a worker as soon as it is known, whatever the driver does then.

        It runs in a thread of the cluster, must be brief, and must not wait for a worker. A failure that is the mere consequence of
        another is not reported.
        """
        self._running("on_failure").failures.listen(callback)

    def wait_graph(self) -> WaitGraph:
        """What every worker and the driver do at this moment, and who waits for whom; `print` it. Any thread may ask."""
        return self._running("wait_graph").wait_graph()

    def stacks(self) -> dict[str, str]:
        """The Python stacks of the driver and of each worker, as text: `rollout[1]` → its threads.

        A process whose Python does not answer, because native code holds its lock, is looked at from outside: by py-spy if that is
        installed, else by a signal. One that is stopped is named as such.
        """
        found = self._running("stacks").stacks()
        return {who: "\n".join(stack.describe() for stack in stacks) for who, stacks in found.items()}

    def write_trace(self, path: str | Path | None = None) -> Path:
        """Writes the flow trace of the run so far; `shutdown` writes the whole one by itself.

        Args:
            path: the file; by default that of `cluster.tracer.path`.

        Raises:
            ConfigError: nothing is recorded, as `cluster.tracer.enabled` is false.
        """
        recording = self._running("write_trace").recording
        if recording is None:
            raise ConfigError("cluster.tracer.enabled", "it is false, so that nothing was recorded", "Set it to true.")
        return recording.write(path)

    def shutdown(self) -> None:
        """Ends all workers, and Ray if this cluster started it. A second call does nothing."""
        self._ended = True
        if [self] == NEWEST:
            NEWEST.clear()
        atexit.unregister(self.shutdown)
        self._stop()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.shutdown()

    def _take_inventory(self) -> Inventory:
        """What there is to place on; joins the nodes if only they know."""
        config = self._config
        if config.backend == "ray" and config.num_nodes != 1 and (config.virtual_accelerators is None or config.num_nodes == 0):
            infos = self._joined().infos
            self._config = config = replace(config, num_nodes=len(infos))
            if config.virtual_accelerators is None:
                return take_inventory(config, self._joined().found)
        return take_inventory(config)

    def _hosts(self) -> dict[str, int]:
        """The processes that can host channels, and the ranks of their nodes."""
        nodes = self._nodes
        here = next((info.node_rank for info in nodes.infos if info.ray_id == nodes.here), 0) if nodes else 0
        workers = [info for group in self._groups.values() for info in group.worker_infos]
        return {DRIVER: here} | {address(info.group, info.rank): info.node for info in workers}

    def _joined(self) -> Nodes:
        """The nodes of the Ray; connects to it the first time."""
        if self._ended:
            raise RLinfError("cluster", "it was shut down", "Make a new Cluster.")
        if self._nodes is None:
            from rlinf.scheduler.backends.ray._nodes import Nodes

            atexit.register(self.shutdown)
            self._nodes = Nodes(self._config, self._run)
        return self._nodes

    def _start(self) -> Backend:
        # Before anything starts, so that a start that is interrupted leaves nothing.
        atexit.register(self.shutdown)
        self._placement.keep(self._config.log_dir)
        if self._config.backend == "local":
            return LocalBackend(self._config, self._run)
        # Imported here, so that `backend: local` does not import Ray.
        from rlinf.scheduler.backends.ray._backend import RayBackend

        return RayBackend(self._config, self._inventory, self._run, self._joined())

    def _start_again(self, error: ClusterError) -> None:
        """Gives up a Ray of our own that ended under the first launch, as it may on a loaded machine; raises any other error."""
        backend = self._backend
        if backend is None or self._groups or self._started_again or not backend.replaceable:
            raise error
        _LOG.warning("%s; starting Ray once more", error.problem)
        self._started_again = True
        self._stop()

    def _stop(self) -> None:
        # Taken away first: a second call finds nothing to stop.
        backend, self._backend = self._backend, None
        nodes, self._nodes = self._nodes, None
        try:
            if backend is not None:
                backend.stop()
        finally:
            if nodes is not None:
                nodes.end()

    def _running(self, place: str) -> Backend:
        if self._ended:
            raise RLinfError(place, "the cluster was shut down", "Make a new Cluster.")
        if self._backend is None:
            self._backend = self._start()
            self._backend.channels.hosts = self._hosts
        return self._backend
