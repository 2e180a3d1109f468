"""Recipes on LIBERO, on shapes that stand for its meshes: reset, two chunks in each of two environments, two optimizer steps.

One of them is a recipe of tabletop, whose simulator is swapped.
"""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import pytest

from rlinf.envs.rendering.mujoco import can_render

SHAPES = Path(__file__).parents[2] / "packages/envs/tests/libero_shapes.py"
SHORT = (
    "runner.max_steps=1",
    "runner.logger.logger_backends=[]",
    "cluster.backend=local",
    'cluster.component_placement.actor="0"',
    'cluster.component_placement.env="0"',
    "env.train.init_params.settle_steps=1",
    "env.train.total_num_envs=2",
    "env.train.max_steps_per_rollout_epoch=2",
    "env.train.max_episode_steps=16",
    "env.eval.total_num_envs=1",
    "env.eval.episodes=1",
    "env.eval.video_cfg.save_video=false",
    "actor.global_batch_size=2",
    "algorithm.update_epoch=1",
)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libero") is None, reason="the extra rlinf-envs[libero] is not installed")
@pytest.mark.skipif(not can_render(), reason="MuJoCo can't draw here")
@pytest.mark.parametrize(
    ("recipe", "swap", "steps"),
    [
        ("libero_spatial_openvla_oft_ppo", (), 32),
        ("tabletop_openvla_oft_ppo", ("env.train.env_type=libero", "actor.model.max_prompt_length=64"), 16),
    ],
)
def test_a_recipe_trains_and_is_evaluated(app: Any, tmp_path: Path, recipe: str, swap: tuple[str, ...], steps: int) -> None:
    meshes = tmp_path / "meshes"
    runpy.run_path(str(SHAPES))["write_shapes"](meshes)
    code, said = app.train_here("--config-name", recipe, *swap, *SHORT, f"env.train.init_params.assets={meshes}")
    assert code == 0, said
    metrics = {key: value for line in app.metrics(recipe) for key, value in line.items()}
    assert metrics["env/steps"] == steps
    assert metrics["train/skipped"] == 0
    assert 0 <= metrics["eval/success_once"] <= 1
