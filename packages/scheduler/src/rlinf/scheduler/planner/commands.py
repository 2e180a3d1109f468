"""The commands `rlinf plan` and `rlinf what-if`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rlinf.core.config.arguments import ArgumentParser, real, whole
from rlinf.core.errors import ConfigError, PlacementError, did_you_mean
from rlinf.core.registry import RECIPES
from rlinf.scheduler.config import ClusterConfig, PlannerConfig, read_cluster
from rlinf.scheduler.hardware import Inventory, take_inventory
from rlinf.scheduler.memory_size import parse_memory
from rlinf.scheduler.placement.grammar import component_names
from rlinf.scheduler.planner import report
from rlinf.scheduler.planner.calibration import RECIPE, calibrated
from rlinf.scheduler.planner.explain import bottleneck, explain, front
from rlinf.scheduler.planner.fitting import Observed, observe
from rlinf.scheduler.planner.layout import Machine, Slot
from rlinf.scheduler.planner.recipes import PROFILE, layout_of, load_profile, machine_of, space_of
from rlinf.scheduler.planner.search import Space, search
from rlinf.scheduler.planner.simulation.simulator import Options, simulate, step_seconds
from rlinf.scheduler.planner.timeline import seconds, write_trace
from rlinf.scheduler.planner.workload import Workload

CALIBRATION_S = 1800.0
SET, TRACE, PROFILE_OPTION = "--set", "--trace", "--profile"
_OF_COMPONENT = ("devices", "parallel", "speed", "items")
_OF_RUN = ("chunks", "stages", "max_lag")


def plan(args: Sequence[str]) -> int:
    """Predicts what a recipe will take, and says which placement is best: `rlinf plan [recipe.yaml] [key=value …] --profile PATH`.

    Nothing is started but the calibration, if a profile is a recipe.
    """
    parser = ArgumentParser(prog="rlinf plan", description=plan.__doc__)
    parser.add_argument("recipe", nargs="?", help="a recipe; without one, what was profiled is planned for again")
    parser.add_argument("overrides", nargs="*", help="key=value, such as cluster.virtual_accelerators.count=8")
    profile = (
        "what the components cost: a profile, traces or folders of traced runs, or recipes, each of which is run for a few steps; "
    )
    profile += "overrides for a recipe stand behind it, within quotes"
    parser.add_argument(PROFILE_OPTION, action="append", default=[], metavar="PATH", help=profile)
    parser.add_argument("--devices", type=whole(1), help="plan for so many devices, whatever there is")
    parser.add_argument("--per-node", type=whole(0), default=0, help="of which a node has so many")
    parser.add_argument("--cores", type=whole(1), help="CPU cores of a node, which the processes on virtual accelerators share")
    parser.add_argument("--memory", help="memory of a device, such as 80GiB")
    parser.add_argument("--front", action="store_true", help="also the best step for each number of weight versions of lag")
    parser.add_argument("--write", metavar="FILE", help="write the profile there, for cluster.planner.profile")
    parser.add_argument(TRACE, metavar="FILE", help="write the predicted run as a trace, for https://ui.perfetto.dev")
    seconds = "how long the calibration of a recipe may take"
    parser.add_argument("--calibration-s", type=real(0, open_low=True), default=CALIBRATION_S, metavar="SECONDS", help=seconds)
    # `parse_args` would refuse overrides that stand behind an option.
    asked = parser.parse_intermixed_args(list(args))
    _expect_writable("--write", asked.write)
    _expect_writable(TRACE, asked.trace)
    with calibrated(asked.profile, timeout_s=asked.calibration_s, tell=_say) as profiles:
        return _plan(asked, profiles)


def _plan(asked: argparse.Namespace, profiles: Sequence[str | Path]) -> int:
    cluster = _cluster(asked.recipe, asked.overrides)
    planner = PlannerConfig() if cluster is None else cluster.planner
    if profiles:
        workload, observed = load_profile(profiles, place=PROFILE_OPTION)
    else:
        workload, observed = load_profile([planner.profile] if planner.profile else [])
    if asked.memory is not None:
        parse_memory(asked.memory, place="--memory")
        planner = replace(planner, memory=asked.memory)
    inventory = None if cluster is None else _inventory(cluster, asked.devices)
    machine = _machine(asked, planner, inventory, workload, observed)
    space = space_of(planner, inventory, workload) if inventory is not None else Space()
    _say(report.machine(machine))
    _say(report.costs(workload))
    if taken := report.memory(workload):
        _say(taken)
    if observed:
        # A calibration is known by its recipe: its trace goes with its folder.
        names = asked.profile or [planner.profile]
        _say(report.measured([replace(run, source=name) for run, name in zip(observed, names, strict=True)]))
    own_s = None
    if cluster is not None and inventory is not None and isinstance(cluster.component_placement, Mapping):
        _expect_same_run(workload, cluster.component_placement)
        said, own_s = _as_written(cluster.component_placement, inventory, workload, machine, planner)
        _say(f"as the recipe places it: {said}")
    found = search(workload, machine, space)
    points = front(workload, machine, space) if asked.front else ()
    _say(report.report(machine, found, explain(workload, machine, found, space), points, own_s))
    _say(report.prediction(workload, machine, found.best.layout, found.best.options))
    if asked.write:
        _say(f"profile written to {workload.write(asked.write)}")
    if asked.trace:
        _say(f"trace written to {write_trace(workload, machine, found.best.layout, found.best.options, asked.trace)}")
    return 0


def what_if(args: Sequence[str]) -> int:
    """Replays a traced run under a change: `rlinf what-if TRACE --set env.devices=4 [--set …]`."""
    parser = ArgumentParser(prog="rlinf what-if", description=what_if.__doc__)
    parser.add_argument("trace", help="a trace, or the folder of a traced run")
    change = "COMPONENT.devices=4 or 0-3, COMPONENT.parallel=2, COMPONENT.speed=2, COMPONENT.items=2, chunks=2, stages=2, max_lag=1"
    parser.add_argument(SET, action="append", default=[], metavar="KEY=VALUE", dest="changes", required=True, help=change)
    parser.add_argument(TRACE, metavar="FILE", dest="target", help="write the changed run as a trace")
    asked = parser.parse_args(list(args))
    _expect_writable(TRACE, asked.target)
    run = observe(asked.trace)
    before = Situation(run.workload, run.layout, Options())
    after = changed(before, asked.changes)
    expect_known(after)
    # A change may ask for devices that the run did not have.
    most = max(run.machine.devices, *(slot.end for slot in after.layout.values()))
    then = replace(run.machine, devices=most)
    was = simulate(before.workload, run.machine, before.layout, before.options)
    now = simulate(after.workload, then, after.layout, after.options)
    _say(report.measured([run]))
    _say(report.machine(then))
    _say(f"with {', '.join(asked.changes)}: {report.prediction(after.workload, then, after.layout, after.options)}")
    _say(f"bound by: {bottleneck(after.workload, after.layout, now)}")
    faster = was.step_s / now.step_s
    _say(f"simulated {seconds(was.step_s)} before, {seconds(now.step_s)} after: {faster:.2f}x as fast")
    if asked.target:
        _say(f"trace written to {write_trace(after.workload, then, after.layout, after.options, asked.target)}")
    return 0


@dataclass(frozen=True, slots=True)
class Situation:
    """A workload, where it is, and how its parts work together."""

    workload: Workload
    layout: dict[str, Slot]
    options: Options


def changed(situation: Situation, changes: Sequence[str]) -> Situation:
    """The situation after changes, in their order.

    Args:
        situation: what was.
        changes: `component.devices=4` (from where it begins now) or `=0-3`, `component.parallel=2`, `component.speed=2` (twice as
            fast), `component.items=2` (twice as many), or `chunks=2`, `stages=2`, `max_lag=1`.

    Raises:
        ConfigError: a change is not one of these, or names a component that is not there.
    """
    for text in changes:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(SET, f"expected KEY=VALUE, found '{text}'", "Write it as COMPONENT.devices=4, or max_lag=1.")
        name, dot, field = key.rpartition(".")
        known = _OF_COMPONENT if dot else _OF_RUN
        if field not in known:
            keys = [f"{each}.{of}" for each in situation.workload.components for of in _OF_COMPONENT] + list(_OF_RUN)
            raise ConfigError(SET, f"'{key}' can't be changed", did_you_mean(key, keys))
        if not dot:
            situation = replace(situation, options=replace(situation.options, **{field: _whole(key, value)}))
        elif name not in situation.workload.components:
            raise ConfigError(SET, f"no component '{name}'", did_you_mean(name, list(situation.workload.components)))
        elif field in ("devices", "parallel"):
            slot = _slot(key, situation.layout[name], field, value)
            situation = replace(situation, layout={**situation.layout, name: slot})
        else:
            situation = replace(situation, workload=_scaled(key, situation.workload, name, field, value))
    return situation


def _slot(key: str, slot: Slot, field: str, value: str) -> Slot:
    if field == "parallel":
        return replace(slot, parallel=_whole(key, value))
    first, dash, last = value.partition("-")
    if not dash:
        return replace(slot, count=_whole(key, value))
    start, end = _whole(key, first, least=0), _whole(key, last, least=0)
    if end < start:
        raise ConfigError(SET, f"in '{key}={value}' the range runs backwards", f"Write {last}-{first}.")
    return replace(slot, start=start, count=end - start + 1)


def expect_known(situation: Situation) -> None:
    """Refuses devices that are no whole number of processes, and processes whose cost the trace does not show.

    Raises:
        ConfigError: with the change that asks for it.
    """
    for name, slot in situation.layout.items():
        costs = situation.workload.components[name].costs
        if slot.parallel not in costs:
            sizes = " or ".join(map(str, sorted(costs)))
            problem = f"in the trace each process of {name} has {sizes}, and what one with {slot.parallel} costs is not known"
            raise ConfigError(SET, f"'{name}.parallel={slot.parallel}': {problem}", "Leave it out, or trace a run with one.")
        if slot.count % slot.parallel:
            problem = f"each process of {name} has {slot.parallel} devices, and {slot.count} are no whole number of processes"
            raise ConfigError(SET, f"'{name}.devices={slot.count}': {problem}", f"Use a multiple of {slot.parallel}.")


def _scaled(key: str, workload: Workload, name: str, field: str, value: str) -> Workload:
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise ConfigError(SET, f"'{key}' expects a positive number, found '{value}'")
    if field == "speed":
        return workload.slowed(name, 1 / factor)
    return workload.replaced(name, items=workload.components[name].items * factor)


def _whole(key: str, value: str, *, least: int = 1) -> int:
    least = 0 if key == "max_lag" else least
    # `int` would also read signs, spaces and underscores.
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < least:
        raise ConfigError(SET, f"'{key}' expects a whole number of at least {least}, found '{value}'")
    return int(value)


def _cluster(recipe: str | None, overrides: Sequence[str]) -> ClusterConfig | None:
    """The `cluster` section of a recipe."""
    if recipe is None:
        return None
    if not recipe.endswith(RECIPE):
        raise ConfigError("rlinf plan", f"expected a recipe such as path/to/recipe.yaml, found '{recipe}'")
    readers = RECIPES.names()
    if not readers:
        remedy = "Install rlinf-runners, or plan without a recipe: rlinf plan --profile PATH --devices N."
        raise ConfigError("rlinf plan", "nothing that is installed reads recipes", remedy)
    data = cast("Mapping[str, Any]", RECIPES.get(readers[0])(Path(recipe), overrides))
    return read_cluster(cast("Mapping[str, Any]", data.get("cluster") or {}))


def _inventory(cluster: ClusterConfig, devices: int | None) -> Inventory | None:
    if devices is not None:
        return None
    if cluster.backend == "ray" and cluster.num_nodes != 1 and cluster.virtual_accelerators is None:
        remedy = "Say how many devices to plan for: --devices 16 --per-node 8."
        raise ConfigError("cluster.num_nodes", f"what {cluster.num_nodes} nodes have is only known when they are joined", remedy)
    return take_inventory(cluster)


def _machine(
    asked: argparse.Namespace, planner: PlannerConfig, inventory: Inventory | None, workload: Workload, observed: Sequence[Observed]
) -> Machine:
    memory = None if planner.memory is None else float(parse_memory(planner.memory))
    if asked.devices is not None:
        # What was measured on virtual accelerators says nothing of real ones.
        virtual = workload.cores > 0 or any(run.virtual for run in observed)
        found = Machine(devices=asked.devices, per_node=asked.per_node, memory=memory, virtual=virtual, cores=workload.cores)
    elif inventory is not None:
        found = machine_of(inventory, planner)
    elif observed:
        found = replace(max((run.machine for run in observed), key=lambda machine: machine.devices), memory=memory)
    else:
        raise ConfigError("rlinf plan", "nothing says how many devices there are", "Name a recipe, or --devices N.")
    if asked.cores is None:
        return found
    if not found.virtual:
        raise ConfigError("--cores", "real accelerators are planned for, whose cores the planner does not look at", "Leave it out.")
    return replace(found, cores=asked.cores)


def _as_written(
    placement: Mapping[str, Any], inventory: Inventory, workload: Workload, machine: Machine, planner: PlannerConfig
) -> tuple[str, float | None]:
    """What the recipe's own placement would do, and how long a step of it takes; or why nobody knows."""
    layout = {name: slot for name, slot in layout_of(placement, inventory).items() if name in workload.components}
    try:
        options = Options(chunks=planner.chunks, stages=planner.stages, max_lag=planner.max_lag)
        return report.prediction(workload, machine, layout, options), step_seconds(workload, machine, layout, options)
    except PlacementError as error:
        return f"not known: {error}", None


def _expect_same_run(workload: Workload, placement: Mapping[str, Any]) -> None:
    """Refuses a profile of components that the recipe does not place: it is that of another kind of run."""
    placed = component_names(placement)
    other = [name for name in workload.components if name not in placed]
    if other:
        problem = f"the profile has {', '.join(workload.components)}, and the recipe places no {other[0]}, but {', '.join(placed)}"
        raise ConfigError(PROFILE, problem, "Name the profile of such a run.")


def _expect_writable(option: str, file: str | None) -> None:
    """Refuses a file that can't be written, before anything is measured for it."""
    if file is None:
        return
    target = Path(file)
    folder = target.parent
    if target.is_dir():
        raise ConfigError(option, f"'{file}' is a folder", "Name a file.")
    if not folder.is_dir():
        raise ConfigError(option, f"there is no folder '{folder}'", "Make it, or name another file.")
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise ConfigError(option, f"'{file}' can't be written: permission denied", "Name another file.")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n\n")
    # In a file or a pipe it would be there at the end.
    sys.stdout.flush()
