"""From traces to profiles, from profiles to placements, and the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from planner_cases import embodied
from planner_traces import MS, trace

from rlinf.core.commands import main
from rlinf.core.errors import ConfigError, PlacementError, RLinfError
from rlinf.core.registry import RECIPES
from rlinf.scheduler import Cluster, Worker
from rlinf.scheduler.config import read_cluster
from rlinf.scheduler.planner import LinearCost, Machine, Memory, Slot, fit, observe, simulate
from rlinf.scheduler.planner.commands import Situation, changed, expect_known
from rlinf.scheduler.planner.fitting import fitted
from rlinf.scheduler.planner.memory import memory_of, peaks
from rlinf.scheduler.planner.simulation.simulator import Options
from rlinf.scheduler.trace import Span
from rlinf.scheduler.trace.chrome import write
from rlinf.scheduler.trace.reading import CORES, RESIDENT, VIRTUAL_DEVICES, about


def test_a_profile_from_a_trace(tmp_path: Path) -> None:
    run = observe(trace(tmp_path, 2).parent)
    assert run.layout == {"actor": Slot(0, 1), "env": Slot(0, 2), "rollout": Slot(0, 2)}
    assert run.step_s == pytest.approx((0.125,) * 3)
    (loop,) = run.workload.loops
    assert (loop.first, loop.second, loop.rounds) == ("env", "rollout", 2)
    (channel,) = run.workload.channels
    assert (channel.producer, channel.consumer, channel.whole) == ("env", "actor", True)
    costs = {name: component.costs[1] for name, component in run.workload.components.items()}
    # Of a call on the whole step's items by one process; 80 and 40 ms in 2 rounds.
    assert {name: cost.item_s for name, cost in costs.items()} == pytest.approx({"env": 0.08, "rollout": 0.04, "actor": 0.06})
    assert all(cost.sizes == 1 and cost.error < 1e-9 for cost in costs.values())
    assert run.workload.components["actor"].lockstep
    assert run.workload.sync_s == pytest.approx(0.005)


def test_what_is_done_while_the_actor_trains_costs_no_time(tmp_path: Path) -> None:
    idle = observe(trace(tmp_path, 1))
    busy = observe(trace(tmp_path, 1, aside_ms=40))
    assert busy.workload.components["env"] == idle.workload.components["env"]
    # Of 90 ms beside 60 of training, 30 are left.
    longer = observe(trace(tmp_path, 1, aside_ms=90))
    left = longer.workload.components["env"].costs[1].item_s - idle.workload.components["env"].costs[1].item_s
    assert left == pytest.approx(0.03)


def test_a_trace_of_virtual_accelerators_says_so(tmp_path: Path) -> None:
    section = {
        "backend": "local",
        "virtual_accelerators": {"count": 1, "cores": 3},
        "tracer": {"enabled": True, "path": str(tmp_path / "t.json")},
    }
    with Cluster(cluster_cfg=section) as cluster:
        Worker.create_group().launch(cluster, name="actor")
        assert about(next(tmp_path.glob("*.parts"))) == {"placement": {"actor": [[0]]}, VIRTUAL_DEVICES: True, CORES: 3}
    known = about(tmp_path / "t.json")
    assert (known["placement"], known[VIRTUAL_DEVICES], known[CORES]) == ({"actor": [[0]]}, True, 3)
    assert not about(trace(tmp_path, 1))[VIRTUAL_DEVICES]


def test_memory_by_state_and_the_times_of_moves(tmp_path: Path) -> None:
    parts = {"parameters": 100, "gradients": 30, "optimizer": 200, RESIDENT: 1000}
    run = observe(trace(tmp_path, 1, move_ms=5, parts=parts, virtual=True))
    actor = run.workload.components["actor"]
    assert (actor.load_s, actor.offload_s, actor.leaves) == (pytest.approx(0.005), pytest.approx(0.005), True)
    assert actor.costs[1].item_s == pytest.approx(0.05)
    assert actor.memory == Memory(weights=100, gradients=30, optimizer=200, fixed=670)
    # The whole process is what a virtual device holds; the step pays the moves, although memory is not short.
    simulation = simulate(run.workload, run.machine, run.layout)
    assert simulation.memory.per_device == (1000.0,)
    assert simulation.step_s == pytest.approx(0.185)
    # Of a real device the process tells nothing.
    real = observe(trace(tmp_path, 1, parts=parts)).workload.components["actor"]
    assert (real.memory.fixed, real.leaves) == (0, False)


def test_caches_and_simulators_by_hand() -> None:
    one = {"parameters": 100, "cache": 70, "simulator": 40, "simulator processes": 20, RESIDENT: 300}
    two = {"parameters": 100, "cache": 70, "simulator": 30, "simulator processes": 10, RESIDENT: 270}
    single = memory_of([(Slot(0, 1), one)], virtual=True)
    assert single == Memory(weights=100, cache=70, simulator=60, fixed=90)
    assert (single.per_device(1, 1, 1.0), single.per_device(2, 1, 0.5)) == (320, 320)
    # 60 for all environments and 40 for half of them: 20 for none. The cache does not depend on them.
    both = memory_of([(Slot(0, 1), one), (Slot(0, 2), two)], virtual=True)
    assert (both.cache, both.cache_per_item) == (70, 0)
    assert (both.simulator, both.simulator_per_item) == (pytest.approx(20), pytest.approx(40))
    assert both.per_device(4, 1, 0.25) == pytest.approx(100 + 70 + 20 + 10 + 90)
    # On a real device the host's memory does not count.
    assert memory_of([(Slot(0, 1), one)], virtual=False) == Memory(weights=100, cache=70)


def test_processes_that_share_a_device_add_up() -> None:
    def said(rank: int, size: int) -> Span:
        return Span(kind="memory", who=f"env[{rank}]", thread=1, name="simulator", start=0, end=0, bytes=size)

    recorded = [said(0, 10), said(0, 40), said(1, 30), said(2, 60), said(0, 20)]
    assert peaks(recorded, "env", {0: 0, 1: 0, 2: 1}) == {"simulator": 70}
    assert peaks(recorded, "env", {0: 0, 1: 1, 2: 2}) == {"simulator": 60}


def test_two_numbers_of_processes_tell_whether_state_is_sharded() -> None:
    one, two = {"parameters": 100, "optimizer": 200}, {"parameters": 55, "optimizer": 105}
    shards = memory_of([(Slot(0, 1), one), (Slot(0, 2), two)], virtual=False)
    assert shards == Memory(weights=100, optimizer=200, sharded=True)
    # A rank of two has half of what is there.
    assert memory_of([(Slot(0, 2), two), (Slot(0, 4), {"optimizer": 60})], virtual=False).optimizer == 210
    assert memory_of([(Slot(0, 1), one), (Slot(0, 2), one)], virtual=False) == Memory(weights=100, optimizer=200)


def test_work_at_the_same_time_counts_once(tmp_path: Path) -> None:
    run = observe(trace(tmp_path, 1, both_ms=24))
    costs = {name: component.costs[1].item_s for name, component in run.workload.components.items()}
    # 80 and 64 ms of work in 120 ms.
    assert costs == pytest.approx({"env": 0.08 * 120 / 144, "rollout": 0.064 * 120 / 144, "actor": 0.06})
    assert simulate(run.workload, Machine(devices=1), run.layout).step_s == pytest.approx(0.185)


def test_a_call_that_takes_nothing_is_no_part_of_a_loop_whatever_its_name(tmp_path: Path) -> None:
    """That of rollout's own method, which does take what env has put."""
    alone, beside = (
        observe(trace(tmp_path, 1, both_ms=24, aside_ms=each, aside="generate")).workload.components for each in (0, 40)
    )
    assert beside["env"].costs == alone["env"].costs
    assert beside["rollout"].costs == alone["rollout"].costs


@pytest.mark.parametrize(("taken", "singly"), [(1, True), (2, False)])
def test_whether_requests_are_taken_one_by_one(tmp_path: Path, taken: int, singly: bool) -> None:
    assert [loop.singly for loop in observe(trace(tmp_path, 2, taken=taken)).workload.loops] == [singly]


def test_two_numbers_of_processes_tell_the_fixed_part(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    runs = fitted([trace(tmp_path / "one", 1), trace(tmp_path / "two", 2)])
    cost = runs[0].workload.components["env"].costs[1]
    assert (cost.sizes, cost.fixed_s, cost.item_s) == (2, pytest.approx(0.0, abs=1e-9), pytest.approx(0.08))
    assert runs[0].workload == runs[1].workload


def test_several_devices_for_a_process_are_a_size_of_its_own(tmp_path: Path) -> None:
    path = trace(tmp_path, 1, devices={"env": [[0]], "rollout": [[1]], "actor": [[0, 1]]})
    run = observe(path)
    assert run.layout["actor"] == Slot(0, 2, 2)
    assert list(run.workload.components["actor"].costs) == [2]


def test_components_on_nodes_are_left_out(tmp_path: Path) -> None:
    path = trace(tmp_path, 1, devices={"env": [[0]], "rollout": [[]], "actor": [[0]]})
    run = observe(path)
    assert set(run.layout) == {"env", "actor"}


def test_traces_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RLinfError, match="no such file"):
        observe(tmp_path / "trace.json")
    spans = [Span(kind="call", who="actor[0]", thread=1, name="train", start=0, end=MS) for _ in range(2)]
    with pytest.raises(RLinfError, match="found 2 steps, expected at least 3"):
        observe(write(tmp_path / "short.json", spans, {"start_ns": 0}))


def test_lines_through_measurements() -> None:
    line = fit([1, 2, 4, 1, 2, 4], [1.5, 2.0, 3.0, 1.5, 2.0, 3.0])
    assert (line.fixed_s, line.item_s, line.spread) == pytest.approx((1.0, 0.5, 0.0))
    # One slow call in three changes nothing.
    assert fit([1, 1, 1, 2, 2, 2], [1.0, 1.0, 9.0, 2.0, 2.0, 2.0]).seconds(1) == pytest.approx(1.0)
    # Processes that share cores may take longer for fewer items: what was measured is predicted, and no line falls.
    crowded = fit([1, 2], [3.0, 1.0])
    assert [crowded.seconds(items) for items in (1, 1.5, 2, 4)] == pytest.approx([3.0, 2.0, 1.0, 1.0])
    assert crowded.scaled(2.0).seconds(1) == pytest.approx(6.0)
    # Through the origin, where a negative fixed part would fit best.
    assert fit([1, 2], [1.0, 3.0]).fixed_s == 0
    assert fit([1, 2], [3.0, 1.0]).item_s == 0
    noisy = fit([1.0] * 4, [0.9, 1.1, 0.9, 1.1])
    assert noisy.spread == pytest.approx(0.1155, abs=1e-4)
    assert noisy.error == pytest.approx(1.96 * noisy.spread / 2)
    with pytest.raises(ConfigError, match="as many sizes as seconds"):
        fit([], [])


def test_the_planner_places_what_is_placed_automatically(tmp_path: Path) -> None:
    profile = embodied(env_s=1.0, rollout_s=1.0, actor_s=2.0).write(tmp_path / "profile.json")
    section = {
        "backend": "local",
        "virtual_accelerators": {"count": 2},
        "component_placement": "auto",
        "planner": {"profile": str(profile), "pinned": {"reward": {"node_group": "node", "placement": 0}}},
        "log_dir": str(tmp_path / "run"),
    }
    with Cluster(cluster_cfg=section) as cluster:
        assert cluster.placement.get_hardware_ranks("actor") == [0, 1]
        assert cluster.placement.get_world_size("reward") == 1
        assert "auto chose" in cluster.placement.describe()
        assert not (tmp_path / "run").exists()
        Worker.create_group().launch(cluster, name="actor", placement_strategy=cluster.placement.get_strategy("actor"))
        told = (tmp_path / "run" / "plan.txt").read_text()
    assert "proven" in told
    assert "instead of" in told


@pytest.mark.parametrize(
    ("planner", "devices", "problem"),
    [
        ({}, 2, r"cluster\.planner\.profile: `auto` chooses by what the components cost.*rlinf plan RECIPE"),
        ({"profile": "nowhere.json"}, 2, r"cluster\.planner\.profile: there is no 'nowhere\.json'"),
        ({"chunks": 0}, 2, r"cluster\.planner\.chunks: expected at least 1"),
        ({"profile": "PROFILE"}, None, "the planner places on accelerators, and the cluster has none"),
        ({"profile": "PROFILE", "pinned": {"critic": "0"}}, 2, r"pinned\.critic: the profile has no such component"),
        ({"profile": "PROFILE", "memory": "1KiB"}, 2, "no layout on 2 devices fits into 1 KiB each"),
    ],
)
def test_automatic_placements_that_are_refused(
    tmp_path: Path, planner: dict[str, object], devices: int | None, problem: str
) -> None:
    profile = embodied().replaced("actor", memory=Memory(weights=1e6)).write(tmp_path / "profile.json")
    planner = {key: str(profile) if value == "PROFILE" else value for key, value in planner.items()}
    section: dict[str, object] = {"backend": "local", "component_placement": "auto", "planner": planner}
    if devices is not None:
        section["virtual_accelerators"] = {"count": devices}
    with pytest.raises((ConfigError, PlacementError), match=problem):
        Cluster(cluster_cfg=section)


def test_a_traced_run_says_where_it_was(tmp_path: Path) -> None:
    section = {
        "backend": "local",
        "virtual_accelerators": {"count": 2},
        "component_placement": {"actor": "0-1", "env": "0-1:0"},
        "tracer": {"enabled": True, "path": str(tmp_path / "trace.json")},
    }
    with Cluster(cluster_cfg=section) as cluster:
        for name in ("actor", "env"):
            Worker.create_group().launch(cluster, name=name, placement_strategy=cluster.placement.get_strategy(name))
    assert about(tmp_path / "trace.json")["placement"] == {"actor": [[0], [1]], "env": [[0, 1]]}


def test_what_if(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, 1)
    assert main(["what-if", str(path), "--set", "env.devices=2", "--set", "actor.speed=2"]) == 0
    said = capsys.readouterr().out
    # env 80 → 40 ms, actor 60 → 30 ms; rollout 40 ms, weights 5 ms.
    assert "simulated 185 ms before, 115 ms after: 1.61x as fast" in said
    assert "env 0-1" in said


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("env.devices", "expected KEY=VALUE"),
        ("env.device=2", r"'env\.device' can't be changed\. Did you mean 'env\.devices'"),
        ("envs.devices=2", "no component 'envs'.*Did you mean 'env'"),
        ("env.devices=3-1", "runs backwards"),
        ("env.devices=two", "expects a whole number"),
        ("env.speed=0", "expects a positive number"),
        ("chunks=0", "expects a whole number of at least 1"),
    ],
)
def test_changes_that_are_refused(change: str, problem: str) -> None:
    situation = Situation(embodied(), {name: Slot(0, 1) for name in embodied().components}, Options())
    with pytest.raises(ConfigError, match=problem):
        changed(situation, [change])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (("devices=1",), r"^--set: 'env\.devices=1': each process of env has 2 devices, and 1 are no.*Use a multiple of 2\."),
        (
            ("devices=1", "parallel=1"),
            r"^--set: 'env\.parallel=1': in the trace each process of env has 2, and what one with 1 costs is not known",
        ),
    ],
)
def test_processes_that_no_trace_shows_are_refused(changes: tuple[str, ...], problem: str) -> None:
    workload = embodied().replaced("env", costs={2: LinearCost(item_s=1.0)})
    layout = {name: Slot(0, 2, 2) if name == "env" else Slot(0, 1) for name in workload.components}
    after = changed(Situation(workload, layout, Options()), [f"env.{change}" for change in changes])
    with pytest.raises(ConfigError, match=problem):
        expect_known(after)


def test_changes() -> None:
    before = Situation(embodied(), {name: Slot(0, 1) for name in embodied().components}, Options())
    after = changed(before, ["env.devices=2-3", "actor.parallel=2", "rollout.items=2", "env.speed=4", "max_lag=0", "stages=2"])
    assert (after.layout["env"], after.layout["actor"], after.options.stages) == (Slot(2, 2), Slot(0, 1, 2), 2)
    assert after.workload.components["rollout"].items == 16
    assert after.workload.components["env"].costs == {1: LinearCost(item_s=0.25)}


def test_plan_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, profile = trace(tmp_path, 1), tmp_path / "profile.json"
    written = ["--write", str(profile), "--trace", str(tmp_path / "plan.json")]
    assert main(["plan", "--profile", str(path), "--devices", "2", *written]) == 0
    said = capsys.readouterr().out
    for part_of_it in ("measured", "185 ms", "+0%", "best of", "proven", "bound by: device 0", "with 3 devices"):
        assert part_of_it in said
    assert "measured with one number of processes, so that k processes are taken to need 1/k of the time" in said
    # 80 ms of env by one process, which was measured, and half of it by two.
    assert ["env", "1", "80", "ms", "*", "40", "ms", "20", "ms"] in [line.split()[:9] for line in said.splitlines()]
    assert main(["plan", "--profile", str(profile), "--devices", "2"]) == 0
    assert main(["plan", "--profile", str(profile)]) != 0
    assert "--devices N" in capsys.readouterr().err


def test_a_size_of_memory_is_refused_where_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.planner\.memory: expected a size such as '80GiB', found 'much'"):
        read_cluster({"planner": {"memory": "much"}})
    assert main(["plan", "--profile", str(trace(tmp_path, 1)), "--devices", "2", "--memory", "much"]) == 2
    assert "--memory: expected a size such as '80GiB', found 'much'" in capsys.readouterr().err


def test_the_trace_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = trace(tmp_path / "a", 1), trace(tmp_path / "b", 1, actor_ms=90)
    assert main(["trace", "flow", str(first.parent)]) == 0
    assert "actor.run_training" in capsys.readouterr().out
    assert main(["trace", "diff", str(first), str(second)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[1].split()[0] == "actor.run_training"
    assert "60.00 → 90.00 ms (+50%)" in rows[1]


def test_a_recipe_where_nothing_runs_recipes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def names(registry: object) -> list[str]:
        return []

    monkeypatch.setattr(type(RECIPES), "names", names)
    assert main(["plan", "--profile", "mine.yaml", "--devices", "2"]) != 0
    assert "nothing that is installed runs 'mine.yaml'. Install rlinf-runners" in capsys.readouterr().err
