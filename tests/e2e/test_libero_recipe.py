"""Recipes on LIBERO, on shapes that stand for its meshes: reset, two chunks in each of two environments, two optimizer steps.

One of them is a recipe of tabletop, whose simulator is swapped.
"""

from __future__ import annotations

import importlib.util
import json
import re
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
    "env.train.rollout_epoch=1",
    "env.eval.total_num_envs=1",
    "env.eval.episodes=1",
    "env.eval.video_cfg.save_video=false",
    "actor.global_batch_size=2",
    "algorithm.update_epoch=1",
)
PUSHED = ("--noise=0.4,0.4,0.4,0,0,0,0", "--labels=expert")
needs_libero = pytest.mark.skipif(
    importlib.util.find_spec("libero") is None, reason="the extra rlinf-envs[libero] is not installed"
)
needs_gl = pytest.mark.skipif(not can_render(), reason="MuJoCo can't draw here")


def write_meshes(folder: Path) -> Path:
    """Shapes that stand for LIBERO's meshes."""
    meshes = folder / "meshes"
    runpy.run_path(str(SHAPES))["write_shapes"](meshes)
    return meshes


@pytest.mark.slow
@needs_libero
@needs_gl
@pytest.mark.parametrize(
    ("recipe", "swap", "steps"),
    [
        ("libero_spatial_openvla_oft_ppo", (), 32),
        ("tabletop_openvla_oft_ppo", ("env.train.env_type=libero", "actor.model.max_prompt_length=64"), 16),
    ],
)
def test_a_recipe_trains_and_is_evaluated(app: Any, tmp_path: Path, recipe: str, swap: tuple[str, ...], steps: int) -> None:
    meshes = write_meshes(tmp_path)
    code, said = app.train_here("--config-name", recipe, *swap, *SHORT, f"env.train.init_params.assets={meshes}")
    assert code == 0, said
    metrics = {key: value for line in app.metrics(recipe) for key, value in line.items()}
    assert metrics["env/steps"] == steps
    assert metrics["train/skipped"] == 0
    assert 0 <= metrics["eval/success_once"] <= 1


@pytest.mark.slow
@needs_libero
@needs_gl
def test_the_expert_is_imitated(app: Any, tmp_path: Path) -> None:
    data, meshes = app.logs / "demonstrations", write_meshes(tmp_path)
    given = (
        "--config-name",
        "libero_spatial_openvla_oft_sft",
        f"env.eval.init_params.assets={meshes}",
        "env.eval.total_num_envs=1",
    )
    code, said = app.here("collect.py", *given, f"--out={data}", "--episodes=2", *PUSHED)
    assert code == 0, said
    # Pushed, the expert fails in some initial states.
    assert re.search(r"2 episodes of \d+ steps, [12] of them solved", said), said
    few = ("runner.max_steps=2", "runner.steps_per_iteration=3", "runner.val_check_interval=0", "env.eval.episodes=1")
    where = (f"data.path={data}", f"runner.logger.log_path={app.logs}", "cluster.backend=local")
    code, said = app.here("sft.py", *given, *few, *where, "env.eval.max_episode_steps=16")
    assert code == 0, said
    losses = [line["train/loss"] for line in app.metrics("libero_spatial_openvla_oft_sft") if "train/loss" in line]
    assert losses[1] < losses[0]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@needs_libero
@needs_gl
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_imitation_solves_the_task_and_reinforcement_learning_improves_on_it(app: Any, tmp_path: Path, seed: int) -> None:
    """Against a control: the same policy, which has learned nothing."""
    meshes, data = write_meshes(tmp_path), app.logs / "demonstrations"
    imitation = ("--config-name", "libero_spatial_openvla_oft_sft", f"env.eval.init_params.assets={meshes}")
    one = ('cluster.component_placement.actor="0"', 'cluster.component_placement.env="0"')
    given = ("cluster.backend=local", *one, f"runner.seed={seed}", "env.eval.video_cfg.save_video=false")
    recipe, trained = "libero_spatial_openvla_oft_ppo", f"env.train.init_params.assets={meshes}"
    logs = f"runner.logger.log_path={app.logs / 'control'}"
    code, said = app.evaluate_here("--config-name", recipe, logs, *given, trained, "env.eval.episodes=12")
    assert code == 0, said
    (control,) = (app.logs / "control").rglob("summary.json")
    assert json.loads(control.read_text())["eval/success_once"] <= 0.1
    code, said = app.here("collect.py", *imitation, f"--out={data}", "--episodes=64", *PUSHED)
    assert code == 0, said
    code, said = app.here("sft.py", *imitation, *given, f"data.path={data}", f"runner.logger.log_path={app.logs}")
    assert code == 0, said
    imitated = app.logs / "libero_spatial_openvla_oft_sft"
    before = json.loads((imitated / "summary.json").read_text())
    assert before["eval/success_once"] >= 0.15
    after = app.run(recipe, *given, trained, f"runner.ckpt_path={imitated}")
    assert after["protocol"] == before["protocol"]
    assert after["eval/success_once"] >= min(before["eval/success_once"] + 0.15, 0.85)
