"""Replay buffers of whole runs: by priority and from the disk, resumed to the bit, damaged, and looked at afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

RECIPE = "cartpole_dqn"
OPTIONS = (
    *("runner.max_steps=4", "runner.save_interval=2", "runner.val_check_interval=0", "runner.save_minutes=0"),
    *("runner.keep_best=false", "env.eval.total_num_envs=2", "env.eval.final_episodes=2", "env.eval.max_episode_steps=20"),
    *("env.train.total_num_envs=4", "env.train.max_steps_per_rollout_epoch=8", "env.train.auto_reset=false"),
    *("actor.global_batch_size=16", "algorithm.utd=0.5", "algorithm.start_steps=32"),
    *("algorithm.replay_buffer.sampling.type=prioritized", "algorithm.replay_buffer.storage=disk"),
)


def run(app: Any, *overrides: str) -> tuple[int, str]:
    return app.train_here("--config-name", RECIPE, *OPTIONS, *overrides)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from rlinf.core.commands import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False)


def numbers(checkpoint: Path) -> dict[str, Any]:
    found = {file.name: np.load(file) for file in checkpoint.rglob("*.npy")}
    return {**found, **{f"model/{name}": array for name, array in load_file(checkpoint / "actor/model.safetensors").items()}}


@pytest.fixture
def whole(app: Any) -> Path:
    """The checkpoints of a run."""
    code, said = run(app)
    assert code == 0, said
    return app.logs / RECIPE / "checkpoints"


def test_priorities_and_the_disk_go_on_to_the_bit(app: Any, whole: Path) -> None:
    again = app.logs / "again"
    code, said = run(app, f"runner.logger.log_path={again}", f"runner.resume_dir={whole / 'global_step_2'}")
    assert code == 0, said
    expected, found = (numbers(folder / "global_step_4") for folder in (whole, again / RECIPE / "checkpoints"))
    assert "priority.0000.npy" in expected
    assert len(np.unique(expected["priority.0000.npy"])) > 10
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    inspected = command("replay", "inspect", str(app.logs / RECIPE))
    assert inspected.returncode == 0, inspected.stderr
    assert "128 transitions in " in inspected.stdout
    assert "prioritized" in inspected.stdout


def test_a_run_does_not_go_on_from_a_damaged_buffer(app: Any, whole: Path) -> None:
    damaged = next((whole / "global_step_2").rglob("observation.states.0000.npy"))
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 1
    damaged.write_bytes(content)
    code, said = run(app, f"runner.logger.log_path={app.logs / 'again'}", f"runner.resume_dir={whole / 'global_step_2'}")
    assert code != 0
    assert str(damaged) in "".join(said.split())
    inspected = command("replay", "inspect", str(whole / "global_step_2"))
    assert inspected.returncode == 2
    assert str(damaged) in inspected.stderr
