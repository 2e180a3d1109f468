"""Recipes that learn from recorded episodes: shrunken in one process, resumed to the bit, and, slowly, until they have learned."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_numbers import numbers_of
from safetensors.numpy import load_file

from rlinf.envs.gymnasium import Gymnasium
from rlinf.envs.recording import Recording

SHORT = (
    *("runner.max_steps=4", "runner.val_check_interval=2", "runner.save_minutes=0", "runner.keep_best=false"),
    *("env.eval.total_num_envs=2", "env.eval.episodes=2", "env.eval.final_episodes=2", "env.eval.max_episode_steps=20"),
    *("actor.global_batch_size=16", "algorithm.offline_updates=3"),
)
RECORD = ("+env.train.data_collection.export_format=numpy",)
LEAST = -450.0
"""The least mean return of three seeds."""


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """Three episodes of 20 random steps."""
    env = Gymnasium(env_id="Pendulum-v1").make(3, max_episode_steps=20, ignore_terminations=False, render=False)
    env = Recording(save_dir=str(tmp_path / "pendulum"), export_format="numpy").wrap(env)
    env.reset(seed=[1, 2, 3])
    draw = np.random.default_rng(0)
    for _ in range(20):
        env.step(draw.uniform(-2, 2, (3, 1)).astype(np.float32))
    env.close()
    return f"algorithm.demo_buffer.path={tmp_path / 'pendulum'}"


def test_iql_learns_from_a_dataset_and_never_plays(app: Any, recorded: str) -> None:
    app.run("pendulum_iql", *SHORT, "algorithm.offline_steps=4", recorded)
    rows = [row for row in app.metrics("pendulum_iql") if "train/critic_loss" in row]
    assert len(rows) == 4
    for row in rows:
        assert all(math.isfinite(row[f"train/{name}"]) for name in ("value_loss", "critic_loss", "actor_loss", "advantage_weight"))
        assert row["train/skipped"] == 0
        assert (row["env/steps"], row["train/replay_buffer/size"], row["train/demo_buffer/size"]) == (0, 0, 60)
        assert row["train/demo_buffer/return"] < 0
        assert "time/sync_weights" not in row, "that of an evaluation"
    assert sum("eval/return" in row for row in app.metrics("pendulum_iql")) >= 2


@pytest.mark.parametrize("gap", ["null", "1.0"])
def test_cql_learns_from_a_dataset_and_its_weight_if_it_is_told(app: Any, recorded: str, gap: str) -> None:
    app.run("pendulum_cql", *SHORT, "algorithm.offline_steps=4", f"algorithm.cql_gap={gap}", recorded)
    rows = [row for row in app.metrics("pendulum_cql") if "train/critic_loss" in row]
    assert [row["env/steps"] for row in rows] == [0, 0, 0, 0]
    assert all(math.isfinite(row[f"train/{name}"]) for name in ("critic_loss", "cql_penalty", "actor_loss") for row in rows)
    weights = [row["train/cql_alpha"] for row in rows if "train/cql_alpha" in row]
    assert len(set(weights)) == (0 if gap == "null" else 4), "it is fixed, or learned"


def test_awac_goes_on_with_steps_of_its_own(app: Any, recorded: str) -> None:
    app.run("pendulum_awac", *SHORT, "algorithm.offline_steps=2", recorded)
    rows = [row for row in app.metrics("pendulum_awac") if "train/critic_loss" in row]
    assert [row["train/replay_buffer/size"] for row in rows] == [0, 0, 32, 64]
    assert [row["env/steps"] for row in rows] == [0, 0, 32, 64]
    assert ["time/sync_weights" in row for row in rows] == [False, False, True, True]


def test_fine_tuning_begins_with_the_weights_of_an_offline_run(app: Any, recorded: str) -> None:
    app.run("pendulum_awac", *SHORT, "algorithm.offline_steps=4", recorded)
    start = (f"runner.ckpt_path={app.logs / 'pendulum_awac'}", f"runner.logger.log_path={app.logs / 'online'}")
    one_update = ("algorithm.offline_steps=0", "runner.max_steps=1", "algorithm.utd=0.04")
    code, said = app.train_here("--config-name", "pendulum_awac", *SHORT, *one_update, recorded, *start)
    assert code == 0, said
    before = load_file(app.logs / "pendulum_awac/checkpoints/global_step_4/actor/model.safetensors")
    after = load_file(app.logs / "online/pendulum_awac/checkpoints/global_step_1/actor/model.safetensors")
    for name, tensor in before.items():
        # The first step of Adam goes as far as the learning rate says.
        np.testing.assert_allclose(after[name], tensor, atol=1.01e-3, err_msg=name)
    assert any((after[name] != tensor).any() for name, tensor in before.items())


def test_a_run_that_resumes_is_one_without_a_break(app: Any, recorded: str) -> None:
    """It stops while it is offline, and goes on until it has played."""
    exact = (
        *SHORT,
        "env.train.auto_reset=false",
        "runner.save_interval=1",
        "runner.keep_checkpoints=9",
        "algorithm.offline_steps=2",
        recorded,
    )
    app.run("pendulum_awac", *exact)
    whole = app.logs / "pendulum_awac" / "checkpoints"
    expected = numbers_of(whole / "global_step_4")
    assert any(name.startswith("replay_0/") for name in expected)
    for step in (1, 3):
        again = app.logs / f"again_{step}"
        given = (f"runner.logger.log_path={again}", f"runner.resume_dir={whole / f'global_step_{step}'}")
        code, said = app.train_here("--config-name", "pendulum_awac", *exact, *given)
        assert code == 0, said
        found = numbers_of(again / "pendulum_awac/checkpoints/global_step_4")
        assert expected.keys() == found.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{name}, resumed after {step}")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "algorithm.demo_buffer.path=/nowhere",
            "algorithm.demo_buffer.path: expected recorded episodes at '/nowhere', found no such",
        ),
        ("actor.model.add_value_head=false", "actor.model.add_value_head: 'iql' learns what a state is worth"),
        ("algorithm.expectile=1.0", "algorithm.expectile: expected a value in (0, 1)"),
        ("algorithm.offline_steps=30", "algorithm.offline_steps: 30 iterations at the start are more than the 4 of the run"),
        ("algorithm.demo_buffer=null", "algorithm.offline_steps: 4 iterations are to learn from a dataset, and there is none"),
        (
            "env.train.init_params.env_id=MountainCarContinuous-v0",
            "'states' of '{path}' has the shape [3], that of env.train.env_type 'gymnasium' [2]",
        ),
    ],
)
def test_what_can_not_be_learned_is_refused(app: Any, recorded: str, override: str, said: str) -> None:
    code, told = app.train_here("--config-name", "pendulum_iql", *SHORT, "algorithm.offline_steps=4", recorded, override)
    assert code == 2, told
    assert said.format(path=recorded.partition("=")[2]) in " ".join(told.split())


def test_a_reward_that_is_no_number_is_named(app: Any, recorded: str) -> None:
    """By the actor, who reads the episodes, before anything is learned."""
    first = next(Path(recorded.partition("=")[2]).rglob("*.npz"))
    arrays = dict(np.load(first))
    arrays["rewards"][4] = np.nan
    np.savez(first, **arrays)
    code, told = app.train_here("--config-name", "pendulum_iql", *SHORT, "algorithm.offline_steps=4", recorded)
    assert code == 2, told
    assert "algorithm.demo_buffer: 'reward' of step 4 in episode" in " ".join(told.split())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_a_run_played_is_enough_to_learn_from(app: Any) -> None:
    """Against two controls: what those achieved who acted in the dataset, and cloning of them."""
    folder = app.logs / "dataset"
    app.run("pendulum_sac", f"+env.train.data_collection.save_dir={folder}", *RECORD, "runner.val_check_interval=0")
    found: dict[str, list[float]] = {"iql": [], "cloning": []}
    for seed in (1, 2, 3):
        given = (f"runner.seed={seed}", f"algorithm.demo_buffer.path={folder}")
        found["iql"].append(app.run("pendulum_iql", *given)["eval/return"])
        found["cloning"].append(app.run("pendulum_iql", *given, "algorithm.beta=0")["eval/return"])
    behaviour = app.metrics("pendulum_iql")[0]["train/demo_buffer/return"]
    mean = {name: sum(returns) / 3 for name, returns in found.items()}
    assert mean["iql"] >= LEAST, (found, behaviour)
    assert mean["iql"] >= max(mean["cloning"], behaviour) + 150.0, (found, behaviour)
