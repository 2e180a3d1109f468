"""It learns: the success rate passes its bound, measured on episodes that training has not seen."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

ONE_PROCESS = ("cluster.backend=local", "cluster.component_placement={actor: '0', rollout: '0', env: '0'}")
ALONE = (
    "wants an environment of its own: uv run --all-packages --extra genesis --group test pytest -m slow tests/e2e/test_learning.py"
)
LEARNED = [
    ("cartpole_ppo", "eval/return", 150.0, 475.0),
    ("halfcheetah_ppo", "eval/return", 100.0, 800.0),
    ("maniskill_reinforce_pp_mlp", "eval/success_once", 0.1, 0.75),
    ("tabletop_cnn_ppo", "eval/success_once", 0.1, 0.85),
    pytest.param(
        *("genesis_reach_ppo", "eval/success_once", 0.2, 0.95), marks=pytest.mark.skipif(find_spec("genesis") is None, reason=ALONE)
    ),
]
SILENT = "env.eval.video_cfg.save_video=false"


def summary(app: Any, recipe: str, *overrides: str, timeout: float) -> dict[str, Any]:
    done = app.train("--config-name", recipe, *overrides, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads((app.logs / recipe / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_learns_to_reach(app: Any) -> None:
    # What it learns is the same on Ray: test_modes.py.
    one_process = ("cluster.backend=local", 'cluster.component_placement.actor="0"')
    # Half of its iterations, which are enough, and one evaluation: 64 of 64 episodes with each of the seeds 1, 2 and 3.
    half = ("runner.max_steps=25", "runner.val_check_interval=0", "env.eval.final_episodes=64")
    result = summary(app, "fetchreach_ppo_mlp", *one_process, *half, SILENT, timeout=540)
    assert result["eval/success_once"] >= 0.95
    assert result["protocol"]["episodes"] == 64


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_default_recipe_learns_to_push(app: Any, seed: int) -> None:
    result = summary(app, "maniskill_ppo_mlp", f"runner.seed={seed}", timeout=2300)
    assert result["eval/success_once"] >= 0.95
    assert (app.logs / "maniskill_ppo_mlp/video/eval.mp4").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_groups_improve_what_a_critic_has_begun(app: Any, seed: int) -> None:
    """The control is the policy that it starts from: 90 iterations of PPO."""
    given = (*ONE_PROCESS, SILENT, f"runner.seed={seed}")
    before = summary(app, "maniskill_ppo_mlp", *given, "runner.max_steps=90", timeout=1700)
    after = summary(app, "maniskill_grpo_mlp", *given, f"runner.ckpt_path={app.logs / 'maniskill_ppo_mlp'}", timeout=1800)
    assert after["protocol"]["episodes"] == before["protocol"]["episodes"]
    assert after["eval/success_once"] >= max(0.9, before["eval/success_once"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("recipe", "metric", "untrained", "trained"), LEARNED)
def test_a_recipe_learns_from_scratch(app: Any, recipe: str, metric: str, untrained: float, trained: float, seed: int) -> None:
    """Against a control: the same recipe, evaluated before it has learned anything."""
    given = (*ONE_PROCESS, SILENT, f"runner.seed={seed}")
    logs = f"runner.logger.log_path={app.logs / 'control'}"
    code, said = app.evaluate_here("--config-name", recipe, logs, *given)
    assert code == 0, said
    (control,) = (app.logs / "control").rglob("summary.json")
    assert json.loads(control.read_text())[metric] <= untrained
    assert summary(app, recipe, *given, timeout=3500)[metric] >= trained
