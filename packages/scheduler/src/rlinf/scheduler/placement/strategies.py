"""Placement strategies: which hardware and how many CPU threads each process of a group gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

from rlinf.core.errors import PlacementError
from rlinf.scheduler.hardware.inventory import Inventory, Labels, Pool, Resource
from rlinf.scheduler.hardware.node import ACCELERATOR, Device, Node
from rlinf.scheduler.node_groups import CLUSTER
from rlinf.scheduler.ranks import format_ranks

_THREADS: Final = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """Where one process runs."""

    rank: int
    devices: tuple[int, ...]
    """Cluster-wide ranks of its accelerators, ascending; empty if it was placed on a node or a robot."""
    threads: int
    """CPU threads for its computations."""
    node: int = 0
    """The rank of its node."""
    hardware_type: str = ""
    """What it was placed on: `Accelerator`, a type of robot, or "" for the node itself."""
    local: tuple[int, ...] = ()
    """The indices of its hardware on its node, ascending."""
    hardware: tuple[Device, ...] = ()
    """Its hardware, in the same order."""
    node_group: str = CLUSTER
    """The node group that it was placed through, whose environment it gets."""
    accelerator_type: str = ""
    """`NV_GPU`, …; "" if it was placed on no accelerator."""


@runtime_checkable
class PlacementStrategy(Protocol):
    """Plans the processes of one group."""

    def plan(self, cluster: Node | Inventory, *, place: str) -> tuple[ProcessPlan, ...]:
        """The processes by rank.

        Args:
            cluster: what there is; a node alone is a cluster of one.
            place: what is placed, for messages.

        Raises:
            PlacementError: the cluster lacks what the strategy names.
        """
        ...


class PackedPlacementStrategy:
    """Fills the accelerators `start` … `end` (inclusive) from below.

    Args:
        start_hardware_rank: the first accelerator.
        end_hardware_rank: the last accelerator.
        num_hardware_per_process: accelerators of each process.
        stride: distance of the accelerators of one process; with 2 each and stride 2, (0, 2) and (1, 3).
        node_group: the node groups whose hardware the ranks number; None is the whole cluster.
    """

    def __init__(
        self,
        start_hardware_rank: int,
        end_hardware_rank: int,
        num_hardware_per_process: int = 1,
        stride: int = 1,
        node_group: Labels = None,
    ) -> None:
        self.start = start_hardware_rank
        self.end = end_hardware_rank
        self.each = num_hardware_per_process
        self.stride = stride
        self.node_group = node_group

    def plan(self, cluster: Node | Inventory, *, place: str) -> tuple[ProcessPlan, ...]:
        count, block = self.end - self.start + 1, self.each * self.stride
        if count < 1:
            raise PlacementError(place, f"the last accelerator, {self.end}, comes before the first, {self.start}", "Swap them.")
        if min(self.each, self.stride) < 1 or count % block:
            problem = f"{count} accelerators ({self.start}-{self.end}) can't be packed by {self.each} × stride {self.stride}"
            raise PlacementError(place, problem, "Make the number of accelerators a multiple of the product.")
        pool = _hardware_pool(cluster, self.node_group, (self.start, self.end), place)
        if self.start < 0 or self.end >= len(pool.resources):
            raise PlacementError(place, f"accelerators {self.start}-{self.end} were named, but {pool.describe()}", "Name fewer.")
        processes = [
            [base + first + self.stride * i for i in range(self.each)]
            for base in range(self.start, self.end + 1, block)
            for first in range(self.stride)
        ]
        return FlexiblePlacementStrategy(processes, self.node_group).plan(cluster, place=place)


class FlexiblePlacementStrategy:
    """Names the accelerators of each process.

    Args:
        hardware_ranks_list: one list for each process; processes are ranked by their first accelerator.
        node_group_label: the node groups whose hardware the ranks number; None is the whole cluster.
    """

    def __init__(self, hardware_ranks_list: Sequence[Sequence[int]], node_group_label: Labels = None) -> None:
        # By a slice, because a list may be empty, which `plan` refuses with a message.
        self.processes = sorted((tuple(sorted(ranks)) for ranks in hardware_ranks_list), key=lambda ranks: ranks[:1])
        self.node_group_label = node_group_label

    def plan(self, cluster: Node | Inventory, *, place: str) -> tuple[ProcessPlan, ...]:
        if not self.processes:
            raise PlacementError(place, "no process was placed", "Name at least one accelerator.")
        inventory = Inventory.of(cluster)
        pool = _hardware_pool(inventory, self.node_group_label, self.processes[0], place)
        count = len(pool.resources)
        for ranks in self.processes:
            if len(ranks) != 1 and (not ranks or len(set(ranks)) != len(ranks)):
                raise PlacementError(place, f"expected different accelerators for a process, found {list(ranks)}")
            if ranks[0] < 0 or ranks[-1] >= count:
                raise PlacementError(place, f"accelerators {list(ranks)} were named, but {pool.describe()}", "Name others.")
        chosen = [tuple([pool.resources[rank] for rank in ranks]) for ranks in self.processes]
        for ranks, resources in zip(self.processes, chosen, strict=True):
            if len(ranks) > 1 and len({resource[:2] for resource in resources}) > 1:
                problem = f"{pool.kind}s {format_ranks(ranks)} of one process are on several nodes, or of several types"
                raise PlacementError(place, problem, "A process runs on one node, with one type of hardware.")
        load = Counter(resources[0].node for resources in chosen)
        return tuple(_on_hardware(inventory, rank, found, load[found[0].node]) for rank, found in enumerate(chosen))


class NodePlacementStrategy:
    """One process for each listed node; a node may be listed several times. Each process sees all accelerators.

    Args:
        node_ranks: the nodes.
        node_group_label: the node groups whose nodes the ranks number; None is the whole cluster.
    """

    def __init__(self, node_ranks: Sequence[int], node_group_label: Labels = None) -> None:
        self.node_ranks = sorted(node_ranks)
        self.node_group_label = node_group_label

    def plan(self, cluster: Node | Inventory, *, place: str) -> tuple[ProcessPlan, ...]:
        inventory = Inventory.of(cluster)
        pool = inventory.pool(self.node_group_label, place=place, on_nodes=True)
        if not self.node_ranks or self.node_ranks[0] < 0 or self.node_ranks[-1] >= len(pool.resources):
            named = sorted(set(self.node_ranks))
            raise PlacementError(place, f"nodes {named} were named, but {pool.describe()}", "Name nodes that are there.")
        chosen = [pool.resources[rank] for rank in self.node_ranks]
        load = Counter(resource.node for resource in chosen)
        return tuple(
            ProcessPlan(
                rank=rank,
                devices=(),
                threads=max(1, inventory.nodes[resource.node].cores // load[resource.node]),
                node=resource.node,
                node_group=resource.group,
            )
            for rank, resource in enumerate(chosen)
        )


class WithinCores:
    """Plans as another strategy, with threads that leave cores for all processes of the run that a node has.

    A group of processes alone knows of no others, and on a node with accelerators of its own each would plan the whole share of its
    devices: six on one accelerator six times all cores. Elsewhere threads stay as they are: what they add up to decides roundings.
    `OMP_NUM_THREADS` among the variables of a node group stands above both.

    Args:
        strategy: where the processes go.
        processes: how many the whole run has on each node.
    """

    def __init__(self, strategy: PlacementStrategy, processes: Mapping[int, int]) -> None:
        self.strategy = strategy
        self.processes = processes

    def plan(self, cluster: Node | Inventory, *, place: str) -> tuple[ProcessPlan, ...]:
        inventory = Inventory.of(cluster)
        return tuple(replace(plan, threads=self._threads(inventory, plan)) for plan in self.strategy.plan(cluster, place=place))

    def _threads(self, inventory: Inventory, plan: ProcessPlan) -> int:
        node, said = inventory.nodes[plan.node], inventory.groups[plan.node_group].env_vars.get(plan.node, {}).get(_THREADS)
        if said is not None:
            if not said.isdecimal() or not int(said):
                problem = f"{_THREADS}: expected a whole number, at least 1, found {said!r}"
                raise PlacementError(f"cluster.node_groups: {plan.node_group}", problem, "Mend it, or leave it out.")
            return int(said)
        if node.virtual or not node.accelerators:
            return plan.threads
        return min(plan.threads, max(1, node.cores // self.processes[plan.node]))


def _hardware_pool(cluster: Node | Inventory, labels: Labels, ranks: Sequence[int], place: str) -> Pool:
    pool = Inventory.of(cluster).pool(labels, place=place)
    if pool.on_nodes:
        problem = f"accelerators {list(ranks)} were named, but {pool.owner} has none"
        raise PlacementError(place, problem, "Place on nodes: NodePlacementStrategy.")
    return pool


def _on_hardware(inventory: Inventory, rank: int, resources: tuple[Resource, ...], load: int) -> ProcessPlan:
    """Args: load: how many processes of the component are on the node."""
    first = resources[0]
    node = inventory.nodes[first.node]
    accelerated = first.type == ACCELERATOR
    return ProcessPlan(
        rank=rank,
        devices=tuple([resource.rank for resource in resources]) if accelerated else (),
        threads=_threads(node, len(resources)) if accelerated else max(1, node.cores // load),
        node=first.node,
        hardware_type=first.type,
        local=tuple([resource.local for resource in resources]),
        hardware=tuple([inventory.device(resource) for resource in resources]),
        node_group=first.group,
        accelerator_type=node.accelerator_type if accelerated else "",
    )


def _threads(node: Node, devices: int) -> int:
    """A virtual accelerator is one core; real ones share the cores out."""
    return devices if node.virtual else max(1, node.cores * devices // node.accelerators)


def everywhere(inventory: Inventory) -> PlacementStrategy:
    """One process on each accelerator, or one on the first node."""
    count = inventory.accelerators
    return PackedPlacementStrategy(0, count - 1) if count else NodePlacementStrategy([0])
