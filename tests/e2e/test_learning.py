"""It learns: the success rate passes its bound, measured on episodes that training has not seen."""

from __future__ import annotations

import json
from typing import Any

import pytest


def summary(app: Any, recipe: str, *overrides: str, timeout: float) -> dict[str, Any]:
    done = app.train("--config-name", recipe, *overrides, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads((app.logs / recipe / "summary.json").read_text())


@pytest.mark.timeout(600)
def test_the_demo_learns_to_reach(app: Any) -> None:
    # What it learns is the same on Ray: test_modes.py.
    one_process = ("cluster.backend=local", 'cluster.component_placement.actor="0"')
    result = summary(app, "fetchreach_ppo_mlp", *one_process, "env.eval.video_cfg.save_video=false", timeout=540)
    assert result["eval/success_once"] >= 0.95
    assert result["protocol"]["episodes"] == 128


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_default_recipe_learns_to_push(app: Any, seed: int) -> None:
    result = summary(app, "maniskill_ppo_mlp", f"runner.seed={seed}", timeout=2300)
    assert result["eval/success_once"] >= 0.95
    assert (app.logs / "maniskill_ppo_mlp/video/eval.mp4").stat().st_size > 10_000
