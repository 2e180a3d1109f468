"""`HybridComponentPlacement`: the placement of every component of a run, read from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from rlinf.core.errors import PlacementError, did_you_mean
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware import Node
from rlinf.scheduler.placement.grammar import PLACE, Resources, Spec, parse
from rlinf.scheduler.placement.strategies import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PlacementStrategy,
    ProcessPlan,
)


class Machines(Protocol):
    """What a placement needs of a cluster."""

    @property
    def config(self) -> ClusterConfig:
        """The cluster's configuration."""
        ...

    @property
    def node(self) -> Node:
        """The machine."""
        ...


class HybridComponentPlacement:
    """Any mixture of collocated and disaggregated components.

    Args:
        cfg: the run's configuration. If it has `cluster.component_placement`, that is what is read; it may differ from the
            cluster's own, as a cluster can be made by hand. Otherwise the cluster's own is read.
        cluster: where it will run.

    Raises:
        PlacementError: the placement breaks the grammar, or the cluster can't satisfy it.
    """

    def __init__(self, cfg: object, cluster: Machines) -> None:
        self._node = cluster.node
        written = _section(_section(cfg, "cluster"), "component_placement")
        chosen = cast("Mapping[str, Any]", written) if isinstance(written, Mapping) else cluster.config.component_placement
        self._specs = parse(chosen, Resources(cluster.node.accelerators))

    @property
    def components(self) -> tuple[str, ...]:
        """The components, in the order in which they are written."""
        return tuple(self._specs)

    def get_strategy(self, component: str) -> PlacementStrategy:
        """The strategy to launch a component with."""
        spec = self._spec(component)
        if spec.kind == "node":
            return NodePlacementStrategy([ranks[0] for ranks in spec.resources])
        return FlexiblePlacementStrategy(spec.resources)

    def get_world_size(self, component: str) -> int:
        """How many processes a component has."""
        return len(self._spec(component).resources)

    def get_hardware_ranks(self, component: str) -> list[int]:
        """The accelerators of a component, ascending; empty if it was placed on a node."""
        return sorted({device for process in self.plan(component) for device in process.devices})

    def plan(self, component: str) -> tuple[ProcessPlan, ...]:
        """Where each process of a component runs."""
        return self.get_strategy(component).plan(self._node, place=f"{PLACE}.{component}")

    def describe(self) -> str:
        """The plan as a table: one line for each device, and who is on it with how many threads."""
        plans = {component: self.plan(component) for component in self._specs}
        rows: list[tuple[str, str]] = []
        for device in range(self._node.accelerators):
            rows.append((f"accelerator {device}", _occupants(plans, device)))
        rows.append(("node 0", _occupants(plans, None)))
        lines = [f"{place:16}{who}" for place, who in rows if who or not place.startswith("node")]
        return "\n".join([self._node.describe(), *lines])

    def _spec(self, component: str) -> Spec:
        if component not in self._specs:
            hint = did_you_mean(component, list(self._specs), label="Placed")
            raise PlacementError(f"{PLACE}.{component}", "this component is not placed", hint)
        return self._specs[component]


def _occupants(plans: Mapping[str, tuple[ProcessPlan, ...]], device: int | None) -> str:
    """`actor[0-1] ×1 thread` for each component with a process on the device (None: on the node itself)."""
    texts: list[str] = []
    for component, processes in plans.items():
        here = [p for p in processes if (device in p.devices if device is not None else not p.devices)]
        if here:
            first, last = here[0].rank, here[-1].rank
            ranks = f"{first}-{last}" if last > first else f"{first}"
            threads = here[0].threads
            texts.append(f"{component}[{ranks}] ({threads} thread{'s' if threads > 1 else ''})")
    return ", ".join(texts)


def _section(value: object, key: str) -> object:
    """A key of a mapping or an attribute of a configuration object; None if it is not there."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).get(key)
    return getattr(value, key, None)
