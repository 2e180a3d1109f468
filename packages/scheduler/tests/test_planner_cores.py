"""Processes on virtual accelerators share CPU cores: by hand, what holds for all, and what the planner says of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_cases import embodied, part, pipeline
from planner_traces import trace

from rlinf.core.commands import main
from rlinf.core.errors import ConfigError
from rlinf.scheduler.planner import LinearCost, Machine, Options, Slot, Space, Workload, explain, observe, search, simulate
from rlinf.scheduler.planner.report import report

FOUR = {"rollout": Slot(0, 4), "actor": Slot(0, 4)}
APART = {"rollout": Slot(0, 1), "actor": Slot(1, 1)}


def on(devices: int, cores: int, *, per_node: int = 0) -> Machine:
    return Machine(devices=devices, virtual=True, cores=cores, per_node=per_node)


def test_more_processes_than_cores_by_hand() -> None:
    """8 items of 1 s each for both: 2 s on four processes with a core for each, and twice as long on two cores."""
    alone, shared = (simulate(pipeline(whole=True), on(4, cores), FOUR) for cores in (4, 2))
    assert (alone.step_s, shared.step_s) == (4.0, 8.0)
    assert shared.ends_s == (8.0,)
    assert shared.busy_s.tolist() == [8.0] * 4
    assert shared.work_s == {"rollout": 16.0, "actor": 16.0}
    assert shared.cores == (2, 1.0, 2.0)
    assert [call.ends.max() for call in shared.calls] == [4.0, 8.0]
    # Real devices have nothing to do with cores.
    assert simulate(pipeline(whole=True), replace(on(4, 2), virtual=False), FOUR).step_s == 4.0


def test_components_beside_each_other_share_cores_while_they_overlap() -> None:
    # 4 s of the rollout alone, 4 s of both on one core, and 4 s of the actor: 4 + 8 + 4.
    simulation = simulate(pipeline(whole=False), on(2, 1), APART, Options(chunks=2))
    assert simulation.step_s == pytest.approx(16.0)
    assert simulation.cores == (1, pytest.approx(1.0), pytest.approx(16 / 12))
    assert simulate(pipeline(whole=False), on(2, 2), APART, Options(chunks=2)).step_s == pytest.approx(12.0)


def test_each_node_has_its_own_cores() -> None:
    wide = {"rollout": Slot(0, 4), "actor": Slot(0, 1)}
    # Two processes on each of two nodes: 2 s on two cores of a node, and 4 s on one; then the actor by itself.
    assert simulate(pipeline(whole=True), on(4, 2, per_node=2), wide).step_s == pytest.approx(2 + 8)
    assert simulate(pipeline(whole=True), on(4, 1, per_node=2), wide).step_s == pytest.approx(4 + 8)
    # Three of its processes are on the first node, and one on the second: who shares with most is waited for.
    uneven = {"rollout": Slot(1, 3), "actor": Slot(0, 1)}
    assert simulate(pipeline(whole=True), on(4, 1, per_node=2), uneven).step_s == pytest.approx(2 * 8 / 3 + 8)


def test_what_was_measured_on_shared_cores_is_not_slowed_twice() -> None:
    """Calls of one to four processes were measured on two cores: those of four took what they took there."""
    cost = LinearCost(item_s=1.0, samples=9, sizes=3, measured=(2.0, 8.0))
    workload = replace(pipeline(whole=True), cores=2).replaced("rollout", costs={1: cost})

    def rollout_s(processes: int, cores: int) -> float:
        layout = {"rollout": Slot(0, processes), "actor": Slot(0, 1)}
        return simulate(workload, on(8, cores), layout).step_s - 8.0

    assert [rollout_s(processes, 2) for processes in (1, 2, 4)] == pytest.approx([8.0, 4.0, 2.0])
    # Of eight nobody knows more than that four had half a core each.
    assert rollout_s(8, 2) == pytest.approx(2.0)
    # On one core four have half of what they had.
    assert rollout_s(4, 1) == pytest.approx(4.0)


def test_a_process_of_several_accelerators_takes_a_core_for_each() -> None:
    """8 items of 1 s each: two processes of two accelerators want four cores, and are no faster on two than one of them."""
    workload = pipeline(whole=True).replaced("actor", costs={2: LinearCost(item_s=1.0)})

    def actor_s(processes: int, cores: int) -> float:
        layout = {"rollout": Slot(0, 1), "actor": Slot(0, 2 * processes, 2)}
        return simulate(workload, on(4, cores), layout).step_s - 8.0

    assert [actor_s(processes, 2) for processes in (1, 2)] == pytest.approx([8.0, 8.0])
    assert [actor_s(processes, 4) for processes in (1, 2)] == pytest.approx([8.0, 4.0])


def test_a_component_that_goes_on_from_step_to_step_takes_its_cores_once() -> None:
    rollout = part(items=4, item_s=0.0, fixed_s=1.0, places=2, length_sigma=0.5, longest=4.0)
    workload = pipeline(whole=True, first=rollout, second=part(items=4, item_s=0.1))
    machine, options = on(2, 1), Options(max_lag=2, steps=6)
    shared, alone = (simulate(workload, each, APART, options) for each in (machine, on(2, 2)))
    # Two processes, of which one is at work nearly all the time.
    assert alone.makespan_s < shared.makespan_s <= alone.makespan_s + alone.work_s["actor"] + 1e-9
    assert shared.staleness == alone.staleness


SLOTS = st.tuples(st.integers(0, 3), st.integers(1, 4)).filter(lambda s: sum(s) <= 4).map(lambda s: Slot(*s))


@settings(max_examples=40, deadline=None)
@given(SLOTS, SLOTS, SLOTS, st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.booleans())
def test_no_step_is_shorter_than_its_work_on_the_cores(
    env: Slot, rollout: Slot, actor: Slot, chunks: int, stages: int, lag: int, locks: bool
) -> None:
    workload = embodied(rounds=4).replaced("env", locks=locks).replaced("actor", locks=locks)
    layout = {"env": env, "rollout": rollout, "actor": actor}
    options = Options(chunks=chunks, stages=stages, max_lag=lag)
    steps = [simulate(workload, on(4, cores), layout, options) for cores in (1, 2, 3, 12)]
    for cores, each in zip((1, 2, 3, 12), steps, strict=True):
        # 8, 4 and 8 s of work whatever the placement.
        assert each.step_s >= 20 / cores - 1e-9
        assert each.cores is not None
        assert each.cores.use == pytest.approx(20 / each.step_s / cores)
    assert all(a.step_s >= b.step_s - 1e-9 for a, b in pairwise(steps))
    assert steps[-1].step_s == pytest.approx(simulate(workload, on(4, 0), layout, options).step_s)


def test_more_virtual_accelerators_than_cores_promise_nothing() -> None:
    workload, machine, space = embodied(env_s=2.0), on(2, 2), Space(stages=(1,))
    plan = search(workload, machine, space)
    # 28 s of work on two cores.
    assert plan.best.step_s == pytest.approx(14.0)
    assert plan.proven
    said = explain(workload, machine, plan, space)
    assert [(more.devices, more.cores) for more in said.more] == [(4, 2), (4, 4)]
    assert [more.step_s for more in said.more] == pytest.approx([14.0, 7.0])
    assert said.bottleneck.startswith("the CPU cores of a node (2) work 100% of the time: more virtual accelerators would not")
    text = report(machine, plan, said, ())
    assert "with 4 virtual accelerators on the same cores: 14 s a step, no faster" in text
    assert "with 4 virtual accelerators and 4 cores for them: 7 s a step, 2.00x as fast" in text


def test_the_fewest_devices_of_those_that_come_to_the_same() -> None:
    plan = search(embodied(env_s=2.0), on(6, 2), Space(stages=(1,)))
    assert plan.best.step_s == pytest.approx(14.0)
    assert {slot.count for slot in plan.best.layout.values()} == {2}


def test_a_profile_of_virtual_accelerators_is_planned_for_its_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, profile = trace(tmp_path, 1, virtual=True, cores=2), tmp_path / "profile.json"
    assert observe(path).machine == on(1, 2)
    assert main(["plan", "--profile", str(path), "--devices", "2", "--write", str(profile)]) == 0
    from_trace = capsys.readouterr().out
    assert (
        "planned for 2 virtual accelerators; processes share the 2 CPU cores, one for each accelerator of one that works"
        in from_trace
    )
    assert "with 4 virtual accelerators on the same cores" in from_trace
    # The profile says so by itself.
    assert Workload.read(profile).cores == 2
    assert main(["plan", "--profile", str(profile), "--devices", "2"]) == 0
    assert "processes share the 2 CPU cores" in capsys.readouterr().out
    assert main(["plan", "--profile", str(profile), "--devices", "2", "--cores", "1"]) == 0
    assert "processes share the 1 CPU core," in capsys.readouterr().out
    assert main(["what-if", str(path), "--set", "env.devices=8", "--set", "rollout.devices=8"]) == 0
    assert "bound by:" in capsys.readouterr().out


def test_cores_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", str(trace(tmp_path, 1)), "--devices", "2", "--cores", "4"]) != 0
    assert "--cores: real accelerators are planned for" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="cores: expected at least 0, found -1"):
        on(2, -1)
    with pytest.raises(ConfigError, match="cores: expected at least 0, found -2"):
        replace(embodied(), cores=-2)


def test_planning_needs_neither_torch_nor_ray(tmp_path: Path) -> None:
    trace(tmp_path, 2, virtual=True, cores=2)
    script = f"""
import sys
from rlinf.core.commands import main

assert main(["plan", "--profile", {str(tmp_path)!r}, "--devices", "2", "--front"]) == 0
print("loaded:", [name for name in ("torch", "ray", "gymnasium") if name in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout.endswith("loaded: []\n")
