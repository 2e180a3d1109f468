"""`VirtualAccelerators`: devices that exist in the placement only, so that a plan for accelerators runs on CPU cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError
from rlinf.scheduler.memory_size import parse_memory
from rlinf.scheduler.ranks import parse_ranks, read_spans

VIRTUAL = "VIRTUAL"
"""The hardware type of accelerators that exist in the placement only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNode:
    """What is different on some nodes; None takes what the section says for all."""

    count: int | None = None
    """How many accelerators; 0 for a node of CPU cores alone."""
    memory: str | None = None
    """Of each one, such as "80GiB"."""
    model: str | None = None
    """What they are called, such as "H100"."""
    cores: int | None = None
    """The node's CPU cores."""

    def __post_init__(self) -> None:
        expect_at_least("count", self.count, 0)
        _check(self.memory, self.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualAccelerators:
    """Devices that exist in the placement only, so that a plan for accelerators runs on CPU cores."""

    count: int
    """How many on each node; each stands for one CPU core."""
    memory: str | None = None
    """What a planner may assume of each one's memory, such as "80GiB"; None if no plan asks for it."""
    model: str = ""
    """Their name, such as "H100"; for tables and plans only."""
    type: str = VIRTUAL
    """The hardware type that they stand for in `node_groups`, such as "NV_GPU"."""
    cores: int | None = None
    """CPU cores of each node; None takes this machine's."""
    nodes: Mapping[str, VirtualNode] = field(default_factory=dict[str, VirtualNode])
    """Ranks of nodes ("2-3") → what is different there."""

    def __post_init__(self) -> None:
        expect_at_least("count", self.count, 1, "Leave virtual_accelerators out to have none.")
        _check(self.memory, self.cores)
        for ranks in self.nodes:
            read_spans(ranks, place=f"nodes.{ranks}")

    def on_nodes(self, count: int, *, place: str) -> tuple[VirtualNode, ...]:
        """What each of `count` nodes has, nothing left open but `memory` and `cores`.

        Raises:
            ConfigError: `nodes` names a node twice, or one that is not there.
        """
        found: dict[int, VirtualNode] = {}
        for ranks, node in self.nodes.items():
            for rank in parse_ranks(ranks, count, place=f"{place}.nodes.{ranks}"):
                if rank in found:
                    raise ConfigError(f"{place}.nodes.{ranks}", f"node {rank} is described twice", "Name each node once.")
                found[rank] = node
        return tuple(self._complete(found.get(rank, VirtualNode())) for rank in range(count))

    def _complete(self, node: VirtualNode) -> VirtualNode:
        return VirtualNode(
            count=self.count if node.count is None else node.count,
            memory=self.memory if node.memory is None else node.memory,
            model=self.model if node.model is None else node.model,
            cores=self.cores if node.cores is None else node.cores,
        )


def _check(memory: str | None, cores: int | None) -> None:
    if memory is not None:
        parse_memory(memory)
    expect_at_least("cores", cores, 1)
