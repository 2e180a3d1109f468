"""Tasks × initial states × seeds in one table, published protocols repeated, and films of what failed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.evaluation import EvalReport
from rlinf.runners import compose_recipe

CONFIGS = Path(__file__).parents[2] / "apps/embodied/config"

SLOTS = ("env.train.env_type=tabletop", "env.train.init_params={task: slots, obs_mode: state}", "env.train.max_episode_steps=8")
LOCAL = ("cluster.backend=local", "cluster.component_placement={actor: '0', rollout: '0', env: '0'}")
TASKS = ("env.eval.tasks=[red,blue]", "env.eval.episodes=2", "env.eval.seeds=[0,1]", "env.eval.initial_states=id")


@pytest.fixture
def evaluated(app: Any, tiny: list[str]) -> Any:
    """Evaluates a random policy on tabletop's slots: what it says, and its exit code."""

    def run(*args: str) -> tuple[int, str]:
        return app.evaluate_here(*tiny, *LOCAL, f"runner.logger.log_path={app.logs}", *args)

    return run


def test_tasks_and_seeds_are_one_table_that_can_be_repeated(evaluated: Any, tmp_path: Path) -> None:
    code, said = evaluated(*SLOTS, *TASKS)
    assert code == 0, said
    file = Path(said.split()[-1])
    report = EvalReport.load(file)
    assert [(e.task, e.init_id, e.seed) for e in report.protocol.work_list()] == [
        (task, init, seed) for seed in (0, 1) for task in ("red", "blue") for init in (0, 1)
    ]
    rows = {line.split()[0]: line.split()[1] for line in said.splitlines() if line.startswith(("red", "blue", "all"))}
    assert rows == {"red": "4", "blue": "4", "all": "8"}
    summary = json.loads(file.read_text())
    assert [(task["task"], task["n"], len(task["wilson_95"])) for task in summary["tasks"]] == [("red", 4, 2), ("blue", 4, 2)]
    assert "eval.py --config-dir" in summary["command"]
    assert summary["config"]["env"]["eval"]["tasks"] == ["red", "blue"]
    # From the file alone, on other numbers of environments: the recipe's own are Pendulum's.
    file = file.rename(tmp_path / "published.json")
    code, said = evaluated(*SLOTS, "--protocol", str(file), "env.eval.total_num_envs=3")
    assert code == 0, said
    assert EvalReport.load(Path(said.split()[-1])) == report
    code, said = evaluated(*SLOTS, "--protocol", str(file), "env.eval.seeds=[2]")
    assert (code, "env.eval.seeds: the file of --protocol says it" in said) == (2, True)


def test_a_protocol_that_can_not_be_repeated_is_refused_with_what_differs(evaluated: Any, tmp_path: Path) -> None:
    code, said = evaluated(*SLOTS, *TASKS)
    assert code == 0, said
    published = EvalReport.load(Path(said.split()[-1])).protocol
    # An environment with a parameter that this version does not write.
    older = {**published.env, "init_params": {k: v for k, v in published.env["init_params"].items() if k != "image_size"}}
    file = tmp_path / "published.json"
    file.write_text(json.dumps(dataclasses.replace(published, env=older).to_dict()))
    code, said = evaluated(*SLOTS, "--protocol", str(file))
    assert code == 2, said
    assert "--protocol: expected " in said
    assert "env.init_params.image_size is only here" in said


def test_a_suite_is_one_table(evaluated: Any, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("near: {env.eval.tasks: [red]}\nfar: {env: {eval: {tasks: [green, blue], max_episode_steps: 4}}}\n")
    code, said = evaluated(*SLOTS, "env.eval.episodes=2", "--suite", str(suite))
    assert code == 0, said
    found = json.loads(Path(said.split()[-1]).read_text())
    assert [(row["name"], row["n"]) for row in found["rows"]] == [
        ("near", 2),
        ("far/green", 2),
        ("far/blue", 2),
        ("far", 4),
        ("all", 6),
    ]
    for name, entry in found["entries"].items():
        report = EvalReport.load(Path(entry["summary"]))
        assert report.protocol.hash == entry["protocol"]
        assert report.protocol.max_episode_steps == {"near": 8, "far": 4}[name]
    suite.write_text("near: {env.eval.task: red}\nfar: {env.eval.episodes: 0}\n")
    code, said = evaluated(*SLOTS, "--suite", str(suite))
    assert code == 2, said
    assert "\n  near: env.eval.task: unknown key. Did you mean 'tasks'" in said
    assert "\n  far: env.eval.episodes: expected more than 0, found 0" in said


def test_checkpoints_are_compared_on_the_same_episodes(app: Any, tiny: list[str], tmp_path: Path) -> None:
    short = ("runner.max_steps=2", "runner.save_interval=1", "runner.val_check_interval=0", "env.eval.episodes=2")
    code, said = app.train_here(*tiny, *LOCAL, *SLOTS, *short)
    assert code == 0, said
    one, two = (str(app.logs / f"tiny/checkpoints/global_step_{step}") for step in (1, 2))
    code, said = app.evaluate_here(one, two, "env.eval.episodes=4", "env.eval.tasks=[red,blue]")
    assert code == 0, said
    first, second = (EvalReport.load(next(Path(f"{each}_eval").rglob("summary.json"))) for each in (one, two))
    assert first.protocol == second.protocol
    table = said[said.index(f"comparison (protocol {first.protocol.hash})") :].splitlines()
    assert [line.split()[:2] for line in table[2:4]] == [[one, "8"], [two, "8"]]
    assert table[4] == f"{two} against {one}: {second.compared(first).told(rate=True)}"
    assert "of 8 pairs" in table[4]
    assert [line.partition(": ")[0] for line in said.splitlines() if ": eval/" in line] == [one, two]
    written = json.loads(Path(table[5]).read_text())
    assert (Path(table[5]).parent, written["against"]) == (Path(f"{one}_eval"), one)
    assert written["differences"] == {two: second.compared(first).to_dict()}
    assert [EvalReport.load(Path(file)) for file in written["summaries"].values()] == [first, second]
    code, said = app.evaluate_here(one, f"{app.logs}/tiny/checkpoints/global_step_1")
    assert (code, "is named twice. Name each checkpoint once" in said) == (2, True)
    code, said = app.evaluate_here(one, f"{two}0")
    assert (code, f"CHECKPOINT: there is nothing at '{two}0'" in said) == (2, True)
    suite = tmp_path / "suite.yaml"
    suite.write_text("near: {env.eval.tasks: [red]}\n")
    code, said = app.evaluate_here(one, two, "--suite", str(suite))
    assert (code, "--suite: a suite is of one policy" in said) == (2, True)


def test_failures_are_filmed(evaluated: Any) -> None:
    code, said = evaluated(*SLOTS, *TASKS, "env.eval.video_cfg={save_video: true, failures: 3}")
    assert code == 0, said
    (folder,) = [Path(line) for line in said.splitlines() if line.endswith("failures")]
    films = sorted(file.name for file in folder.iterdir())
    assert films == ["failure_blue_init0_seed0.mp4", "failure_red_init0_seed0.mp4", "failure_red_init1_seed0.mp4"]
    assert all(file.stat().st_size > 1000 for file in folder.iterdir())
    # What is there is of the last evaluation.
    _, said = evaluated(*SLOTS, *TASKS, "env.eval.video_cfg={save_video: true, failures: 1}")
    assert [file.name for file in folder.iterdir()] == films[1:2]
    _, said = evaluated(*SLOTS, *TASKS)
    assert ("/video/" in said, folder.exists()) == (False, False)


def test_a_run_films_failures_at_its_end(app: Any, tiny: list[str]) -> None:
    films = "env.eval.video_cfg={save_video: true, failures: 2}"
    code, said = app.train_here(*tiny, *LOCAL, *SLOTS, "env.eval.episodes=4", films, "runner.max_steps=1")
    assert code == 0, said
    folder = app.logs / "tiny/video/failures"
    assert f"failures    {folder}\n" in said
    rows = [" ".join(line.split()[:2]) for line in said.splitlines() if line.startswith(("0 red", "1 green", "2 blue", "all "))]
    assert rows == ["0 red", "1 green", "2 blue", "all 4"]
    assert [file.name for file in sorted(folder.iterdir())] == ["failure_init0_seed1.mp4", "failure_init1_seed1.mp4"]


@pytest.mark.parametrize(
    ("recipe", "override", "params"),
    [
        ("tabletop_pi0_ppo", "env.eval.init_params.goals=[green]", {"task": "slots", "obs_mode": "rgb", "goals": ["green"]}),
        # What the recipe says of its evaluations stays alone, and so does another environment.
        ("franka_sim_camera_rlpd", "env.eval.init_params.camera=32", {"task", "camera", "reward_mode", "simulation"}),
        ("tabletop_pi0_ppo", "env.eval={env_type: gymnasium, init_params: {env_id: Pendulum-v1}}", {"env_id": "Pendulum-v1"}),
    ],
)
def test_a_parameter_of_evaluations_changes_no_other(recipe: str, override: str, params: Any) -> None:
    """Those that are left out are those of training, not those that the environment has by default."""
    found = compose_recipe(CONFIGS, recipe, [override]).data["env"]["eval"]["init_params"]
    assert (set(found) if isinstance(params, set) else found) == params
