"""Why a plan is what it is: the other ones, the device that bounds it, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rlinf.core.errors import PlacementError
from rlinf.scheduler.planner.choices import kind
from rlinf.scheduler.planner.costs import SURE
from rlinf.scheduler.planner.layout import Layout, Machine
from rlinf.scheduler.planner.search import Candidate, Plan, Space, search
from rlinf.scheduler.planner.simulation.simulator import Cores, Options, Simulation, step_seconds
from rlinf.scheduler.planner.timeline import seconds
from rlinf.scheduler.planner.workload import Workload

FACTORS = (1.1, 1.25, 1.5, 2.0)
"""By how much a cost is changed, up and down, to see whether the choice holds."""
RIVALS = 6
"""Other layouts that are looked at for whether they would be better if a cost were another one."""
SEEDS = 5
BUSY = 0.9
"""Of the time; what works so much bounds the step."""
LITTLE = 0.02
"""Of a step; what makes less of a difference is not worth a word."""


class Flip(NamedTuple):
    """A cost that, if it were so many times as large, would make another layout the best."""

    component: str
    factor: float
    other: Candidate
    within_error: bool
    """The measurement is not sure enough to rule that out."""


class Step(NamedTuple):
    """A point of a front: the best step with so many weight versions of staleness."""

    max_lag: int
    staleness: float
    best: Candidate


class More(NamedTuple):
    """What another machine would give."""

    devices: int
    cores: int
    """Of a node, which the processes on virtual devices share; 0: as many as they need."""
    step_s: float
    """Of the best layout on it."""
    unmeasured: bool
    """A component has a number of processes there with which it was never measured."""


class Unmeasured(NamedTuple):
    """A component that has a number of processes with which it was never measured: its time is a line drawn further."""

    component: str
    processes: int
    least: int
    most: int
    """With so many it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a person who chooses a placement, or buys devices, wants to know of it."""

    bottleneck: str
    """The device that works most, who is on it, and what they wait for otherwise."""
    slower: tuple[tuple[Candidate, str], ...]
    """The next best layouts, and what makes each slower."""
    more: tuple[More, ...]
    """One more device, or node where there are several, and twice as many; of virtual ones twice as many, and twice the cores."""
    flips: tuple[Flip, ...]
    """The smallest change of each cost that would change the choice, smallest first."""
    unmeasured: tuple[Unmeasured, ...] = ()
    """What of the choice was not measured."""
    measured_best: Candidate | None = None
    """If anything was not: the best layout of what was; None if there is none."""


def interval(workload: Workload, machine: Machine, layout: Layout, options: Options) -> tuple[float, float]:
    """Seconds between which a step is expected at 95 %, as costs are known with an error, and lengths are drawn.

    The changes of the step by each cost at the end of its confidence interval, and by other lengths, are added in quadrature.
    """
    base = step_seconds(workload, machine, layout, options)
    squares = 0.0
    for name, slot in layout.items():
        error = workload.components[name].costs[slot.parallel].error
        if error:
            changed = step_seconds(workload.slowed(name, 1 + error), machine, layout, options)
            squares += (changed - base) ** 2
    if any(component.varies for component in workload.components.values()):
        drawn = [step_seconds(workload, machine, layout, replace(options, seed=options.seed + at)) for at in range(SEEDS)]
        squares += (SURE * float(np.std(drawn, ddof=1))) ** 2
    half = math.sqrt(squares)
    return max(0.0, base - half), base + half


def explain(workload: Workload, machine: Machine, plan: Plan, space: Space) -> Explanation:
    """Why this plan, and what would change it."""
    simulation = plan.best.simulation(workload, machine)
    return Explanation(
        bottleneck=bottleneck(workload, plan.best.layout, simulation),
        slower=tuple((each, _why(workload, machine, simulation, each)) for each in plan.others[:2]),
        more=_more(workload, machine, space, plan),
        flips=_flips(workload, machine, plan),
        unmeasured=(beyond := unmeasured(workload, plan.best.layout)),
        measured_best=_measured_best(workload, machine, space) if beyond else None,
    )


def unmeasured(workload: Workload, layout: Layout) -> tuple[Unmeasured, ...]:
    """The components that have other numbers of processes than those that were measured."""
    found: list[Unmeasured] = []
    for name, slot in layout.items():
        known = workload.measured_processes(name, slot.parallel)
        if known is not None and not known[0] <= slot.processes <= known[1]:
            found.append(Unmeasured(name, slot.processes, *known))
    return tuple(found)


def _measured_best(workload: Workload, machine: Machine, space: Space) -> Candidate | None:
    """The best layout that has no more and no fewer processes than were measured."""
    for name, component in workload.components.items():
        measured = [workload.measured_processes(name, size) for size in component.costs]
        known = [each for each in measured if each is not None]
        if known:
            counts = range(min(low for low, _ in known), max(high for _, high in known) + 1)
            allowed = tuple(each for each in counts if not component.processes or each in component.processes)
            if not allowed:  # which would mean any number
                return None
            workload = workload.replaced(name, processes=allowed)
    try:
        return search(workload, machine, space).best
    except PlacementError:
        return None


def bottleneck(workload: Workload, layout: Layout, simulation: Simulation) -> str:
    """The device that works most, and what bounds the step."""
    if simulation.cores is not None and simulation.cores.use >= BUSY:
        return _by_cores(simulation.cores)
    use = simulation.utilisation
    device = int(np.argmax(use))
    here = [name for name in workload.order if layout[name].start <= device < layout[name].end]
    text = f"device {device} ({', '.join(here)}) works {use[device]:.0%} of the time"
    if use[device] > 1.005:
        text += ", as components that take no locks work beside each other on a virtual device"
    if use[device] < BUSY:
        text = f"{text}: no device bounds the step, but that components wait for each other"
    else:
        shares = {name: simulation.work_s[name] / layout[name].count / simulation.makespan_s for name in here}
        heaviest = max(shares, key=lambda name: shares[name])
        text = f"{text}, {shares[heaviest]:.0%} on {heaviest}"
    if simulation.cores is None or simulation.cores.slower < 1 + LITTLE:
        return text
    return f"{text}; {_by_cores(simulation.cores)}"


def _by_cores(cores: Cores) -> str:
    text = f"the CPU cores of a node ({cores.of_a_node}) work {cores.use:.0%} of the time"
    if cores.use >= BUSY:
        text += ": more virtual accelerators would not make it faster, more cores would"
    if cores.slower < 1 + LITTLE:
        return text
    return f"{text}; with a core for each process this placement would be {cores.slower:.2f}x as fast"


def front(workload: Workload, machine: Machine, space: Space, lags: Sequence[int] = (0, 1, 2)) -> tuple[Step, ...]:
    """The best layout for each lag that is better than all with a smaller one: throughput against staleness."""
    found: list[Step] = []
    for lag in lags:
        best = search(workload, machine, replace(space, max_lag=lag)).best
        staleness = best.simulation(workload, machine).staleness[0]
        if not found or best.step_s < found[-1].best.step_s * (1 - 1e-9):
            found.append(Step(lag, staleness, best))
    return tuple(found)


def _why(workload: Workload, machine: Machine, best: Simulation, other: Candidate) -> str:
    """What of another layout takes the time that it has in excess: more work, or more waiting."""
    simulation = other.simulation(workload, machine)
    grown = {name: simulation.work_s[name] - best.work_s[name] for name in workload.order}
    most = max(grown, key=lambda name: grown[name])
    idle = float(simulation.makespan_s * machine.devices - sum(simulation.work_s.values())) / simulation.steps
    idle_best = float(best.makespan_s * machine.devices - sum(best.work_s.values())) / best.steps
    if grown[most] / simulation.steps > idle - idle_best:
        return f"devices work {seconds(grown[most] / simulation.steps)} longer on {most} in a step, added up"
    bound = bottleneck(workload, other.layout, simulation)
    return f"devices wait {seconds(idle)} of a step, added up, instead of {seconds(idle_best)}; {bound}"


def _more(workload: Workload, machine: Machine, space: Space, plan: Plan) -> tuple[More, ...]:
    """What larger machines would give."""
    single = not machine.per_node or machine.per_node == machine.devices
    # Of several nodes whole ones are added; a single one may have any number of devices.
    counts = (machine.devices + (1 if single else machine.per_node), 2 * machine.devices)
    larger = [replace(machine, devices=count, per_node=0 if single else machine.per_node) for count in dict.fromkeys(counts)]
    if machine.virtual and machine.cores:
        # They are only names; what can be bought are cores.
        larger = [larger[-1], replace(larger[-1], cores=2 * machine.cores)]
    found: list[More] = []
    known = [each.layout for each in (plan.best, *plan.others)[:3]]
    for other in larger:
        try:
            best = search(workload, other, space, known=known).best
        except PlacementError:
            continue
        found.append(More(other.devices, other.cores, best.step_s, bool(unmeasured(workload, best.layout))))
    return tuple(found)


def _flips(workload: Workload, machine: Machine, plan: Plan) -> tuple[Flip, ...]:
    # The best of each kind: what is hardly different is hardly better under any change.
    of_kinds = {kind(each.layout): each for each in reversed(plan.others)}
    rivals = [each for each in plan.others if each in of_kinds.values()][:RIVALS]
    found: list[Flip] = []
    for name, slot in plan.best.layout.items():
        error = workload.components[name].costs[slot.parallel].error
        for factor in sorted((f for each in FACTORS for f in (each, 1 / each)), key=lambda f: abs(math.log(f))):
            changed = workload.slowed(name, factor)
            best = step_seconds(changed, machine, plan.best.layout, plan.best.options)
            # Who has more to do is not faster, and who has less saves no more than its share.
            near = [each for each in rivals if each.step_s * min(1.0, factor) < best]
            took = [(step_seconds(changed, machine, each.layout, each.options), each) for each in near]
            other = min(took, key=lambda pair: pair[0], default=None)
            if other is not None and other[0] < best * (1 - LITTLE):
                found.append(Flip(name, factor, other[1], abs(factor - 1) <= error))
                break
    return tuple(sorted(found, key=lambda flip: abs(math.log(flip.factor))))
