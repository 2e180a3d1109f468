"""`rlinf plan` measures a recipe by a short run of it, and says why where that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.core.commands import main
from rlinf.core.errors import ConfigError, DeadlineExceeded
from rlinf.scheduler.planner import Workload, calibration
from rlinf.scheduler.planner.calibration import calibrated

ROOT = Path(__file__).parents[2]
RECIPE = f"{ROOT / 'apps/embodied/config/cartpole_ppo.yaml'} cluster.backend=local cluster.component_placement.actor=0"
SMALL = "env.train.max_steps_per_rollout_epoch=8 actor.global_batch_size=64 env.eval.episodes=1 env.eval.final_episodes=1"


def test_a_recipe_is_calibrated_and_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "profile.json"
    assert main(["plan", "--profile", f"{RECIPE} {SMALL} runner.max_steps=500", "--devices", "2", "--write", str(profile)]) == 0
    said = capsys.readouterr().out
    for part in ("running 6 steps", "measured", "best of", "proven", "profile written to"):
        assert part in said
    # What the policy takes is known on both sides.
    memory = {name: each.memory for name, each in Workload.read(profile).components.items()}
    assert memory["rollout"].weights == memory["actor"].weights > 0
    assert memory["actor"].gradients > 0
    assert main(["plan", "--profile", str(profile), "--devices", "2"]) == 0


def test_a_recipe_with_a_fault_is_refused_before_it_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", f"{RECIPE} algorithm.gama=1", "--devices", "2"]) == ConfigError.exit_code
    error = capsys.readouterr().err
    assert error.startswith("ConfigError: algorithm.gama: unknown key. Did you mean 'gamma'?")


def test_a_calibration_that_is_refused_or_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", "--profile", f"{RECIPE} runner.ckpt_path={tmp_path / 'gone'}", "--devices", "2"])
    error = capsys.readouterr().err
    assert code == ConfigError.exit_code
    assert "calibration of" in error
    assert "gone" in error


def test_a_calibration_says_how_far_it_is_and_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "TELL_EVERY_S", 0.1)
    told: list[str] = []
    late = pytest.raises(DeadlineExceeded, match=r"(?s)the run has done 0 of 5 steps after 0\.1 s.*--calibration-s")
    with late, calibrated([RECIPE], timeout_s=0.1, tell=told.append):
        pytest.fail("it had no time")
    assert told == [f"running 6 steps of {RECIPE}", "0 of 5 steps after the first are measured, after 1 s"]
