"""What a recipe can do with environments: wrappers, recording, other processes, numbered initial states."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from rlinf.envs.offline import LeRobot
from rlinf.envs.recording import read_numpy

TABLES = (
    "--config-name",
    "maniskill_ppo_mlp_local",
    "runner.experiment_name=tables",
    "runner.max_steps=1",
    "runner.val_check_interval=0",
    "env.train.total_num_envs=4",
    "env.train.max_steps_per_rollout_epoch=6",
    "env.train.max_episode_steps=6",
    "env.eval.max_episode_steps=6",
    "env.eval.total_num_envs=4",
    "env.eval.final_episodes=5",
    "env.eval.video_cfg.save_video=false",
    "actor.model.hidden_sizes=[8]",
    "actor.global_batch_size=12",
    "algorithm.update_epoch=1",
    "actor.optim.lr_scheduler=constant",
)
PICK_PLACE = ("env.train.env_type=tabletop", "env.train.init_params={task: pick_place}")
CONDITIONS = "[{type: action_format, format: metaworld}, {type: latency, steps: 2}, {type: shaped_reward, use_step_penalty: true}]"


def summary(app: Any) -> dict[str, Any]:
    return json.loads((app.logs / "tables" / "summary.json").read_text())


def metrics(app: Any) -> dict[str, float]:
    line = json.loads((app.logs / "tables" / "metrics.jsonl").read_text().splitlines()[0])
    return {key: value for key, value in line.items() if "time" not in key and "memory" not in key}


def succeed(app: Any, *overrides: str, env: tuple[str, str] = PICK_PLACE) -> str:
    code, said = app.train_here(*TABLES, *env, *overrides)
    assert code == 0, said
    return said


def test_wrappers_and_a_recording_of_what_the_policy_did_and_a_resume(app: Any) -> None:
    data = app.logs / "data"
    options = (f"env.train.wrappers={CONDITIONS}", f"env.train.data_collection={{save_dir: {data}, export_format: numpy}}")
    succeed(app, *options, f"env.eval.data_collection={{save_dir: {data}, export_format: numpy}}")
    assert metrics(app)["env/return"] == -6, "one for each step"
    stated = summary(app)["protocol"]["env"]
    assert [wrapper["type"] for wrapper in stated["wrappers"]] == ["action_format", "latency"]
    assert {folder.name for folder in data.iterdir()} == {"train_0", "train_1", "eval_0", "eval_1"}
    train, evaluated = sorted(data.glob("train_*/*.npz")), sorted(data.glob("eval_*/*.npz"))
    assert (len(train), len(evaluated)) == (4, 5)
    episode = read_numpy(train[0])
    assert episode.actions.shape == (6, 7), "as the policy wrote them"
    assert episode.rewards.min() >= 0, "the task's own rewards"
    before = {path: path.read_bytes() for path in train}
    succeed(app, *options, "runner.max_steps=2", f"runner.resume_dir={app.logs}/tables/checkpoints/global_step_1")
    after = sorted(data.glob("train_*/*.npz"))
    assert len(after) == 8
    assert all(path.read_bytes() == bytes_ for path, bytes_ in before.items())


def test_a_recorded_dataset_is_read_back(app: Any) -> None:
    pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
    collection = f"{{save_dir: {app.logs / 'data'}, finalize_interval: 3, max_episodes: 2, task: put it there}}"
    succeed(app, "runner.max_steps=2", f"env.train.data_collection={collection}")
    for folder in ("train_0", "train_1"):
        source = LeRobot(path=str(app.logs / "data" / folder)).open()
        episodes = list(source.episodes())
        assert [len(episode) for episode in episodes] == [6, 6], "the file was completed when the run ended"
        assert {episode.action.shape for episode in episodes} == {(6, 4)}
        assert {episode.task for episode in episodes} == {"put it there"}


@pytest.mark.parametrize("env_type", ["parallel", "remote"])
def test_environments_in_other_processes_give_the_same_numbers_and_the_same_protocol(app: Any, env_type: str) -> None:
    succeed(app)
    plain, protocol = metrics(app), summary(app)["protocol"]
    params = {"parallel": "processes: 2", "remote": f"python: {sys.executable}"}[env_type]
    inner = "env: tabletop, params: {task: pick_place}"
    succeed(app, env=(f"env.train.env_type={env_type}", f"env.train.init_params={{{inner}, {params}}}"))
    assert metrics(app) == plain
    assert summary(app)["protocol"] == protocol


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env_type=parallel", "init_params={env: tabletp}"), "env.train.init_params.env: no environment named 'tabletp'"),
        (
            ("env_type=parallel", "init_params={env: tabletop, params: {task: reech}}"),
            "env.train.init_params.params.task: no choice",
        ),
        (("env_type=remote", "init_params={env: tabletop, python: /no/python}"), "env.train.init_params.python: no interpreter"),
        (("wrappers=[{type: latncy}]",), "env.train.wrappers[0].type: no environment wrapper named 'latncy'"),
        (("wrappers=[{type: latency, steps: -1}]",), "env.train.wrappers[0].steps: expected 0 ≤ least ≤ most"),
        (("wrappers=[{type: my_wrappers:Mine}]",), "env.train.wrappers[0]"),
        (("data_collection={export_format: numpy}",), "env.train.data_collection.save_dir: missing"),
        (("init_params={task: reach, goal: red}",), "env.train.init_params.goal: unknown key"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key_before_any_worker_starts(app: Any, overrides: Any, message: str) -> None:
    plain = () if any("env_type" in each for each in overrides) else PICK_PLACE
    code, said = app.train_here(*TABLES, *plain, *(f"env.train.{each}" for each in overrides))
    assert code == 2
    assert message in said
    assert "starting workers" not in said


def test_a_format_of_another_simulator_is_refused_before_anything_is_trained(app: Any) -> None:
    code, said = app.train_here(*TABLES, *PICK_PLACE, "env.train.wrappers=[{type: action_format, format: libero}]")
    assert code == 2
    assert "env.train.wrappers[0].format: made for other actions than the 4 numbers of the environment" in said


def test_numbered_states_in_order(app: Any) -> None:
    """Four groups take the states 0 to 3 and then 4 to 7, each with its own picture of the table."""
    data = app.logs / "data"
    succeed(
        app,
        "runner.max_steps=2",
        "env.train.use_ordered_reset_state_ids=true",
        "env.train.use_fixed_reset_state_ids=true",
        f"env.train.data_collection={{save_dir: {data}, export_format: numpy}}",
    )
    starts = [read_numpy(path).observations["states"][0] for path in sorted(data.glob("train_*/*.npz"))]
    from rlinf.envs import Tabletop

    tables = Tabletop(task="pick_place").make(8, max_episode_steps=6, ignore_terminations=False, render=False)
    expected = tables.reset(options={"init_id": _in_turn(tables), "task": _tasks(tables)})[0]["states"]
    assert {tuple(row) for row in np.round(starts, 5).tolist()} == {tuple(row) for row in np.round(expected, 5).tolist()}


def _tasks(tables: Any) -> list[int]:
    return [number % len(tables.metadata["tasks"]) for number in range(8)]


def _in_turn(tables: Any) -> list[int]:
    return [number // len(tables.metadata["tasks"]) for number in range(8)]
