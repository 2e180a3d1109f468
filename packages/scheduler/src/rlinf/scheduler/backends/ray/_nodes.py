"""The nodes of a Ray cluster: who has come, what each one is, and whether it is still there."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlinf.scheduler.backends.ray._ray import Session, ray  # isort: skip - sets what Ray reads when it is imported
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlinf.core.errors import ConfigError, DeadlineExceeded, RLinfError, error_text
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware import Node
from rlinf.scheduler.hardware.files import read_text
from rlinf.scheduler.machine import environment_of, informed, look_around, name_of, unhidden
from rlinf.scheduler.membership import JoinedNode, Machine, NodeInfo, absence, choose, complete
from rlinf.scheduler.placement.environment import changes_since, on_top

POLL_S = 0.2
SAY_S = 10.0
"""How often a cluster that waits for nodes says so."""
ANSWER_S = 60.0
"""How long beyond the deadline a node that has come may take to say what it is."""
KNOCK_S = 2.0
_HEAD = "node:__internal_head__"
_LOG = logging.getLogger("rlinf.scheduler")


class Nodes:
    """A connection to a Ray, and the nodes of the cluster in it.

    Args:
        config: the cluster's section.
        run: keeps the actors of runs apart.

    Raises:
        ConfigError: there is no Ray to join, or the ranks of its nodes contradict each other.
        DeadlineExceeded: not enough nodes came; the message says who did.
    """

    def __init__(self, config: ClusterConfig, run: str) -> None:
        with ExitStack() as started:
            session = Session(config.address, run, config.num_nodes)
            started.callback(session.end)
            self.here: str = ray.get_runtime_context().get_node_id()
            """Ray's name for the node of this process."""
            self.owned = session.started
            """Its Ray is this process's own."""
            self._changes: Mapping[str, str] = {}
            self._infos = self._alone(config) if session.started else self._gathered(config)
            self._ends = started.pop_all()

    @property
    def infos(self) -> tuple[NodeInfo, ...]:
        """All nodes, by rank."""
        return self._infos

    @property
    def found(self) -> tuple[Node, ...]:
        """What each node has, by rank."""
        return tuple(replace(info.hardware, rank=info.node_rank, cores=info.num_cpus) for info in self._infos)

    @property
    def driver_ip(self) -> str | None:
        """The address at which the other nodes reach the driver; None if there are none."""
        if all(info.ray_id == self.here for info in self._infos):
            return None
        return next(arrival.ip for arrival in _arrivals() if arrival.id == self.here)

    def inherited(self, rank: int) -> dict[str, str]:
        """The environment of a node's processes, before its node group adds to it."""
        return {**self._infos[rank].default_env_vars, **self.changes(rank)}

    def changes(self, rank: int) -> dict[str, str]:
        """What of it the node's own Ray does not have."""
        return on_top(self._changes, self._infos[rank].default_env_vars)

    def failure(self, rank: int) -> str:
        """What happened to a node: "" if its Ray still answers. Takes two seconds if it is cut off."""
        info = self._infos[rank]
        try:
            socket.create_connection((info.node_ip, info.ray_port), timeout=KNOCK_S).close()
        except ConnectionRefusedError:
            return f"{info.label} was lost: its Ray has ended"
        except OSError:
            return f"{info.label} is cut off: it does not answer"
        return ""

    def end(self) -> None:
        """Disconnects, and ends what was started."""
        self._ends.close()

    def _alone(self, config: ClusterConfig) -> tuple[NodeInfo, ...]:
        (arrival,) = _arrivals()
        return (_info(0, replace(arrival, machine=look_around(config, arrival.ip)), {}),)

    def _gathered(self, config: ClusterConfig) -> tuple[NodeInfo, ...]:
        awaited = _AwaitedNodes(config, self.here)
        chosen = awaited.wait()
        started = awaited.machine(self.here)
        self._changes = {} if started is None else changes_since(started.environment, os.environ)
        # What Ray was told counts, as by `ray start --num-cpus`, not what the machine has.
        cores = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes()}
        return tuple(_info(rank, arrival, cores) for rank, arrival in enumerate(chosen))


class _AwaitedNodes:
    """Asks each node that comes what it is, until all have come."""

    def __init__(self, config: ClusterConfig, here: str) -> None:
        self._config = config
        self._wanted = config.num_nodes
        self._here = here
        self._asked: dict[str, Any] = {}
        self._machines: dict[str, Machine] = {}
        self._seconds = config.timeout_s if config.join_timeout_s is None else config.join_timeout_s

    def machine(self, node: str) -> Machine | None:
        """What a node has said."""
        return self._machines.get(node)

    def wait(self) -> tuple[JoinedNode, ...]:
        """The nodes of the cluster, by rank."""
        start = said = time.monotonic()
        while True:
            come = self._look()
            if self._here in self._machines and complete(come, self._wanted):
                return self._choose(come)
            now = time.monotonic()
            silent = any(arrival.machine is None for arrival in come)
            if now - start > self._seconds + (ANSWER_S if silent else 0.0):
                remedy = "Run `ray start --address=…` on each node, or raise cluster.join_timeout_s."
                problem = f"waited {self._seconds:g} s in vain: {absence(come, self._wanted)}"
                raise DeadlineExceeded("cluster.num_nodes", problem, remedy)
            if now - said > SAY_S:
                said = now
                _LOG.warning("waiting for nodes: %s", absence(come, self._wanted))
            time.sleep(POLL_S)

    def _choose(self, come: list[JoinedNode]) -> tuple[JoinedNode, ...]:
        answered = [arrival for arrival in come if arrival.machine is not None]
        chosen = choose(answered, self._wanted, grouped=bool(self._config.node_groups))
        used = {arrival.id for arrival in chosen}
        spare = [arrival.label for arrival in _arrivals() if arrival.id not in used]
        if spare:
            _LOG.warning("cluster.num_nodes is %d; not used: %s", self._wanted, ", ".join(spare))
        return chosen

    def _look(self) -> list[JoinedNode]:
        """Who is there, and what they have said so far."""
        come = _arrivals()
        if self._wanted == 1:
            come = [arrival for arrival in come if arrival.id == self._here]
        for arrival in come:
            if arrival.id not in self._machines:
                self._inquire(arrival)
        return [replace(arrival, machine=self._machines.get(arrival.id)) for arrival in come]

    def _inquire(self, arrival: JoinedNode) -> None:
        """Asks a node what it is, or takes its answer if that is there."""
        if arrival.id == self._here and (inherited := _environment_here(arrival.id)):
            # A task would need a process, which imports Ray first.
            self._machines[arrival.id] = look_around(self._config, arrival.ip, inherited)
        elif arrival.id not in self._asked:
            self._asked[arrival.id] = _ask(self._config, arrival)
        # Without waiting: a node that does not answer must not hide the others.
        elif ray.wait([self._asked[arrival.id]], timeout=0)[0]:
            self._take_answer(arrival)

    def _take_answer(self, arrival: JoinedNode) -> None:
        try:
            # It is there already, says `_inquire`.
            self._machines[arrival.id] = ray.get(self._asked[arrival.id])
        except RayError as error:
            # The question to a node that has left fails, too, and says nothing of its packages.
            if any(arrival.id == other.id for other in _arrivals()):
                cause = getattr(error, "cause", None) or error
                problem = f"node {arrival.ip} can't run rlinf-scheduler: {error_text(cause)}"
                raise ConfigError("cluster.num_nodes", problem, "Install the same packages on every node.") from error


def _arrivals() -> list[JoinedNode]:
    """The nodes that Ray takes to be alive."""
    return [
        JoinedNode(id=node["NodeID"], ip=node["NodeManagerAddress"], port=node["NodeManagerPort"], head=_HEAD in node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def _ask(config: ClusterConfig, arrival: JoinedNode) -> Any:
    """The answer to come of a node."""
    remote: Any = ray.remote(_introduce_yourself)
    affinity = NodeAffinitySchedulingStrategy(arrival.id, soft=False)
    # It asks for no core, so that a node whose cores are all taken answers, too.
    return remote.options(num_cpus=0, num_gpus=0, max_retries=0, scheduling_strategy=affinity).remote(config, arrival.ip)


def _environment_here(node: str) -> dict[str, str] | None:
    """The environment of this machine's raylet of a node; None if it can't be read."""
    sockets = [each["RayletSocketName"] for each in ray.nodes() if each["NodeID"] == node]
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if name_of(pid) == "raylet" and any(socket in read_text(folder / "cmdline") for socket in sockets):
            return environment_of(pid)
    return None


def _introduce_yourself(config: ClusterConfig, ip: str) -> Machine:
    """Runs on the node. What its own environment says of devices is what Ray wants a task to see: that of Ray itself counts."""
    inherited = environment_of(os.getppid()) if name_of(os.getppid()) == "raylet" else None
    return look_around(config, ip, inherited or unhidden(os.environ))


def _info(rank: int, arrival: JoinedNode, cores: Mapping[str, int]) -> NodeInfo:
    if arrival.machine is None:
        raise RLinfError(arrival.label, "has not said yet what it has")
    return informed(rank, arrival.ip, arrival.machine, cores=cores.get(arrival.id, 0), ray_id=arrival.id, ray_port=arrival.port)
