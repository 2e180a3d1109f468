"""What the planner says, as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from rlinf.scheduler.hardware.node import several
from rlinf.scheduler.memory_size import memory_text
from rlinf.scheduler.placement.grammar import PLACE
from rlinf.scheduler.planner.explain import Explanation, More, Step, interval
from rlinf.scheduler.planner.fitting import Observed
from rlinf.scheduler.planner.layout import Layout, Machine
from rlinf.scheduler.planner.search import Candidate, Plan
from rlinf.scheduler.planner.simulation.simulator import Options, Simulation, simulate
from rlinf.scheduler.planner.timeline import draw, seconds
from rlinf.scheduler.planner.workload import Workload
from rlinf.scheduler.ranks import format_ranks
from rlinf.scheduler.trace.drawing import draw as table

COUNTS = (1, 2, 4)
"""Numbers of processes for which costs are printed."""
TIE = 0.005
"""Layouts whose steps differ by less are as good as each other."""


def placed(layout: Layout) -> str:
    """A layout in one line: `actor 0-3, env 0-1`."""
    return ", ".join(f"{name} {slot.text()}" for name, slot in layout.items())


def told(plan: Plan, profile: str) -> str:
    """A chosen placement in a few lines, for the start of a run."""
    best = plan.best
    lines = [
        f"{PLACE}: auto chose {placed(best.layout)} ({best.mode}), expected {seconds(best.step_s)} a step, by '{profile}'",
        _certificate(plan),
        *(f"instead of {placed(each.layout)} ({each.mode}): {seconds(each.step_s)}" for each in plan.others[:2]),
    ]
    return "\n".join(lines)


def costs(workload: Workload) -> str:
    """What the components cost, by how many processes there are, and how far that can be trusted."""
    rows: list[tuple[object, ...]] = []
    unsure: list[str] = []
    for name in workload.order:
        for parallel, cost in sorted(workload.components[name].costs.items()):
            sure = f"±{cost.error:.0%} of {cost.samples} calls" if cost.samples else "written by hand"
            rows.append((name, parallel, *(_work(workload, name, parallel, count) for count in COUNTS), sure))
            if cost.sizes == 1:
                unsure.append(name)
    each = [_processes(count) for count in COUNTS]
    text = "how long each process works in a step, by how many there are\n"
    text += table(("component", "devices each", *each, "known to"), rows)
    if any("*" in str(cell) for row in rows for cell in row):
        text += "\n* measured with so many; the others are extrapolated"
    if unsure:
        names = ", ".join(dict.fromkeys(unsure))
        text += (
            f"\n{names}: measured with one number of processes, so that k processes are taken to need 1/k of the time; "
            "--profile a second run with another number to know"
        )
    return text


def _work(workload: Workload, name: str, parallel: int, processes: int) -> str:
    """Seconds of a step of each of so many processes; in a loop with as many of the other component."""
    component, loop = workload.components[name], workload.loop_of(name)
    rounds = 1 if loop is None else loop.rounds
    took = seconds(rounds * component.costs[parallel].seconds(component.items / processes / rounds))
    known = workload.measured_processes(name, parallel)
    return f"{took} *" if known is not None and known[0] <= processes <= known[1] else took


def memory(workload: Workload) -> str:
    """What the components take of a device by what it is for; "" if nothing is known of any."""
    rows: list[tuple[object, ...]] = []
    for name in workload.order:
        held = workload.components[name].memory
        state = [memory_text(getattr(held, part)) for part in ("weights", "gradients", "optimizer")]
        items = workload.components[name].items
        growing = ((held.cache, held.cache_per_item), (held.simulator, held.simulator_per_item))
        each = [memory_text(fixed + per_item * items) for fixed, per_item in growing]
        rows.append((name, *state, *each, memory_text(held.fixed), "over its devices" if held.sharded else ""))
    if all(value == "-" for row in rows for value in row[1:-1]):
        return ""
    head = ("memory of", "weights", "gradients", "optimizer", "cache", "simulator", "other", "divided")
    return table(head, rows) + "\ncaches and simulators as of one process that has all items; activations are in no profile"


def prediction(workload: Workload, machine: Machine, layout: Layout, options: Options) -> str:
    """What a layout would do: step time, timeline, use and memory of devices, staleness."""
    simulation = simulate(workload, machine, layout, options)
    low, high = interval(workload, machine, layout, options)
    candidate = Candidate(layout=layout, options=options, step_s=simulation.step_s)
    lines = [
        f"{placed(layout)} ({candidate.mode}; chunks {options.chunks}, stages {options.stages}, max_lag {options.max_lag})",
        f"step {seconds(simulation.step_s)} (95 %: {seconds(low)} to {seconds(high)})",
        # A step in the middle: the last ones of a run with lag have nothing ahead of them.
        draw(simulation, layout, step=simulation.steps // 2 if options.max_lag else -1),
        devices(simulation, layout),
    ]
    # Less is printed as 100 %.
    if simulation.utilisation.max() > 1.005:
        lines.append("above 100 %: components that take no locks work beside each other on a virtual accelerator")
    if options.max_lag:
        mean, most = simulation.staleness
        lines.append(f"staleness {mean:.2f} weight versions on average, at most {most}")
    if simulation.memory.offloaded:
        names = ", ".join(sorted(simulation.memory.offloaded))
        lines.append(f"{names} must be offloaded while they do nothing: together they do not fit")
    return "\n".join(lines)


def devices(simulation: Simulation, layout: Layout) -> str:
    """Use and peak memory; devices that look the same share a line."""
    rows: list[tuple[str, str, str, str]] = []

    def looks(device: int) -> tuple[list[str], str, float]:
        here = [name for name, slot in layout.items() if slot.start <= device < slot.end]
        # As it is printed: what looks the same shares a line.
        return here, f"{simulation.utilisation[device]:.0%}", simulation.memory.per_device[device]

    for (here, share, peak), group in groupby(range(len(simulation.utilisation)), key=looks):
        alike = list(group)
        taken = memory_text(peak) if peak else "not in the profile" if here else "-"
        rows.append((format_ranks(alike), share, taken, ", ".join(here) or "idle"))
    head = ("device", "works", "peak memory", "components")
    shown = rows if len(rows) <= 16 else [*rows[:8], ("…", "", "", f"{len(rows) - 16} more"), *rows[-8:]]
    return table(head, shown)


def machine(of: Machine) -> str:
    """What is planned for, in one line."""
    nodes = f" in {of.nodes} nodes of {of.per_node}" if of.nodes > 1 else ""
    text = f"planned for {several(of.devices, _kind(of))}{nodes}"
    if of.memory is not None:
        text += f" with {memory_text(of.memory)} of memory each"
    if of.virtual and of.cores:
        where = " of a node" if of.nodes > 1 else ""
        text += f"; processes share the {several(of.cores, 'CPU core')}{where}, one for each accelerator of one that works"
    return text


def _kind(of: Machine) -> str:
    return "virtual accelerator" if of.virtual else "device"


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


def report(on: Machine, plan: Plan, explanation: Explanation, front: Sequence[Step], own_s: float | None = None) -> str:
    """The chosen plan, and why.

    Args:
        on: the machine.
        plan: what was found.
        explanation: why.
        front: the best for each lag; () for none.
        own_s: seconds of a step of the recipe's own placement, if there is one.
    """
    best = plan.best
    lines = [
        f"best of {plan.simulated} simulated in {plan.seconds:.2f} s: {placed(best.layout)} ({best.mode}; "
        f"chunks {best.options.chunks}, stages {best.options.stages}): {seconds(best.step_s)} a step",
    ]
    if own_s is not None:
        lines.append(
            f"{_faster(own_s / best.step_s)} {'than' if own_s < best.step_s * (1 + TIE) else 'as'} the recipe's own placement"
        )
    lines += [_certificate(plan), f"bound by: {explanation.bottleneck}", *_beyond(explanation)]
    for other, why in explanation.slower:
        slower = other.step_s / best.step_s - 1
        how = "as good" if slower < TIE else f"{slower:.1%} slower: {why}"
        lines.append(f"instead {placed(other.layout)} ({other.mode}), {seconds(other.step_s)}: {how}")
    lines += [_larger(on, each, best.step_s) for each in explanation.more]
    for flip in explanation.flips:
        sure = "; the measurement does not rule that out, measure it again" if flip.within_error else ""
        lines.append(f"if {flip.component} took {flip.factor:.2f}x as long, {placed(flip.other.layout)} would be better{sure}")
    if not explanation.flips:
        lines.append("the choice stays the same if any one cost is half or twice what was measured")
    if len(front) > 1:
        lines += ["", table(("max_lag", "staleness", "step", "placement"), [_point(each) for each in front])]
    return "\n".join(lines)


def _faster(ratio: float) -> str:
    return "no faster" if ratio < 1 + TIE else f"{ratio:.2f}x as fast"


def _larger(on: Machine, more: More, step_s: float) -> str:
    """What a larger machine would give."""
    what = several(more.devices, _kind(on))
    if more.cores != on.cores:
        what += f" and {several(more.cores, 'core')} {'of each node' if on.nodes > 1 else 'for them'}"
    elif on.cores and on.nodes == 1:
        what += " on the same cores"
    faster = _faster(step_s / more.step_s)
    known = ", extrapolated" if more.unmeasured and step_s > more.step_s else ""
    return f"with {what}: {seconds(more.step_s)} a step, {faster}{known}"


def _beyond(explanation: Explanation) -> list[str]:
    """What of the choice nobody has measured, and the best of what was."""
    if not explanation.unmeasured:
        return []
    parts: list[str] = []
    for name, processes, least, most in explanation.unmeasured:
        known = str(least) if least == most else f"{least} to {most}"
        parts.append(f"{name} with {_processes(processes)}, measured with {known}")
    best = explanation.measured_best
    safe = "" if best is None else f"; the best of what was measured is {placed(best.layout)}: {seconds(best.step_s)} a step"
    return [f"extrapolated: {'; '.join(parts)}. Profile such a run before you rely on it{safe}"]


def measured(observed: Sequence[Observed]) -> str:
    """What traced runs took, beside what the simulator says of the same placement."""
    rows: list[tuple[str, str, str, str, str]] = []
    for run in observed:
        took = median(run.step_s)
        said = simulate(run.workload, run.machine, run.layout).step_s
        rows.append((run.source, placed(run.layout), seconds(took), seconds(said), f"{said / took - 1:+.0%}"))
    return table(("trace", "placement", "measured", "simulated", "error"), rows)


def _point(each: Step) -> tuple[str, str, str, str]:
    return str(each.max_lag), f"{each.staleness:.2f}", seconds(each.best.step_s), f"{placed(each.best.layout)} ({each.best.mode})"


def _certificate(plan: Plan) -> str:
    if plan.proven:
        return "proven: no range of devices for each component has a shorter step in the simulator"
    bound = seconds(plan.bound_s)
    return f"not proven: no step can be shorter than {bound}, so that another layout could save {plan.gap:.1%} at most"
