"""The search against all layouts there are, and what it says of its choice."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_brute_force import check_against_brute_force, split
from planner_cases import EMBODIED, REASONING, embodied, part, pipeline

from rlinf.core.errors import PlacementError
from rlinf.scheduler.planner import (
    Channel,
    Component,
    LinearCost,
    Loop,
    Machine,
    Memory,
    Options,
    Slot,
    Space,
    Workload,
    explain,
    front,
    interval,
    search,
    simulate,
)
from rlinf.scheduler.planner.bounds import Bounds, Share
from rlinf.scheduler.planner.explain import Unmeasured
from rlinf.scheduler.planner.report import report

COSTS = st.builds(
    LinearCost,
    fixed_s=st.sampled_from((0.0, 0.1, 1.0)),
    item_s=st.sampled_from((0.1, 0.5, 1.0, 3.0)),
    off_line=st.sampled_from(((), ((0.5, 0.3), (2.0, -0.2)))),
)


@st.composite
def components(draw: st.DrawFn, *, lockstep: bool = False, varies: bool = False) -> Component:
    """A component of one or two sizes of process."""
    costs = {1: draw(COSTS)}
    if draw(st.booleans()):
        costs[2] = draw(COSTS)
    memory = Memory(fixed=draw(st.sampled_from((0.0, 4.0, 7.0))))
    sigma = draw(st.sampled_from((0.0, 1.0))) if varies else 0.0
    locks = draw(st.booleans())
    places = draw(st.sampled_from((0, 1, 3))) if varies else 0
    in_order = draw(st.booleans()) if places else True
    return Component(
        items=8,
        costs=costs,
        lockstep=lockstep,
        memory=memory,
        load_s=0.2,
        offload_s=0.1,
        leaves=draw(st.booleans()),
        length_sigma=sigma,
        locks=locks,
        places=places,
        in_order=in_order,
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Two components that stream, or three of which two are a loop."""
    if draw(st.booleans()):
        channels = (Channel(producer="rollout", consumer="actor", whole=draw(st.booleans())),)
        made = {"rollout": draw(components(varies=True)), "actor": draw(components(lockstep=True))}
        return Workload(components=made, channels=channels, sync_s=draw(st.sampled_from((0.0, 0.5))))
    return Workload(
        components={"env": draw(components()), "rollout": draw(components()), "actor": draw(components(lockstep=True))},
        channels=(Channel(producer="env", consumer="actor", whole=draw(st.booleans())),),
        loops=(Loop(first="env", second="rollout", rounds=3, singly=draw(st.booleans())),),
    )


@settings(max_examples=15, deadline=None)
@given(workloads(), st.sampled_from((None, 8.0)), st.integers(0, 1), st.booleans())
def test_small_searches_are_as_good_as_brute_force(workload: Workload, memory: float | None, lag: int, virtual: bool) -> None:
    machine = Machine(devices=2, memory=memory, virtual=virtual, cores=1)
    check_against_brute_force(workload, machine, Space(chunks=(1, 2), stages=(1,), max_lag=lag))


@pytest.mark.parametrize(
    ("profile", "machine", "space"),
    [
        (EMBODIED, Machine(devices=4, per_node=2, memory=80e9), Space(chunks=(1,), stages=(1, 2))),
        (EMBODIED, Machine(devices=3, memory=48e9), Space(chunks=(1,), max_lag=1)),
        (REASONING, Machine(devices=3, memory=12e9), Space(chunks=(1, 2))),
        (REASONING, Machine(devices=3, memory=20e9), Space(chunks=(1,), max_lag=1)),
    ],
)
def test_profiles_of_whole_runs_are_as_good_as_brute_force(profile: dict[str, object], machine: Machine, space: Space) -> None:
    check_against_brute_force(Workload.of(profile), machine, space)


def test_a_process_is_on_one_node_wherever_its_component_begins() -> None:
    machine = Machine(devices=12, per_node=4)
    slots = [
        Slot(start, parallel * processes, parallel)
        for parallel in (1, 2, 3, 4, 6)
        for start in range(12)
        for processes in range(1, (12 - start) // parallel + 1)
    ]
    assert [slot for slot in slots if machine.splits(slot) != split(machine, slot)] == []


CUTS = (((1, 2), (1,)), ((1,), (1, 2)), ((2,), (2,)))
"""Chunks and stages of a search: each against one, and both together."""


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(workloads(), st.sampled_from((None, 8.0)), st.integers(0, 1), st.sampled_from(CUTS))
def test_searches_of_three_devices_are_as_good_as_brute_force(
    workload: Workload, memory: float | None, lag: int, cuts: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    chunks, stages = cuts
    check_against_brute_force(workload, Machine(devices=3, memory=memory), Space(chunks=chunks, stages=stages, max_lag=lag))


@settings(max_examples=40, deadline=None)
@given(workloads(), st.data(), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
def test_no_simulated_step_is_shorter_than_its_bound(
    workload: Workload, data: st.DataObject, chunks: int, stages: int, lag: int
) -> None:
    machine = Machine(devices=4, virtual=data.draw(st.booleans()), cores=data.draw(st.integers(0, 3)))
    layout: dict[str, Slot] = {}
    for name, component in workload.components.items():
        parallel = data.draw(st.sampled_from(sorted(component.costs)))
        count = data.draw(st.sampled_from([each for each in (1, 2, 4) if each % parallel == 0]))
        layout[name] = Slot(data.draw(st.integers(0, 4 - count)), count, parallel)
    options = Options(chunks=chunks, stages=stages, max_lag=lag)
    bound = Bounds(workload, options, machine)
    shares = {name: bound.share(name, slot) for name, slot in layout.items()}
    least = max(bound.step_s(shares), bound.crowded_s(layout, shares))
    assert simulate(workload, machine, layout, options).step_s >= least * (1 - 1e-9)


DIPS = LinearCost(item_s=0.1, off_line=((0.5, 0.3), (2.0, -0.2)))
"""0.35 s for half an item, nothing for two, and then along the line."""


def test_the_bound_of_calls_whose_number_nobody_knows_by_hand() -> None:
    assert LinearCost(fixed_s=0.2, item_s=0.1).least_of(8, calls=3) == pytest.approx(3 * 0.2 + 0.8)
    assert LinearCost(fixed_s=0.2, item_s=0.1, off_line=((1.0, 0.1), (4.0, -0.1))).least_of(8, calls=3) == pytest.approx(1.1)
    assert DIPS.least_of(8, calls=3) == 0.0
    # 0.25 s for one item and 0.3 s for four, of which an item takes 0.075; by the line it takes 0.1.
    dips = LinearCost(item_s=0.1, off_line=((1.0, 0.15), (4.0, -0.1)))
    assert dips.least_of(8, calls=3) == pytest.approx(0.6) == pytest.approx(2 * dips.seconds(4))
    assert LinearCost(item_s=0.1, off_line=((1.0, -0.05), (4.0, 0.1))).least_of(8, calls=3) == 0.0


def test_calls_below_the_line_hide_no_layout_from_the_search() -> None:
    """Found by hypothesis: the bound of requests that are taken singly was above what was simulated."""
    workload = replace(
        embodied(rounds=3),
        components={
            "env": Component(items=8, costs={1: LinearCost(item_s=0.1), 2: DIPS}),
            "rollout": Component(items=8, costs={1: DIPS}),
            "actor": part(item_s=0.1, lockstep=True),
        },
        channels=(Channel(producer="env", consumer="actor", whole=False),),
        loops=(Loop(first="env", second="rollout", rounds=3, singly=True),),
    )
    check_against_brute_force(workload, Machine(devices=2), Space(chunks=(1, 2), stages=(1,), max_lag=0))


VARIES = part(length_sigma=1.0)


@pytest.mark.parametrize(
    ("workload", "rollout_s", "actor_s", "expected"),
    [
        # In two chunks: the actor begins behind the first one, and does its last one behind the rollout's last one.
        (pipeline(whole=False), 4.0, 2.0, 4.0 + 1.0),
        (pipeline(whole=False), 4.0, 8.0, 2.0 + 8.0),
        (pipeline(whole=True), 4.0, 2.0, 4.0 + 2.0),
        (pipeline(whole=False, sync_s=0.5), 4.0, 2.0, 4.0 + 1.0 + 0.5),
        # Who has items with lengths takes all of them, and gives the first of them at once.
        (pipeline(whole=False, second=VARIES), 4.0, 2.0, 4.0 + 2.0),
        (pipeline(whole=False, first=VARIES), 4.0, 8.0, 8.0),
        (pipeline(whole=False, first=VARIES), 4.0, 2.0, 4.0 + 1.0),
    ],
)
def test_the_bound_of_a_step_by_hand(workload: Workload, rollout_s: float, actor_s: float, expected: float) -> None:
    bounds = Bounds(workload, Options(chunks=2), Machine(devices=2))
    shares = {name: Share(total / 2, total, total, total, total) for name, total in (("rollout", rollout_s), ("actor", actor_s))}
    assert bounds.step_s(shares) == pytest.approx(expected)


def test_it_collocates_what_scales_and_separates_what_does_not() -> None:
    scales = pipeline(whole=True, first=part(64), second=part(64, lockstep=True))
    assert search(scales, Machine(devices=4)).best.mode == "collocated"
    # Whatever its share is, a call of the rollout takes 8 s: it is best left alone, ahead of the actor.
    fixed = pipeline(whole=True, first=part(8, item_s=0.0, fixed_s=8.0), second=part(24, lockstep=True))
    plan = search(fixed, Machine(devices=4), Space(max_lag=1))
    assert plan.best.mode == "disaggregated"
    assert plan.best.layout["rollout"].count == 1


def test_pinned_components_stay() -> None:
    plan = search(embodied(), Machine(devices=4), Space(pinned={"env": Slot(3, 1)}))
    assert plan.best.layout["env"] == Slot(3, 1)
    assert plan.proven


def test_allowed_numbers_of_processes() -> None:
    workload = embodied().replaced("actor", processes=(1, 3))
    assert search(workload, Machine(devices=4)).best.layout["actor"].count == 3


def test_a_large_machine_has_a_gap_that_holds() -> None:
    workload = embodied(env_s=40, rollout_s=20, actor_s=60).replaced("env", items=4096).replaced("rollout", items=4096)
    plan = search(workload, Machine(devices=1024, per_node=8), Space(stages=(1, 2)))
    assert plan.bound_s <= plan.best.step_s
    assert plan.gap < 0.05
    assert plan.simulated < 400


def test_nothing_fits() -> None:
    workload = embodied().replaced("actor", memory=Memory(weights=100.0))
    with pytest.raises(PlacementError, match="no layout on 2 devices fits into 10 B each"):
        search(workload, Machine(devices=2, memory=10.0))
    with pytest.raises(PlacementError, match="actor has no place on 2 devices"):
        search(embodied().replaced("actor", processes=(5,)), Machine(devices=2))


def test_explanations() -> None:
    workload, machine, space = embodied(env_s=2.0), Machine(devices=2), Space(stages=(1,))
    plan = search(workload, machine, space)
    said = explain(workload, machine, plan, space)
    assert said.bottleneck.startswith("device 0 (env, rollout, actor) works 100% of the time, 57% on env")
    assert len(said.slower) == 2
    assert all(plan.best.step_s <= other.step_s for other, _ in said.slower)
    # All of it scales: 14 s of work on 2, 3 and 4 devices.
    assert {more.devices: more.step_s for more in said.more} == pytest.approx({3: 28 / 3, 4: 7.0})


def test_a_measurement_that_would_change_the_choice() -> None:
    # Ahead of the actor and alone, the rollout costs a device: 8 s a step. On all 4 it is 6 s, and what the rollout takes.
    rollout = Component(items=8, costs={1: LinearCost(fixed_s=3.0, error=0.5)})
    workload = pipeline(whole=True, first=rollout, second=part(24, lockstep=True))
    machine, space = Machine(devices=4), Space(max_lag=1)
    plan = search(workload, machine, space)
    assert plan.best.mode == "disaggregated"
    flips = {flip.component: flip for flip in explain(workload, machine, plan, space).flips}
    on_all = Slot(0, 4)
    assert (flips["rollout"].factor, flips["rollout"].other.layout["actor"], flips["rollout"].within_error) == (
        1 / 1.5,
        on_all,
        True,
    )
    # What was measured well is not doubted.
    assert (flips["actor"].factor, flips["actor"].other.layout["actor"], flips["actor"].within_error) == (1.5, on_all, False)


def test_what_was_never_measured_is_said() -> None:
    """8 items in calls of 8 and of 4: with one process and with two. On four devices the line is drawn further."""
    cost = LinearCost(item_s=1.0, samples=10, sizes=2, measured=(4.0, 8.0))
    workload = pipeline(whole=True, first=part(), second=Component(items=8, costs={1: cost}, lockstep=True))
    space, machine = Space(), Machine(devices=4)
    plan = search(workload, machine, space)
    assert plan.best.layout["actor"].processes == 4
    said = explain(workload, machine, plan, space)
    assert said.unmeasured == (Unmeasured("actor", 4, 1, 2),)
    assert said.measured_best is not None
    # Written by hand, the rollout may have any number: 2 s on four devices, and 4 s on the actor's two.
    assert (said.measured_best.layout["actor"].processes, said.measured_best.step_s) == (2, pytest.approx(6.0))
    text = report(machine, plan, said, ())
    assert "extrapolated: actor with 4 processes, measured with 1 to 2. Profile such a run" in text
    assert "the best of what was measured is" in text
    two = Machine(devices=2)
    within = search(workload, two, space)
    assert explain(workload, two, within, space).unmeasured == ()
    # What the profile allows was not measured: nothing is the best of what was.
    four = workload.replaced("actor", processes=(4,))
    assert explain(four, machine, search(four, machine, space), space).measured_best is None


def test_throughput_against_staleness() -> None:
    fixed = pipeline(whole=True, first=part(8, item_s=0.0, fixed_s=8.0), second=part(24, lockstep=True))
    points = front(fixed, Machine(devices=4), Space(), lags=(0, 1, 2))
    assert [point.max_lag for point in points][:2] == [0, 1]
    assert all(a.best.step_s > b.best.step_s for a, b in itertools.pairwise(points))
    assert points[0].staleness == 0


def test_intervals_grow_with_what_is_not_known() -> None:
    workload, machine = embodied(), Machine(devices=2)
    layout = {name: Slot(0, 2) for name in workload.components}
    assert interval(workload, machine, layout, Options()) == pytest.approx((10.0, 10.0))
    unsure = replace(LinearCost(item_s=1.0), error=0.25)
    low, high = interval(workload.replaced("actor", costs={1: unsure}), machine, layout, Options())
    assert (low, high) == pytest.approx((9.0, 11.0))
