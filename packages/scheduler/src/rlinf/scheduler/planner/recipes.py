"""From what a person writes to what the planner needs: the machine, the profile, and the layout of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlinf.core.errors import ConfigError, PlacementError
from rlinf.scheduler.config import ClusterConfig, PlannerConfig
from rlinf.scheduler.hardware.inventory import Inventory
from rlinf.scheduler.memory_size import parse_memory
from rlinf.scheduler.placement.component import as_written
from rlinf.scheduler.placement.grammar import PLACE, parse
from rlinf.scheduler.planner.fitting import Observed, fitted
from rlinf.scheduler.planner.layout import Machine, Slot
from rlinf.scheduler.planner.report import told
from rlinf.scheduler.planner.search import Space, search
from rlinf.scheduler.planner.workload import Workload
from rlinf.scheduler.trace.reading import trace_file

PROFILE = "cluster.planner.profile"
PINNED = "cluster.planner.pinned"
_MAKE = "Measure it in a few steps of a placement of your own: rlinf plan RECIPE.yaml --profile RECIPE.yaml --write FILE."


def load_profile(paths: Sequence[str | Path], *, place: str = PROFILE) -> tuple[Workload, list[Observed]]:
    """A workload from one profile, or from one or several traces, and what the traces showed.

    Args:
        paths: of the profile, or of traces.
        place: the key or the option that named them, for messages.

    Raises:
        ConfigError: there is none, or it has a fault.
        RLinfError: a trace can't be read.
    """
    if not paths:
        raise ConfigError(PROFILE, "nothing says what the components cost", _MAKE)
    for path in paths:
        if not Path(path).exists():
            known = "" if place == PROFILE else f"Name what {PROFILE} can name: a profile, or a trace. "
            raise ConfigError(place, f"there is no '{path}'", f"{known}{_MAKE}")
    files = [trace_file(path) for path in paths]
    profiles = [file for file in files if file.is_file() and not _is_trace(file)]
    if profiles and len(files) > 1:
        problem = f"'{profiles[0]}' is a profile, beside which {len(files) - 1} more are given; only traces are put together"
        raise ConfigError(place, problem, "Give the profile alone, or the traces.")
    if profiles:
        return Workload.read(files[0]), []
    observed = fitted(files)
    return observed[0].workload, observed


def machine_of(inventory: Inventory, planner: PlannerConfig) -> Machine:
    """The devices of a cluster.

    Raises:
        ConfigError: there is no accelerator, or nodes have different numbers of them.
    """
    counts = {node.accelerators for node in inventory.nodes}
    if counts == {0}:
        problem = "the planner places on accelerators, and the cluster has none"
        raise ConfigError(PLACE, problem, "Set cluster.virtual_accelerators.count, or write the placement yourself.")
    if len(counts) > 1:
        problem = f"the nodes have different numbers of accelerators: {sorted(counts)}"
        raise ConfigError(PLACE, problem, "Write the placement yourself.")
    if planner.memory is not None:
        memory: float | None = parse_memory(planner.memory)
    else:
        known = [device.memory for node in inventory.nodes for device in node.devices]
        # A device of which nothing is known may have less than the others.
        memory = min((each for each in known if each is not None), default=None) if None not in known else None
    per_node = counts.pop() if len(inventory.nodes) > 1 else 0
    virtual = all(node.virtual for node in inventory.nodes)
    cores = min(node.cores for node in inventory.nodes) if virtual else 0
    return Machine(devices=inventory.accelerators, per_node=per_node, memory=memory, virtual=virtual, cores=cores)


def layout_of(component_placement: Mapping[str, Any], inventory: Inventory, *, place: str = PLACE) -> dict[str, Slot]:
    """The devices of each component of a written placement, but for those on nodes and robots.

    Args:
        component_placement: the mapping of the configuration.
        inventory: what the cluster has.
        place: the dotted path of the mapping, for messages.

    Raises:
        PlacementError: the placement has a fault, or its devices are no range.
    """
    found: dict[str, Slot] = {}
    for name, spec in parse(component_placement, inventory, place=place).items():
        processes = as_written(spec).plan(inventory, place=f"{place}.{name}")
        if not processes[0].devices:
            continue
        different = sorted({process.devices for process in processes})
        used = sorted({device for each in different for device in each})
        if used != list(range(used[0], used[-1] + 1)) or len({len(each) for each in different}) > 1:
            raise PlacementError(f"{place}.{name}", "the planner knows ranges of devices with as many for each process only")
        # Processes that share a device are profiled together: one stands for all.
        found[name] = Slot(used[0], len(used), len(different[0]))
    return found


def space_of(planner: PlannerConfig, inventory: Inventory, workload: Workload) -> Space:
    """What may be chosen: where components are; how many chunks, stages and versions of lag there are is the recipe's.

    Raises:
        PlacementError: a pinned component has a fault, or the profile does not know it.
    """
    slots = layout_of(planner.pinned, inventory, place=PINNED)
    unknown = [name for name in slots if name not in workload.components]
    if unknown:
        known = ", ".join(workload.components)
        raise PlacementError(f"{PINNED}.{unknown[0]}", "the profile has no such component", f"It has {known}.")
    return Space(chunks=(planner.chunks,), stages=(planner.stages,), max_lag=planner.max_lag, pinned=slots)


def plan_placement(config: ClusterConfig, inventory: Inventory) -> tuple[ClusterConfig, str]:
    """The configuration with the placement that the planner chooses for `component_placement: auto`, and why.

    Raises:
        ConfigError: there is no profile, or nothing fits.
    """
    planner = config.planner
    if planner.profile is None:
        problem = "`auto` chooses by what the components cost, and nothing says that"
        raise ConfigError(PROFILE, problem, f"{_MAKE} Then set {PROFILE}=FILE.")
    workload, _ = load_profile([planner.profile])
    plan = search(workload, machine_of(inventory, planner), space_of(planner, inventory, workload))
    # What is pinned stays as it was written.
    placed = {name: slot.text() for name, slot in plan.best.layout.items()} | dict(planner.pinned)
    return replace(config, component_placement=placed), told(plan, planner.profile)


def _is_trace(path: Path) -> bool:
    with path.open("rb") as file:
        # The tracer writes this key first.
        return b"traceEvents" in file.read(64)
