"""Short runs of all three apps on one real GPU beyond PPO: critics, agents, fine-tuning, and everybody offloaded."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_gpu_embodied import SHORT, VLA

from rlinf.scheduler.trace import spans

ROOT = Path(__file__).parents[2]
TRIED_ON_CPU = os.environ.get("RLINF_TEST_DEVICE") == "cpu"
"""Without a GPU, to try the tests: a virtual accelerator stands for it."""
pytestmark = [pytest.mark.gpu, pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("shared_ray")]
TEXT = (
    "runner.max_steps=2",
    "runner.val_check_interval=0",
    "data.rollout_batch_size=8",
    "data.val_problems=4",
    "data.final_problems=4",
    "actor.global_batch_size=32",
)
WARM = ("sft.runner.max_steps=1", "sft.runner.steps_per_iteration=5")
ON_GPU = ("cluster.virtual_accelerators=null", "cluster.backend=ray")
EVERYBODY_OFFLOADS = ("actor.offload=true", "rollout.offload=true", "env.offload=true")
REASONING = {
    "critic": ("reasoning", "train.py", "ppo_arithmetic", (*TEXT, *WARM)),
    "calculator": ("agent", "train.py", "calculator_grpo", (*TEXT, *WARM)),
    "fine-tuning": ("reasoning", "sft.py", "sft_arithmetic", ("runner.max_steps=2", "runner.steps_per_iteration=3")),
}

Run = Callable[..., Path]


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not (torch.cuda.is_available() or TRIED_ON_CPU):
        pytest.skip("needs a GPU")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script of an app on the GPU; gives back the folder of the run."""

    def run(app: str, script: str, recipe: str, *overrides: str, parts: str = "actor,rollout,reward") -> Path:
        place = "cluster.component_placement={" + ", ".join(f"{part}: '0'" for part in parts.split(",")) + "}"
        where = ("cluster.virtual_accelerators={count: 1}", "cluster.backend=local") if TRIED_ON_CPU else ON_GPU
        logs = (f"runner.logger.log_path={tmp_path}", "runner.logger.logger_backends=[]")
        text = said(tmp_path, app, script, "--config-name", recipe, *overrides, *where, place, *logs)
        assert "NVIDIA GPU" in text or TRIED_ON_CPU
        return tmp_path / recipe

    return run


def said(folder: Path, app: str, script: str, *arguments: str) -> str:
    """What a script says that ends well."""
    command = [sys.executable, str(ROOT / "apps" / app / script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def learned(folder: Path, *, from_something: bool = True) -> None:
    """Every iteration has a finite loss, and if there was something to learn from, some change the weights."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [line for line in lines if "train/loss" in line]
    assert rows
    assert all(math.isfinite(row["train/loss"]) for row in rows)
    norms = [value for row in rows for key, value in row.items() if key.endswith("grad_norm")]
    assert norms
    assert max(norms) > 0 or not from_something


@pytest.mark.parametrize("kind", REASONING)
def test_language_models_learn_there(run: Run, kind: str) -> None:
    app, script, recipe, overrides = REASONING[kind]
    folder = run(app, script, recipe, *overrides, parts="actor" if script == "sft.py" else "actor,rollout,reward")
    # So short a warm start solves nothing in several turns.
    learned(folder, from_something=kind != "calculator")


def test_a_policy_is_fine_tuned_trained_and_evaluated_there(run: Run, tmp_path: Path) -> None:
    """The three commands of a robot engineer, from demonstrations to PPO, with all parts out of the GPU while others use it."""
    said(tmp_path, "embodied", "collect.py", "--config-name", "tabletop_openvla_oft_sft", "--episodes", "8")
    unseen = ("env.eval.episodes=4", "env.eval.total_num_envs=2", "env.eval.video_cfg.save_video=false")
    few = ("runner.max_steps=2", "runner.steps_per_iteration=3", *unseen)
    tuned = run("embodied", "sft.py", "tabletop_openvla_oft_sft", *few, parts="actor,rollout,env")
    learned(tuned)
    trace = tmp_path / "trace.json"
    traced = f"cluster.tracer={{enabled: true, path: '{trace}'}}"
    size = () if TRIED_ON_CPU else SHORT
    start = (f"runner.ckpt_path={tuned}", "runner.max_steps=2", "runner.val_check_interval=0", "env.eval.episodes=2")
    trained = run(
        "embodied",
        "train.py",
        "tabletop_openvla_oft_ppo",
        *size,
        *VLA,
        *start,
        *unseen,
        *EVERYBODY_OFFLOADS,
        traced,
        parts="actor,rollout,env",
    )
    learned(trained)
    assert [span for span in spans(trace) if span.kind == "memory"]
    assert "of 4 episodes" in said(tmp_path, "embodied", "eval.py", str(trained), *unseen)
