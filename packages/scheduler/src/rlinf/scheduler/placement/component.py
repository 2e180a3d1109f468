"""The placement of every component of a run, read from its configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, cast

from rlinf.core.errors import ConfigError, PlacementError, did_you_mean
from rlinf.scheduler.compat import Modes
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware.inventory import Inventory
from rlinf.scheduler.placement.grammar import PLACE, Spec, component_names, parse
from rlinf.scheduler.placement.strategies import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PlacementStrategy,
    ProcessPlan,
    WithinCores,
)
from rlinf.scheduler.placement.table import FEW_ROWS, draw
from rlinf.scheduler.ranks import format_ranks


class PlacementMode(Enum, metaclass=Modes):
    """How the components of a run share the hardware."""

    COLLOCATED = "collocated"
    """All on the same devices, in turns."""
    DISAGGREGATED = "disaggregated"
    """Each on devices of its own."""
    HYBRID = "hybrid"
    """Any mixture."""


class Machines(Protocol):
    """What a placement needs of a cluster."""

    @property
    def config(self) -> ClusterConfig:
        """The cluster's configuration."""
        ...

    @property
    def inventory(self) -> Inventory:
        """What it has."""
        ...


class ComponentPlacement(ABC):
    """Where each component of a run goes.

    Args:
        cfg: the run's configuration. If it has `cluster.component_placement`, that is what is read; it may differ from the
            cluster's own, as a cluster can be made by hand. Otherwise the cluster's own is read.
        cluster: where it will run; an inventory will do.
        required: the components that the program launches; each must be placed, and no others but those of `optional` may be.
            None accepts any names.
        optional: those that it launches only if they are placed.
        told: what is said before the plan, such as why it was chosen.

    Raises:
        PlacementError: the placement breaks the grammar, the cluster can't satisfy it, or it names other components.
    """

    def __init__(
        self,
        cfg: object,
        cluster: Machines | Inventory,
        *,
        required: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        told: str = "",
    ) -> None:
        self._inventory = cluster if isinstance(cluster, Inventory) else cluster.inventory
        written = section(section(cfg, "cluster"), "component_placement")
        planned = None if isinstance(cluster, Inventory) else cluster.config.component_placement
        # A cluster has put in place of `auto` what the planner chose.
        chosen: Mapping[str, Any] = planned if isinstance(planned, Mapping) else {}
        if isinstance(written, Mapping):
            chosen = cast("Mapping[str, Any]", written)
        if required is not None:
            _check_names(chosen, required, optional)
        self._chosen_by = told
        self._specs = parse(chosen, self._inventory)
        self._plans: dict[str, tuple[ProcessPlan, ...]] = {}
        self._processes: Mapping[int, int] | None = None

    @property
    @abstractmethod
    def placement_mode(self) -> PlacementMode:
        """How the components share the hardware."""
        ...

    @abstractmethod
    def get_strategy(self, component: str) -> PlacementStrategy:
        """The strategy to launch a component with."""
        ...

    @property
    def components(self) -> tuple[str, ...]:
        """The components, in the order in which they are written."""
        return tuple(self._specs)

    def get_world_size(self, component: str) -> int:
        """How many processes a component has."""
        return len(self.plan(component))

    def get_hardware_ranks(self, component: str) -> list[int]:
        """What a component is placed on, ascending; empty if that is nodes.

        An accelerator's rank is its number in the whole cluster. A robot's is its number in the component's node groups.
        """
        spec = self.spec(component)
        if spec.pool.on_nodes:
            return []
        devices = {device for process in self.plan(component) for device in process.devices}
        return sorted(devices or {rank for ranks in spec.resources for rank in ranks})

    def plan(self, component: str) -> tuple[ProcessPlan, ...]:
        """Where each process of a component runs."""
        if component not in self._plans:
            self._plans[component] = self.get_strategy(component).plan(self._inventory, place=f"{PLACE}.{component}")
        return self._plans[component]

    def _within_cores(self, strategy: PlacementStrategy) -> PlacementStrategy:
        """The same, with threads for which all components of the run leave room."""
        if self._processes is None:
            # By what is written, as every rank list is one process, whoever launches it.
            homes = (spec.pool.resources[ranks[0]].node for spec in self._specs.values() for ranks in spec.resources)
            self._processes = Counter(homes)
        return WithinCores(strategy, self._processes)

    def check(self, *, simulated: bool) -> None:
        """Plans all components.

        Args:
            simulated: this machine stands for all nodes, so that one without a component serves nobody.

        Raises:
            PlacementError: the cluster can't satisfy a placement.
            ConfigError: nodes are simulated in vain.
        """
        used = {process.node for component in self.components for process in self.plan(component)}
        spare = [node.rank for node in self._inventory.nodes if node.rank not in used]
        if used and spare and simulated:
            problem = (
                f"found {len(self._inventory.nodes)}, but the local back-end runs on this machine alone: its nodes are simulated, "
                f"and no component is placed on {format_ranks(spare)}"
            )
            remedy = "Leave it out; or place components on all nodes; or use `backend: ray` for several machines."
            raise ConfigError("cluster.num_nodes", problem, remedy)

    def describe(self, *, limit: int | None = FEW_ROWS) -> str:
        """The plan as a table: who is on which device of which node, with how many CPU threads.

        Args:
            limit: about how many lines there may be before devices and nodes that look the same share one; None for all.
        """
        drawn = draw(self._inventory, {component: self.plan(component) for component in self._specs}, limit=limit)
        return f"{self._chosen_by}\n{drawn}" if self._chosen_by else drawn

    def keep(self, folder: str | None) -> None:
        """Writes `plan.txt` into the folder of a run, if it has one, and something was said before the plan."""
        if self._chosen_by and folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / "plan.txt").write_text(f"{self.describe(limit=None)}\n", encoding="utf-8")

    def spec(self, component: str) -> Spec:
        """What is written of a component.

        Raises:
            PlacementError: it is not placed.
        """
        if component not in self._specs:
            hint = did_you_mean(component, list(self._specs), label="Placed")
            raise PlacementError(f"{PLACE}.{component}", "this component is not placed", hint)
        return self._specs[component]


class HybridComponentPlacement(ComponentPlacement):
    """Any mixture of collocated and disaggregated components; see `ComponentPlacement`."""

    @property
    def placement_mode(self) -> PlacementMode:
        """Always `HYBRID`."""
        return PlacementMode.HYBRID

    def get_strategy(self, component: str) -> PlacementStrategy:
        return self._within_cores(as_written(self.spec(component)))


def _check_names(written: Mapping[str, Any], required: Sequence[str], optional: Sequence[str]) -> None:
    """Refuses components that nobody launches, which are misspelt most of the time, and the lack of those that somebody does."""
    placed = component_names(written)
    for name in placed:
        if name not in (*required, *optional):
            hint = did_you_mean(name, [*required, *optional], label="This run has")
            raise PlacementError(f"{PLACE}.{name}", "this run has no component of that name", hint)
    for name in required:
        if name not in placed:
            raise PlacementError(f"{PLACE}.{name}", "this component is not placed", f"Placed: {', '.join(placed) or 'none'}.")


def as_written(spec: Spec) -> PlacementStrategy:
    """The strategy that places exactly what was written."""
    if spec.pool.on_nodes:
        return NodePlacementStrategy([ranks[0] for ranks in spec.resources], spec.pool.labels)
    return FlexiblePlacementStrategy(spec.resources, spec.pool.labels)


def section(value: object, key: str) -> object:
    """A key of a mapping or an attribute of a configuration object; None if it is not there."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).get(key)
    return getattr(value, key, None)
