"""What the planner says, as text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from rlinf.scheduler.placement.grammar import PLACE
from rlinf.scheduler.planner.costs import Memory
from rlinf.scheduler.planner.explain import Explanation, Step, interval
from rlinf.scheduler.planner.fitting import Observed
from rlinf.scheduler.planner.layout import Layout, Machine
from rlinf.scheduler.planner.search import Candidate, Plan
from rlinf.scheduler.planner.simulator import Options, Simulation, simulate
from rlinf.scheduler.planner.timeline import draw
from rlinf.scheduler.planner.workload import Workload
from rlinf.scheduler.trace.drawing import draw as table


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
    """What the components cost, and how far that can be trusted."""
    rows: list[tuple[object, ...]] = []
    unsure: list[str] = []
    for name in workload.order:
        for size, cost in sorted(workload.components[name].costs.items()):
            sure = f"±{cost.error:.0%} of {cost.samples} calls" if cost.samples else "written by hand"
            rows.append((name, size, seconds(cost.fixed_s), seconds(cost.item_s * workload.components[name].items), sure))
            if cost.sizes == 1:
                unsure.append(name)
    text = table(("component", "devices each", "each call", "all items of a step", "known to"), rows)
    if unsure:
        names = ", ".join(dict.fromkeys(unsure))
        text += (
            f"\n{names}: one number of processes was measured, so that k processes are taken to need 1/k of the time; "
            "--profile a second run with another number to know"
        )
    return text


def memory(workload: Workload) -> str:
    """What the components take of a device by what it is for; "" if nothing is known of any."""
    rows: list[tuple[object, ...]] = []
    for name in workload.order:
        held = workload.components[name].memory
        state = [size(getattr(held, part)) for part in ("weights", "gradients", "optimizer")]
        items = workload.components[name].items
        each = [size(fixed + per_item * items) for fixed, per_item in _growing(held)]
        rows.append((name, *state, *each, size(held.fixed), "over its devices" if held.sharded else ""))
    if all(value == "-" for row in rows for value in row[1:-1]):
        return ""
    head = ("memory of", "weights", "gradients", "optimizer", "cache", "simulator", "other", "divided")
    return table(head, rows) + "\ncaches and simulators as of one process that has all items; activations are in no profile"


def _growing(held: Memory) -> tuple[tuple[float, float], tuple[float, float]]:
    return (held.cache, held.cache_per_item), (held.simulator, held.simulator_per_item)


def size(value: float) -> str:
    """Bytes with three digits."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B" if value else "-"


def prediction(workload: Workload, machine: Machine, layout: Layout, options: Options) -> str:
    """What a layout would do: step time, timeline, use and memory of devices, staleness."""
    simulation = simulate(workload, machine, layout, options)
    low, high = interval(workload, machine, layout, options)
    candidate = Candidate(layout=layout, options=options, step_s=simulation.step_s)
    lines = [
        f"{placed(layout)} ({candidate.mode}; chunks {options.chunks}, stages {options.stages}, max_lag {options.max_lag})",
        f"step {seconds(simulation.step_s)} (95 %: {seconds(low)} to {seconds(high)})",
        draw(simulation, layout),
        devices(simulation, layout),
    ]
    if options.max_lag:
        mean, most = simulation.staleness
        lines.append(f"staleness {mean:.2f} weight versions on average, at most {most}")
    if simulation.memory.offloaded:
        names = ", ".join(sorted(simulation.memory.offloaded))
        lines.append(f"{names} must be offloaded while they do nothing: together they do not fit")
    return "\n".join(lines)


def devices(simulation: Simulation, layout: Layout) -> str:
    """Use and peak memory; devices that look the same share a line."""
    peaks = np.asarray(simulation.memory.per_device)
    rows: list[tuple[str, str, str, str]] = []
    start = 0
    use = simulation.utilisation

    def looks(device: int) -> tuple[object, ...]:
        here = tuple(name for name, slot in layout.items() if slot.start <= device < slot.end)
        return here, round(float(use[device]), 2), float(peaks[device])

    for device in range(1, len(use) + 1):
        if device < len(use) and looks(device) == looks(start):
            continue
        here, share, peak = looks(start)
        names = ", ".join(here) if isinstance(here, tuple) else ""  # pyright: ignore[reportUnknownArgumentType]
        taken = size(peak) if isinstance(peak, float) and peak else "not in the profile" if here else "-"
        rows.append((str(start) if device == start + 1 else f"{start}-{device - 1}", f"{share:.0%}", taken, names or "idle"))
        start = device
    shown = rows if len(rows) <= 16 else [*rows[:8], ("…", "", "", f"{len(rows) - 16} more"), *rows[-8:]]
    return table(("device", "works", "peak memory", "components"), shown)


def report(plan: Plan, explanation: Explanation, front: Sequence[Step]) -> str:
    """The chosen plan, and why."""
    best = plan.best
    lines = [
        f"best of {plan.simulated} simulated in {plan.seconds:.2f} s: {placed(best.layout)} ({best.mode}; "
        f"chunks {best.options.chunks}, stages {best.options.stages}): {seconds(best.step_s)} a step",
        _certificate(plan),
        f"bound by: {explanation.bottleneck}",
    ]
    lines += _beyond(explanation)
    for other, why in explanation.slower:
        more = f"{other.step_s / best.step_s - 1:+.1%}"
        lines.append(f"not {placed(other.layout)} ({other.mode}), {seconds(other.step_s)}, {more}: {why}")
    for count, step_s in explanation.more:
        lines.append(f"with {count} devices: {seconds(step_s)} a step, {best.step_s / step_s:.2f}x as fast")
    for flip in explanation.flips:
        sure = "; the measurement does not rule that out, measure it again" if flip.within_error else ""
        lines.append(f"if {flip.component} took {flip.factor:.2f}x as long, {placed(flip.other.layout)} would be better{sure}")
    if not explanation.flips:
        lines.append("the choice stays the same if any one cost is half or twice what was measured")
    if len(front) > 1:
        lines += ["", table(("max_lag", "staleness", "step", "placement"), [_point(each) for each in front])]
    return "\n".join(lines)


def _beyond(explanation: Explanation) -> list[str]:
    """What of the choice nobody has measured, and the best of what was."""
    if not explanation.unmeasured:
        return []
    parts: list[str] = []
    for name, processes, least, most in explanation.unmeasured:
        known = str(least) if least == most else f"{least} to {most}"
        parts.append(f"{name} with {processes} processes ({known} measured)")
    best = explanation.measured_best
    safe = "" if best is None else f"; the best of what was measured is {placed(best.layout)}: {seconds(best.step_s)} a step"
    return [f"drawn further than measured: {', '.join(parts)}: profile such a run before you rely on it{safe}"]


def measured(observed: Sequence[Observed]) -> str:
    """What traced runs took, beside what the simulator says of the same placement."""
    rows: list[tuple[str, str, str, str, str]] = []
    for run in observed:
        took = median(run.step_s)
        said = simulate(run.workload, run.machine, run.layout).step_s
        rows.append((run.source, placed(run.layout), seconds(took), seconds(said), f"{said / took - 1:+.0%}"))
    return table(("trace", "placement", "measured", "simulated", "error"), rows)


def seconds(value: float) -> str:
    """A time with three digits."""
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"


def _point(each: Step) -> tuple[str, str, str, str]:
    return str(each.max_lag), f"{each.staleness:.2f}", seconds(each.best.step_s), f"{placed(each.best.layout)} ({each.best.mode})"


def _certificate(plan: Plan) -> str:
    if plan.proven:
        return "proven: no range of devices for each component has a shorter step in the simulator"
    bound = seconds(plan.bound_s)
    return f"not proven: no step can be shorter than {bound}, so that another layout could save {plan.gap:.1%} at most"
