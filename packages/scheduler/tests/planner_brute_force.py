"""Every layout there is, simulated: what a search must find."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from rlinf.core.errors import PlacementError
from rlinf.scheduler.planner import Machine, Plan, Slot, Space, Workload, search, simulate
from rlinf.scheduler.planner.layout import memory_use


def split(machine: Machine, slot: Slot) -> bool:
    """Whether a process has devices of two nodes."""
    firsts = range(slot.start, slot.end, slot.parallel)
    return any(machine.node(first) != machine.node(first + slot.parallel - 1) for first in firsts)


def brute_force(workload: Workload, machine: Machine, space: Space) -> float | None:
    """The best of all layouts that are ranges of devices; None if none fits."""
    # With the devices counted from the other end nothing changes, but for which process generates which items.
    mirrored = not any(component.varies for component in workload.components.values())
    slots = {
        name: [
            Slot(start, end - start, parallel)
            for start, end in itertools.combinations(range(machine.devices + 1), 2)
            for parallel in component.costs
            if (end - start) % parallel == 0 and not split(machine, Slot(start, end - start, parallel))
            if not component.processes or (end - start) // parallel in component.processes
        ]
        for name, component in workload.components.items()
    }
    found: list[float] = []
    for chosen in itertools.product(*slots.values()):
        if mirrored and chosen > tuple(replace(slot, start=machine.devices - slot.end) for slot in chosen):
            continue
        layout = dict(zip(slots, chosen, strict=True))
        if memory_use(workload, machine, layout) is not None:
            found += [simulate(workload, machine, layout, options).step_s for options in space.options(workload)]
    return min(found, default=None)


def check_against_brute_force(workload: Workload, machine: Machine, space: Space, *, exact: bool = True) -> Plan | None:
    """Searches, and compares with the best there is.

    Args:
        workload: what a step consists of.
        machine: the devices.
        space: what may be chosen.
        exact: the search looks at all layouts; otherwise it may miss the best one, and must say by how much at most.

    Returns:
        What was found; None if nothing fits.
    """
    best = brute_force(workload, machine, space)
    if best is None:
        with pytest.raises(PlacementError):
            search(workload, machine, space)
        return None
    plan = search(workload, machine, space)
    assert best * (1 - 1e-9) <= plan.best.step_s
    assert plan.bound_s <= best * (1 + 1e-9)
    if exact or plan.proven:
        assert plan.best.step_s == pytest.approx(best, rel=1e-9)
    assert plan.proven or not exact
    assert all(a.step_s <= b.step_s * (1 + 1e-8) for a, b in itertools.pairwise((plan.best, *plan.others)))
    return plan
