"""The simulator against runs that are worked out by hand, and laws that hold for all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_cases import embodied, part, pipeline

from rlinf.core.errors import ConfigError, PlacementError
from rlinf.scheduler import Flow
from rlinf.scheduler.planner import (
    Channel,
    LinearCost,
    Machine,
    Memory,
    Options,
    Route,
    Slot,
    Workload,
    draw,
    simulate,
    write_trace,
)
from rlinf.scheduler.planner.simulation.device_timelines import completions, lengths

FOUR = Machine(devices=4)
TWO = Machine(devices=2)
TOGETHER = {"rollout": Slot(0, 2), "actor": Slot(0, 2)}
APART = {"rollout": Slot(0, 1), "actor": Slot(1, 1)}


def test_two_components_on_the_same_devices_take_turns() -> None:
    # 8 items of 1 s on 2 devices: 4 s each, one after the other.
    assert simulate(pipeline(whole=True), TWO, TOGETHER).step_s == 8.0


def test_apart_without_chunks_nothing_overlaps() -> None:
    simulation = simulate(pipeline(whole=True), TWO, APART)
    assert simulation.step_s == 16.0
    assert simulation.utilisation.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("chunks", "expected"), [(1, 16.0), (2, 12.0), (4, 10.0), (8, 9.0)])
def test_chunks_overlap_as_in_a_pipeline(chunks: int, expected: float) -> None:
    # The first chunk alone, and then 8 s of training behind it.
    assert simulate(pipeline(whole=False), TWO, APART, Options(chunks=chunks)).step_s == pytest.approx(expected)


def test_every_call_pays_its_fixed_part() -> None:
    first = part(fixed_s=0.5)
    # 4 chunks of 2 items: 2.5 s each, of which the last is followed by a chunk of training.
    assert simulate(pipeline(whole=False, first=first), TWO, APART, Options(chunks=4)).step_s == pytest.approx(4 * 2.5 + 2)


@pytest.mark.parametrize(
    ("layout", "stages", "expected"),
    [
        # env 8 s on 2 devices is 4 s, rollout 2 s, actor on 4 devices 2 s.
        ({"env": Slot(0, 2), "rollout": Slot(2, 2), "actor": Slot(0, 4)}, 1, 4 + 2 + 2),
        # In stages env works all the time; the last answer of 0.25 s remains.
        ({"env": Slot(0, 2), "rollout": Slot(2, 2), "actor": Slot(0, 4)}, 2, 4 + 0.25 + 2),
        ({"env": Slot(0, 4), "rollout": Slot(0, 4), "actor": Slot(0, 4)}, 2, 2 + 1 + 2),
    ],
)
def test_a_loop_in_stages(layout: dict[str, Slot], stages: int, expected: float) -> None:
    assert simulate(embodied(), FOUR, layout, Options(stages=stages)).step_s == pytest.approx(expected)


@pytest.mark.parametrize(("env_s", "rollout_s"), [(1.0, 2.0), (9.0, 2.0)])
def test_a_request_of_each_process_is_answered_by_itself(env_s: float, rollout_s: float) -> None:
    calls = {"env": LinearCost(fixed_s=env_s), "rollout": LinearCost(fixed_s=rollout_s)}
    base = embodied(actor_s=1.0, rounds=3)
    for name, cost in calls.items():
        base = base.replaced(name, costs={1: cost})
    workload = replace(base, loops=(replace(base.loops[0], singly=True),))
    layout = {"env": Slot(0, 3), "rollout": Slot(3, 1), "actor": Slot(0, 1)}
    # The rollout is asked three times in a round, and an env that has its answer works on meanwhile.
    round_s = max(3 * rollout_s, env_s + rollout_s)
    assert simulate(workload, FOUR, layout).step_s == pytest.approx(env_s + 2 * round_s + 3 * rollout_s + 8.0)
    # In one call for all of them they wait for each other.
    assert simulate(base, FOUR, layout).step_s == pytest.approx(3 * (env_s + rollout_s) + 8.0)


def test_virtual_devices_keep_only_those_apart_that_take_their_lock() -> None:
    workload = pipeline(whole=False, first=part(locks=False), second=part(lockstep=True, locks=False))
    one, chunks = {"rollout": Slot(0, 1), "actor": Slot(0, 1)}, Options(chunks=2)
    assert simulate(workload, Machine(devices=1), one, chunks).step_s == pytest.approx(16.0)
    assert simulate(workload, Machine(devices=1, virtual=True), one, chunks).step_s == pytest.approx(12.0)
    locked = workload.replaced("rollout", locks=True).replaced("actor", locks=True)
    assert simulate(locked, Machine(devices=1, virtual=True), one, chunks).step_s == pytest.approx(16.0)


def test_rounds_that_one_simulated_round_stands_for_take_the_same_time() -> None:
    layout = {"env": Slot(0, 2), "rollout": Slot(2, 2), "actor": Slot(0, 4)}
    assert simulate(embodied(rounds=4000), FOUR, layout).step_s == pytest.approx(8.0)


def test_a_lag_lets_the_rollout_run_ahead() -> None:
    options = Options(max_lag=1, steps=4)
    simulation = simulate(pipeline(whole=True), TWO, APART, options)
    # Fill of 8 s, and then a step every 8 s: 40 s for 4 steps.
    assert simulation.ends_s == (16.0, 24.0, 32.0, 40.0)
    assert simulation.staleness[1] == 1
    assert simulate(pipeline(whole=True), TWO, APART, Options(steps=4)).staleness == (0.0, 0)


def test_new_weights_take_their_time() -> None:
    options = Options(steps=2)
    assert simulate(pipeline(whole=True, sync_s=3.0), TWO, TOGETHER, options).step_s == 11.0


def test_offloading_where_memory_is_short() -> None:
    def component(lockstep: bool) -> object:
        return part(lockstep=lockstep, memory=Memory(fixed=6.0), load_s=0.5, offload_s=0.25)

    workload = pipeline(whole=False, first=component(False), second=component(True))  # type: ignore[arg-type]
    fits = simulate(workload, Machine(devices=2, memory=12.0), TOGETHER)
    assert (fits.step_s, fits.memory.offloaded, set(fits.memory.per_device)) == (8.0, frozenset(), {12.0})
    short = simulate(workload, Machine(devices=2, memory=10.0), TOGETHER)
    assert short.memory.offloaded == {"rollout", "actor"}
    assert set(short.memory.per_device) == {6.0}
    # Each loads and leaves once in a step, and chunks overlap no more.
    assert short.step_s == pytest.approx(8 + 2 * 0.75)
    with pytest.raises(PlacementError, match="do not fit into the memory"):
        simulate(workload, Machine(devices=2, memory=5.0), TOGETHER)


def test_the_two_of_a_loop_can_not_take_turns() -> None:
    workload = embodied()
    for name in ("env", "rollout"):
        workload = workload.replaced(name, memory=Memory(fixed=6.0))
    with pytest.raises(PlacementError, match="memory"):
        simulate(workload, Machine(devices=1, memory=10.0), {name: Slot(0, 1) for name in workload.components})


def test_memory_by_state() -> None:
    state = Memory(weights=8, gradients=8, optimizer=16, cache_per_item=1, fixed=2)
    assert state.per_device(4, 2, 10) == 2 + 32 / 2 + 10 / 2
    assert replace(state, sharded=True).per_device(4, 1, 0) == 2 + 32 / 4


def test_items_with_lengths_by_hand() -> None:
    component = part(items=3, fixed_s=1.0, item_s=0.5, length_sigma=1.0)
    # Alone item i ends after L (1 s + 0.5 s for each that still goes on): 0.5 s is shared by whoever is there.
    table = completions(component, 1, np.array([1.0, 3.0, 2.0]), 1)
    assert table.tolist() == [[1 + 0.5 * 3, 2 + 0.5 * 5, 3 + 0.5 * 6]]
    assert completions(component, 1, np.array([1.0, 3.0, 2.0]), 2).tolist() == [[1 + 0.5 * 2, 2 + 0.5 * 3], [0, 3 + 0.5 * 3]]


def test_lengths_are_keyed_and_have_mean_one() -> None:
    component = part(items=40_000, length_sigma=1.0)
    drawn = lengths(component, "rollout", 3, 7)
    assert (drawn == lengths(component, "rollout", 3, 7)).all()
    assert not (drawn == lengths(component, "rollout", 4, 7)).all()
    assert drawn.mean() == pytest.approx(1.0, abs=0.03)
    assert np.log(drawn).std() == pytest.approx(1.0, abs=0.02)
    assert lengths(replace(component, longest=2.0), "rollout", 3, 7).max() == 2.0


def test_a_slow_device_holds_up_a_component_in_lockstep_only() -> None:
    workload = pipeline(whole=True, first=part(items=8, length_sigma=1e-9))
    slow = [1.0, 2.0]
    simulation = simulate(workload, TWO, TOGETHER, Options(steps=1), slowdown=slow)
    assert simulation.step_s == pytest.approx(4 * 2 + 4 * 2)
    assert simulation.busy_s.tolist() == pytest.approx([4 + 4, 8 + 8])


def test_transfers_between_nodes() -> None:
    workload = replace(
        pipeline(whole=True),
        channels=(Channel(producer="rollout", consumer="actor", whole=True, bytes_per_item=100.0),),
        within_node=Route(bytes_per_s=800.0),
        between_nodes=Route(latency_s=0.5, bytes_per_s=400.0),
    )
    assert simulate(workload, TWO, APART).step_s == pytest.approx(16 + 1)
    assert simulate(workload, Machine(devices=2, per_node=1), APART).step_s == pytest.approx(16 + 2.5)
    assert simulate(workload, TWO, TOGETHER).step_s == pytest.approx(8)


@pytest.mark.parametrize("rounds", [4, 4000])
def test_transfers_of_a_loop_are_those_of_its_items_both_ways(rounds: int) -> None:
    base = embodied(rounds=rounds)
    layout = {"env": Slot(0, 2), "rollout": Slot(2, 2), "actor": Slot(0, 4)}

    def step_s(producer: str, consumer: str) -> float:
        channel = Channel(producer=producer, consumer=consumer, bytes_per_item=100.0)
        route = Route(latency_s=1.0 / rounds, bytes_per_s=100.0)
        workload = replace(base, channels=(*base.channels, channel), within_node=route)
        return simulate(workload, FOUR, layout).step_s

    # 8 s without transfers. 8 items of 1 s on two processes, and 1 s of latency in all rounds together.
    assert step_s("env", "rollout") == pytest.approx(8 + 4 + 1)
    # Nobody waits for the last answer.
    played = min(rounds, 16)
    assert step_s("rollout", "env") == pytest.approx(8 + (4 + 1) * (played - 1) / played)


SLOTS = st.tuples(st.integers(0, 3), st.integers(1, 4)).filter(lambda s: sum(s) <= 4).map(lambda s: Slot(*s))


@settings(max_examples=40, deadline=None)
@given(SLOTS, SLOTS, SLOTS, st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
def test_work_is_conserved_and_no_device_does_two_things(
    env: Slot, rollout: Slot, actor: Slot, chunks: int, stages: int, lag: int
) -> None:
    workload = embodied(rounds=6)
    layout = {"env": env, "rollout": rollout, "actor": actor}
    simulation = simulate(workload, FOUR, layout, Options(chunks=chunks, stages=stages, max_lag=lag, steps=3))
    for name, seconds in (("env", 8.0), ("rollout", 4.0), ("actor", 8.0)):
        # Without a fixed part, work does not depend on where it is done.
        assert simulation.work_s[name] == pytest.approx(3 * seconds)
    assert sum(simulation.busy_s) == pytest.approx(60.0)
    assert simulation.utilisation.max() <= 1 + 1e-9
    assert simulation.staleness[1] <= lag
    for device in range(4):
        spans = sorted(
            (start, end)
            for call in simulation.calls
            for (low, high), start, end in zip(simulation.timelines[call.component], call.starts, call.ends, strict=True)
            if low <= device < high
        )
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))


def test_it_writes_a_trace_in_the_format_of_the_tracer(tmp_path: Path) -> None:
    layout = {"env": Slot(0, 2), "rollout": Slot(2, 2), "actor": Slot(0, 4)}
    path = write_trace(embodied(), FOUR, layout, Options(), tmp_path / "plan.json")
    worked = {(node.group, node.ranks): node.worked_s for node in Flow.from_trace(path).nodes}
    # Processes that are alike share a line: env's two, and the actor's on either half.
    assert worked == pytest.approx({("env", 1): 16.0, ("rollout", 1): 8.0, ("actor", 2): 16.0})
    about = json.loads(path.read_text())["otherData"]
    simulation = simulate(embodied(), FOUR, layout, Options(steps=4))
    assert about["simulated"] is True
    assert about["step_ends_ns"] == pytest.approx([1e9 * end for end in simulation.ends_s])
    assert "##" in draw(simulation, layout)


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ({"rollout": Slot(0, 1)}, r"component_placement\.actor: this component is not placed"),
        ({**APART, "actor": Slot(1, 2)}, "not within the 2 devices"),
        ({**APART, "actor": Slot(0, 2, 2)}, "no cost for 2 devices per process, only for 1"),
    ],
)
def test_layouts_that_are_refused(layout: dict[str, Slot], problem: str) -> None:
    with pytest.raises(PlacementError, match=problem):
        simulate(pipeline(whole=True), TWO, layout)


def test_a_process_does_not_cross_nodes() -> None:
    workload = pipeline(whole=True).replaced("actor", costs={2: LinearCost(item_s=1.0)})
    machine = Machine(devices=6, per_node=3)
    simulate(workload, machine, {"rollout": Slot(0, 1), "actor": Slot(0, 2, 2)})
    with pytest.raises(PlacementError, match="over two nodes"):
        simulate(workload, machine, {"rollout": Slot(0, 1), "actor": Slot(2, 2, 2)})


def test_profiles_go_through_a_file(tmp_path: Path) -> None:
    workload = embodied()
    assert Workload.read(workload.write(tmp_path / "profile.json")) == workload


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ('{"format": "other"}', "not a profile of the format rlinf-profile-1"),
        ("{}", "components: expected at least one component"),
        ('{"components": {"env": {"items": 1, "costs": {"one": {}}}}}', "env.costs: expected numbers of devices, found 'one'"),
        ('{"components": {"env": {"items": 1, "costs": {"1.5": {}, "1": {}}}}}', "expected numbers of devices, found '1.5'"),
        (
            '{"components": {"env": {"items": 1, "costs": {"1": {}}, "memory": {"cache": -5}}}}',
            "cache: expected at least 0 and finite",
        ),
        (
            '{"components": {"a": {"items": 1, "costs": {"1": {"item_s": -1}}}}}',
            r"components\.a\.costs.*item_s: expected at least 0",
        ),
        ('{"components": {"a": {"items": 1, "costs": {}}}}', "expected a cost for at least one number of devices"),
        (
            '{"components": {"a": {"items": 1, "costs": {"1": {}}}}, "channels": [{"producer": "a", "consumer": "b"}]}',
            "no component 'b'",
        ),
    ],
)
def test_profiles_that_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        Workload.read(path)


def test_a_circle_is_refused() -> None:
    channels = (Channel(producer="rollout", consumer="actor"), Channel(producer="actor", consumer="rollout"))
    with pytest.raises(ConfigError, match="rollout, actor wait for each other"):
        replace(pipeline(whole=True), channels=channels)
