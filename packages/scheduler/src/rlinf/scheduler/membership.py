"""Which machines make up a cluster, and their ranks. It knows nothing of Ray.

A rank is what `RLINF_NODE_RANK` said when `ray start` was run on the node: on every node or on none, each rank once. Without it,
the head is node 0, and the others follow by type of accelerator and address. A node alone is node 0, whatever it has.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rlinf.core.errors import ConfigError
from rlinf.core.worker.compat import answers
from rlinf.scheduler.compat import NODE_INFO
from rlinf.scheduler.hardware.node import Node
from rlinf.scheduler.ranks import format_ranks

RANK_VARIABLE = "RLINF_NODE_RANK"
_START = f"Export {RANK_VARIABLE} before `ray start`: 0, 1, 2, … on every node, or nowhere."


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a node says of itself."""

    hostname: str
    memory: int
    """Bytes."""
    interpreter: str
    """Its Python."""
    environment: Mapping[str, str]
    """That in which Ray was started there, which processes inherit."""
    interface: str
    """The network interface that has its address; "" if none has."""
    node: Node
    """Its cores and its hardware; the rank is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedNode:
    """A node that has joined."""

    id: str
    """Ray's name for it."""
    ip: str
    port: int
    """Where its Ray listens."""
    head: bool = False
    machine: Machine | None = None
    """What it said of itself; None if it has not answered yet."""

    @property
    def label(self) -> str:
        """`10.0.0.2 (RLINF_NODE_RANK 1)`."""
        written = self.written
        return self.ip if written is None else f"{self.ip} ({RANK_VARIABLE} {written})"

    @property
    def written(self) -> str | None:
        """What it has as its rank."""
        return None if self.machine is None else self.machine.environment.get(RANK_VARIABLE) or None


@answers(NODE_INFO)
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One node of a cluster."""

    node_rank: int
    node_ip: str
    hostname: str
    num_cpus: int
    """CPU cores that workers may use."""
    memory: int
    """Bytes."""
    python_interpreter_path: str
    """What its workers run with, unless their node group says otherwise."""
    default_env_vars: Mapping[str, str] = field(repr=False)
    """The environment that its workers inherit."""
    hardware: Node
    """Its accelerators and robots."""
    ray_id: str = ""
    """Ray's name for it; "" without Ray."""
    ray_port: int = 0
    """Where its Ray listens."""
    interface: str = ""
    """The network interface that has its address; "" if nobody knows."""

    @property
    def label(self) -> str:
        """`node 1 (10.0.0.2)`."""
        return f"node {self.node_rank} ({self.node_ip})"


def complete(arrivals: Sequence[JoinedNode], wanted: int) -> bool:
    """Whether enough nodes have come and answered.

    Raises:
        ConfigError: whoever else comes, their ranks contradict each other.
    """
    answered = [arrival for arrival in arrivals if arrival.machine is not None]
    ranks = _written_ranks(answered)
    if wanted == 0:
        return len(answered) == len(arrivals) > 0
    return len(answered) >= wanted and (not ranks or wanted == 1 or all(rank in ranks for rank in range(wanted)))


def choose(arrivals: Sequence[JoinedNode], wanted: int, *, grouped: bool) -> tuple[JoinedNode, ...]:
    """The nodes of the cluster, by rank.

    Args:
        arrivals: those that came, all of which have answered.
        wanted: how many; 0 for all.
        grouped: the configuration names nodes by rank, so that ranks must be written.

    Raises:
        ConfigError: the written ranks are not 0, 1, 2, …, or there are none and there must be.
    """
    ranks = _written_ranks(arrivals)
    count = wanted or len(arrivals)
    if ranks and len(arrivals) > 1:
        absent = [rank for rank in range(count) if rank not in ranks]
        if absent:
            have = ", ".join(ranks[rank].label for rank in sorted(ranks))
            raise ConfigError(RANK_VARIABLE, f"no node is {format_ranks(absent)}; found {have}", _START)
        return tuple(ranks[rank] for rank in range(count))
    if grouped and count > 1:
        problem = f"cluster.node_groups names nodes by rank, but the {count} nodes have none"
        raise ConfigError(RANK_VARIABLE, problem, _START)
    return tuple(sorted(arrivals, key=_natural))[:count]


def absence(arrivals: Sequence[JoinedNode], wanted: int) -> str:
    """Who came and who did not, for a person: `2 of 3 nodes came: 10.0.0.1, 10.0.0.2`."""
    ranks = _written_ranks([arrival for arrival in arrivals if arrival.machine is not None])
    silent = [arrival.ip for arrival in arrivals if arrival.machine is None]
    # Shorter texts first, so that 10 comes after 9.
    come = sorted(arrivals, key=lambda arrival: (len(arrival.written or ""), arrival.written or "", _natural(arrival)))
    text = f"{len(arrivals)} of {wanted or len(arrivals)} nodes came: {', '.join(arrival.label for arrival in come) or 'none'}"
    if silent:
        text += f"; no answer from {', '.join(silent)}"
    absent = [rank for rank in range(wanted) if rank not in ranks] if ranks else []
    return text + (f"; missing: {RANK_VARIABLE} {format_ranks(absent)}" if absent else "")


def _written_ranks(arrivals: Iterable[JoinedNode]) -> dict[int, JoinedNode]:
    """Rank → node; empty if no node has one."""
    arrivals = list(arrivals)
    without = [arrival for arrival in arrivals if arrival.written is None]
    if len(without) == len(arrivals):
        return {}
    if without:
        having = ", ".join(arrival.label for arrival in arrivals if arrival.written is not None)
        problem = f"{having} have one, {', '.join(arrival.ip for arrival in without)} have none"
        raise ConfigError(RANK_VARIABLE, problem, _START)
    ranks: dict[int, JoinedNode] = {}
    for arrival in arrivals:
        text = arrival.written or ""
        # `int` would also read ` 1`, `+1` and `1_0`.
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(RANK_VARIABLE, f"expected 0, 1, 2, …, found '{text}' on {arrival.ip}", _START)
        other = ranks.setdefault(int(text), arrival)
        if other is not arrival:
            raise ConfigError(RANK_VARIABLE, f"{other.ip} and {arrival.ip} both are {int(text)}", _START)
    return ranks


def _natural(arrival: JoinedNode) -> tuple[object, ...]:
    """The order of nodes that have no rank. Nodes at one address, which only tests have, follow by port."""
    kind = arrival.machine.node.accelerator_type if arrival.machine is not None else ""
    try:
        # As a number: 10.0.0.10 comes after 10.0.0.9.
        numeric = ipaddress.ip_address(arrival.ip)
        address = (numeric.version, int(numeric), "")
    except ValueError:
        address = (0, 0, arrival.ip)
    return (not arrival.head, kind, address, arrival.port, arrival.id)
