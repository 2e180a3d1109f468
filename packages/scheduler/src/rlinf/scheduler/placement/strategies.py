"""Placement strategies: which accelerators and how many CPU threads each process of a group gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlinf.core.errors import PlacementError
from rlinf.scheduler.hardware import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """Where one process runs."""

    rank: int
    devices: tuple[int, ...]
    """Global ranks of its accelerators, ascending; empty if it was placed on a node."""
    threads: int
    """CPU threads for its computations."""


class PlacementStrategy(Protocol):
    """Plans the processes of one group."""

    def plan(self, node: Node, *, place: str) -> tuple[ProcessPlan, ...]:
        """The processes by rank.

        Args:
            node: the machine.
            place: what is placed, for messages.

        Raises:
            PlacementError: the machine lacks what the strategy names.
        """
        ...


class PackedPlacementStrategy:
    """Fills the accelerators `start` … `end` (inclusive) from below.

    Args:
        start_hardware_rank: the first accelerator.
        end_hardware_rank: the last accelerator.
        num_hardware_per_process: accelerators of each process.
        stride: distance of the accelerators of one process; with 2 each and stride 2, (0, 2) and (1, 3).
        node_group: accepted for symmetry; this version has one node.
    """

    def __init__(
        self,
        start_hardware_rank: int,
        end_hardware_rank: int,
        num_hardware_per_process: int = 1,
        stride: int = 1,
        node_group: str | None = None,
    ) -> None:
        self.start = start_hardware_rank
        self.end = end_hardware_rank
        self.each = num_hardware_per_process
        self.stride = stride
        self.node_group = node_group

    def plan(self, node: Node, *, place: str) -> tuple[ProcessPlan, ...]:
        """See `PlacementStrategy`."""
        count, block = self.end - self.start + 1, self.each * self.stride
        if block < 1 or count < 1 or count % block:
            problem = f"{count} accelerators ({self.start}-{self.end}) can't be packed by {self.each} × stride {self.stride}"
            raise PlacementError(place, problem, "Make the number of accelerators a multiple of the product.")
        processes = [
            [base + first + self.stride * i for i in range(self.each)]
            for base in range(self.start, self.end + 1, block)
            for first in range(self.stride)
        ]
        return FlexiblePlacementStrategy(processes).plan(node, place=place)


class FlexiblePlacementStrategy:
    """Names the accelerators of each process.

    Args:
        hardware_ranks_list: one list for each process; processes are ranked by their first accelerator.
        node_group_label: accepted for symmetry; this version has one node.
    """

    def __init__(self, hardware_ranks_list: Sequence[Sequence[int]], node_group_label: str | None = None) -> None:
        self.processes = sorted((tuple(sorted(ranks)) for ranks in hardware_ranks_list), key=lambda ranks: ranks[:1])
        self.node_group_label = node_group_label

    def plan(self, node: Node, *, place: str) -> tuple[ProcessPlan, ...]:
        """See `PlacementStrategy`."""
        if not self.processes:
            raise PlacementError(place, "no process was placed", "Name at least one accelerator.")
        for devices in self.processes:
            if not devices or len(set(devices)) != len(devices):
                raise PlacementError(place, f"expected different accelerators for a process, found {list(devices)}")
            if devices[0] < 0 or devices[-1] >= node.accelerators:
                raise PlacementError(place, f"accelerators {list(devices)} were named, but there is {node.describe()}")
        return tuple(
            ProcessPlan(rank=rank, devices=devices, threads=_threads(node, devices)) for rank, devices in enumerate(self.processes)
        )


class NodePlacementStrategy:
    """One process for each listed node; a node may be listed several times. Each process sees all accelerators.

    Args:
        node_ranks: the nodes.
        node_group_label: accepted for symmetry; this version has one node.
    """

    def __init__(self, node_ranks: Sequence[int], node_group_label: str | None = None) -> None:
        self.node_ranks = sorted(node_ranks)
        self.node_group_label = node_group_label

    def plan(self, node: Node, *, place: str) -> tuple[ProcessPlan, ...]:
        """See `PlacementStrategy`."""
        if not self.node_ranks or self.node_ranks[0] < 0 or self.node_ranks[-1] > 0:
            raise PlacementError(place, f"nodes {self.node_ranks} were named, but there is {node.describe()}", "Name node 0.")
        count = len(self.node_ranks)
        threads = max(1, node.cores // count)
        return tuple(ProcessPlan(rank=rank, devices=(), threads=threads) for rank in range(count))


def _threads(node: Node, devices: Sequence[int]) -> int:
    """A virtual accelerator is one core; real ones share the cores out."""
    return len(devices) if node.virtual else max(1, node.cores * len(devices) // node.accelerators)
