"""`Inventory`: what a cluster has to place workers on. It knows nothing of Ray, and can be written by hand.

Inventory(nodes=[Node(rank=r, cores=64, accelerators=8, virtual=False) for r in range(4)],
groups={"train": NodeGroup(label="train", nodes=(2, 3))})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlinf.core.errors import ConfigError, PlacementError, did_you_mean
from rlinf.scheduler.hardware.node import ACCELERATOR, NOUNS, Device, Node, describe_nodes
from rlinf.scheduler.node_groups import CLUSTER, NODE

Labels = str | Sequence[str] | None
"""One or several node groups: `a`, `a,b`, `["a", "b"]`; None is `cluster`."""


class Resource(NamedTuple):
    """What one unit of a placement is: a piece of hardware, or a node."""

    node: int
    type: str
    """The hardware type; "" for the node itself."""
    local: int
    """Which one on its node; 0 for the node itself."""
    rank: int
    """Its number among those of its type in the whole cluster; a node's is its rank."""
    group: str
    """The node group that it was found through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes under a label, checked."""

    label: str
    nodes: tuple[int, ...]
    """Their ranks, ascending."""
    hardware_type: str | None = None
    """What a resource is; None takes the accelerators of its nodes, or the nodes if none has one."""
    ignore_hardware: bool = False
    """A resource is a node, whatever it has."""
    env_vars: Mapping[int, Mapping[str, str]] = field(default_factory=dict[int, Mapping[str, str]])
    """Node → the environment variables of its workers."""
    interpreters: Mapping[int, str] = field(default_factory=dict[int, str])
    """Node → the interpreter of its workers; the driver's for a node that is not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The resources of some node groups, numbered one after another."""

    kind: str
    """What one is called: `accelerator`, `node`, `Franka`."""
    owner: str
    """Whose they are, for messages: `the cluster`, `node group 'train'`."""
    labels: tuple[str, ...]
    resources: tuple[Resource, ...]

    @property
    def on_nodes(self) -> bool:
        """A resource is a node."""
        return self.kind == NODE

    def describe(self) -> str:
        """How many there are: `the cluster has 8 accelerators (0-7)`."""
        count = len(self.resources)
        if count == 1:
            return f"{self.owner} has 1 {self.kind} (0)"
        return f"{self.owner} has {count} {self.kind}s (0-{count - 1})" if count else f"{self.owner} has no {self.kind}"


class Inventory:
    """The nodes of a cluster and its groups of nodes.

    Args:
        nodes: in order of their ranks, which count up from 0.
        groups: label → group; `cluster` and `node` always exist.

    Raises:
        ConfigError: a rank is missing, or a group names a node that is not there.
    """

    def __init__(self, nodes: Sequence[Node], groups: Mapping[str, NodeGroup] | None = None) -> None:
        self.nodes = tuple(nodes)
        ranks = [node.rank for node in self.nodes]
        if not ranks or ranks != list(range(len(ranks))):
            raise ConfigError("nodes", f"expected the ranks 0, 1, 2, …, found {ranks[:8]}", "Give each node its rank.")
        everywhere = tuple(ranks)
        self.groups: dict[str, NodeGroup] = {
            CLUSTER: NodeGroup(label=CLUSTER, nodes=everywhere),
            NODE: NodeGroup(label=NODE, nodes=everywhere, ignore_hardware=True),
            **(groups or {}),
        }
        for group in self.groups.values():
            # Nodes ascend, so that the first and the last tell of all.
            if not group.nodes or group.nodes[0] < 0 or group.nodes[-1] >= len(ranks):
                raise ConfigError(f"node group '{group.label}'", f"expected nodes of 0-{len(ranks) - 1}, found {list(group.nodes)}")
        self._pools: dict[tuple[tuple[str, ...], bool], Pool] = {}
        self._firsts: dict[str, list[int]] = {}

    @classmethod
    def of(cls, cluster: Node | Inventory) -> Inventory:
        """An inventory, made of one node if need be."""
        return cluster if isinstance(cluster, Inventory) else cls([cluster])

    @property
    def accelerators(self) -> int:
        """How many accelerators a placement can name."""
        return sum(node.accelerators for node in self.nodes)

    @property
    def accelerator_ranks(self) -> list[list[int]]:
        """The global ranks of each node's accelerators."""
        firsts = self.first_ranks(ACCELERATOR)
        return [list(range(firsts[node.rank], firsts[node.rank] + node.accelerators)) for node in self.nodes]

    def describe(self) -> str:
        """One line for a person."""
        return describe_nodes(self.nodes)

    def group(self, label: str, *, place: str) -> NodeGroup:
        """A node group.

        Raises:
            PlacementError: there is none of that label.
        """
        if label not in self.groups:
            raise PlacementError(place, f"no node group '{label}'", did_you_mean(label, list(self.groups), label="The cluster has"))
        return self.groups[label]

    def pool(self, labels: Labels = None, *, place: str, on_nodes: bool = False) -> Pool:
        """What a placement in these groups can name.

        Args:
            labels: one or several node groups; their resources are numbered in the order in which they are written.
            place: the dotted path of `labels`, for messages.
            on_nodes: the nodes themselves, whatever they have.

        Raises:
            PlacementError: a group does not exist or is named twice, or two of them share a resource.
        """
        names = label_names(labels, place=place)
        key = (names, on_nodes)
        if key not in self._pools:
            self._pools[key] = self._fill(names, on_nodes, place)
        return self._pools[key]

    def first_ranks(self, hardware_type: str) -> list[int]:
        """The cluster-wide number of each node's first piece of a type."""
        if hardware_type not in self._firsts:
            firsts: list[int] = []
            total = 0
            for node in self.nodes:
                firsts.append(total)
                total += node.count(hardware_type)
            self._firsts[hardware_type] = firsts
        return self._firsts[hardware_type]

    def device(self, resource: Resource) -> Device:
        """The piece of hardware that a resource is."""
        return self.nodes[resource.node].device(resource.type, resource.local)

    def type_of(self, group: NodeGroup) -> str | None:
        """What a resource of a group is: a hardware type, or None for the node itself."""
        if group.ignore_hardware:
            return None
        if group.hardware_type is not None:
            return group.hardware_type
        return ACCELERATOR if any(self.nodes[rank].accelerators for rank in group.nodes) else None

    def _fill(self, names: tuple[str, ...], on_nodes: bool, place: str) -> Pool:
        groups = [self.group(name, place=place) for name in names]
        types = [self.type_of(group) for group in groups]
        # If one of the groups counts nodes, all do: the ranks of a placement number one kind of thing.
        plain = on_nodes or None in types
        found: list[Resource] = []
        for group, kind in zip(groups, types, strict=True):
            found.extend(self._nodes_of(group) if plain or kind is None else self._hardware_of(group, kind))
        if len(groups) > 1:
            self._check_shared(found, place)
        return Pool(kind=NODE if plain else self._noun(types), owner=_owner(names), labels=names, resources=tuple(found))

    def _nodes_of(self, group: NodeGroup) -> list[Resource]:
        return [Resource(rank, "", 0, rank, group.label) for rank in group.nodes]

    def _hardware_of(self, group: NodeGroup, kind: str) -> list[Resource]:
        # One name whatever the type, so that an accelerator of two groups is seen to be the same one.
        name = ACCELERATOR if self._is_accelerator(kind) else kind
        firsts = self.first_ranks(name)
        return [
            Resource(rank, name, index, firsts[rank] + index, group.label)
            for rank in group.nodes
            for index in range(self.nodes[rank].count(kind))
        ]

    def _is_accelerator(self, kind: str) -> bool:
        return kind == ACCELERATOR or any(node.accelerators and node.accelerator_type == kind for node in self.nodes)

    def _noun(self, types: Sequence[str | None]) -> str:
        """What one of these is called."""
        kinds = {"accelerator" if kind in NOUNS or self._is_accelerator(kind or "") else kind or "" for kind in types}
        return kinds.pop() if len(kinds) == 1 else "resource"

    def _check_shared(self, found: Sequence[Resource], place: str) -> None:
        owners: dict[tuple[str, int], str] = {}
        for resource in found:
            held = owners.setdefault((resource.type, resource.rank), resource.group)
            if held != resource.group:
                what = f"{resource.type or 'node'} {resource.rank}".replace(ACCELERATOR, "accelerator")
                problem = f"the node groups '{held}' and '{resource.group}' share {what}"
                raise PlacementError(place, problem, "Name groups that have nothing in common, or one of them.")


def label_names(labels: Labels, *, place: str) -> tuple[str, ...]:
    """The labels, one by one.

    Raises:
        PlacementError: one is empty, is no text, or is named twice.
    """
    written = [CLUSTER] if labels is None else labels.split(",") if isinstance(labels, str) else list(labels)
    names: list[str] = []
    for label in written:
        name = label.strip() if isinstance(label, str) else ""
        if not name:
            raise PlacementError(place, f"expected labels of node groups, found {labels!r}", 'Write "a", "a,b" or [a, b].')
        if name in names:
            raise PlacementError(place, f"node group '{name}' is named twice", "Name each group once.")
        names.append(name)
    if not names:
        raise PlacementError(place, "names no node group", "Leave it out for the whole cluster.")
    return tuple(names)


def _owner(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return "the cluster" if names[0] in (CLUSTER, NODE) else f"node group '{names[0]}'"
    return f"the node groups {', '.join(names)} together"
