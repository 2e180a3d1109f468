"""The page on world models: a network is fitted to a simulator, a policy learns inside it and is evaluated in the simulator."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "envs" / "world_model.md").read_text(encoding="utf-8")
NAME = "reach_inside"


def block(kind: str) -> str:
    """The first block of a language."""
    found = re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def world(app: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder of somebody who follows the page, after its first command."""
    (app.logs / "my_world.py").write_text(block("python"), encoding="utf-8")
    (app.logs / f"{NAME}.yaml").write_text(block("yaml"), encoding="utf-8")
    monkeypatch.chdir(app.logs)
    monkeypatch.setattr(sys, "path", [*sys.path])
    runpy.run_path("my_world.py", run_name="__main__")
    return app


def test_a_policy_learns_inside_and_is_evaluated_outside(world: Any) -> None:
    shrunken = ("runner.max_steps=2", "env.eval.final_episodes=4", "env.eval.video_cfg.save_video=false")
    summary = world.run(NAME, "--config-dir", ".", *shrunken)
    assert summary["protocol"]["env"]["env_type"] == "tabletop"
    rows = [row for row in world.metrics(NAME) if "train/loss" in row]
    assert len(rows) == 2
    # As far as the hand is from its target: the judge's reward.
    assert all(row["env/return"] < 0.0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_it_learns_inside_holds_outside(world: Any, seed: int) -> None:
    summary = world.run(NAME, "--config-dir", ".", f"runner.seed={seed}", "env.eval.video_cfg.save_video=false")
    assert summary["eval/success_once"] >= 0.95
