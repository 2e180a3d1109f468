"""The recipes on states are run: shrunken, in one process; and each tells the one command where its simulator is missing."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlinf.core import installing, registry

ROOT = Path(__file__).parents[2]
LOCAL = ("cluster.backend=local", "cluster.component_placement={actor: '0', rollout: '0', env: '0'}")
SHORT = (*LOCAL, "runner.max_steps=2", "runner.val_check_interval=0", "env.eval.final_episodes=2", "env.eval.total_num_envs=2")
FIVE_STEPS = ("env.train.max_steps_per_rollout_epoch=5", "env.train.max_episode_steps=5", "env.eval.max_episode_steps=5")
RECIPES = {
    "cartpole_ppo": ["env.train.max_steps_per_rollout_epoch=16", "actor.global_batch_size=64"],
    "fetchreach_ppo_mlp": ["env.train.total_num_envs=4", *FIVE_STEPS, "actor.global_batch_size=10"],
    "halfcheetah_ppo": ["env.eval.max_episode_steps=20", "env.train.max_steps_per_rollout_epoch=20", "actor.global_batch_size=80"],
    "maniskill_grpo_mlp": ["env.train.total_num_envs=8", *FIVE_STEPS, "actor.global_batch_size=20"],
    "maniskill_reinforce_pp_mlp": ["env.train.total_num_envs=4", *FIVE_STEPS, "actor.global_batch_size=10"],
    "metaworld_mt10_ppo": [
        *("env.train.total_num_envs=4", "env.train.max_steps_per_rollout_epoch=10", "env.train.max_episode_steps=10"),
        *("actor.global_batch_size=20", "env.eval.max_episode_steps=10"),
    ],
}
SECOND = ["maniskill_reinforce_pp_mlp"]
"""Another recipe plays in the same environment, and one of another app learns alike."""


@pytest.mark.parametrize(
    "recipe",
    [*(recipe for recipe in RECIPES if recipe not in SECOND), *(pytest.param(recipe, marks=pytest.mark.slow) for recipe in SECOND)],
)
def test_a_recipe_runs(app: Any, recipe: str) -> None:
    shrunken = (*SHORT, *RECIPES[recipe], "env.eval.video_cfg.save_video=false", "runner.save_minutes=0")
    code, said = app.train_here("--config-name", recipe, *shrunken)
    assert code == 0, said
    rows = [row for row in app.metrics(recipe) if "train/loss" in row]
    assert len(rows) == 2
    # The loss of a group that agrees has no gradient; theirs do.
    assert all(math.isfinite(row["train/loss"]) and row["train/grad_norm"] > 0 for row in rows)
    summary = json.loads((app.logs / recipe / "summary.json").read_text())
    assert summary["protocol"]["episodes"] == 2
    if recipe == "metaworld_mt10_ppo":
        tasks = [entry["task"] for entry in summary["tasks"]]
        assert sorted({result["task"] for result in summary["results"]}) == sorted(tasks)
        assert set(tasks) <= set(range(10))
    if recipe == "maniskill_grpo_mlp":
        assert [row["rollout/singleton_rows"] for row in rows] == [0.0, 0.0]


def test_demonstrations_and_imitation_come_before_a_recipe(app: Any) -> None:
    """How these are made is written in it."""
    data, given = app.logs / "demonstrations", (*LOCAL, f"runner.logger.log_path={app.logs}", "env.eval.total_num_envs=2")
    imitation = ("--config-name", "metaworld_mt10_sft")
    code, said = app.here("collect.py", *imitation, f"--out={data}", "--episodes=3", "--noise=0.5", "--labels=expert")
    assert code == 0, said
    few = ("runner.max_steps=1", "runner.steps_per_iteration=2", "env.eval.episodes=2", "env.eval.max_episode_steps=10")
    code, said = app.here("sft.py", *imitation, *given, *few, f"data.path={data}")
    assert code == 0, said
    start = f"runner.ckpt_path={app.logs / 'metaworld_mt10_sft'}"
    silent = "env.eval.video_cfg.save_video=false"
    app.run("metaworld_mt10_ppo", *SHORT, *RECIPES["metaworld_mt10_ppo"], start, silent)
    found, began = (
        load_file(next((app.logs / recipe).glob("checkpoints/global_step_*/actor/model.safetensors")))
        for recipe in ("metaworld_mt10_ppo", "metaworld_mt10_sft")
    )
    # What is seen stays normalised as in the demonstrations.
    assert torch.equal(found["normalize.mean"], began["normalize.mean"])
    assert began["normalize.mean"].abs().sum() > 0


@pytest.mark.parametrize(
    ("recipe", "module", "group"),
    [("metaworld_mt10_ppo", "metaworld", "simulators"), ("maniskill_grpo_mlp", "mani_skill", "embodied")],
)
def test_a_recipe_without_its_simulator_tells_the_one_command(
    app: Any, recipe: str, module: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is that of the README: made by uv, in the root of the repository."""
    there = installing.is_there
    monkeypatch.setattr(registry, "is_there", lambda name: name != module and there(name))
    monkeypatch.setattr(installing, "_made_by_uv", lambda prefix: True)
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    code, said = app.train_here("--config-name", recipe)
    assert code == 2, said
    told = " ".join(said.split())
    assert told.startswith(f"MissingExtra: env.train.init_params: the module '{module}' is not installed. Install rlinf-envs[")
    command = f"uv run --group {group} {ROOT}/apps/embodied/train.py runner.logger.log_path={app.logs} --config-name {recipe}"
    assert told.endswith(f"]: {command}."), said
