"""Policies of rlinf-models learn, in short versions of the benchmarks; nothing learns from shuffled advantages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def runs(script: str, out: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, f"benchmarks/{script}.py", "--short", "--out", str(out), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2300)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(out.read_text())["runs"].values()
    return found


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("script", "variant", "before", "gain", "control_gain"),
    [
        ("learn_pusher_flow", "Flow-SDE", (0.2, 0.5), 0.15, 0.05),
        ("learn_pusher_flow", "Flow-Noise", (0.2, 0.5), 0.15, 0.05),
        ("learn_pusher_gr00t", "Flow-SDE", (0.0, 1.0), 0.15, 0.05),
        ("learn_slots_pi0", "flow_sde", (0.0, 1.0), 0.2, 0.05),
        ("learn_slots_openvla", "PPO", (0.3, 0.55), 0.25, 0.1),
        ("learn_slots_openvla_oft", "PPO, a ratio per step", (0.35, 0.65), 0.1, 0.05),
        ("learn_slots_openvla_oft", "GRPO, a ratio per token", (0.35, 0.65), 0.1, 0.05),
    ],
)
def test_a_policy_learns_and_nothing_learns_from_shuffled_advantages(
    script: str, variant: str, before: tuple[float, float], gain: float, control_gain: float, tmp_path: Path
) -> None:
    """Args: the success before training lies between two numbers, and rises by at least, or without sense at most, so much."""
    learning, control = runs(script, tmp_path / "curves.json", "--variants", variant, "--seeds", "0")
    start = learning["success"][0]
    assert before[0] <= start <= before[1]
    assert learning["success"][-1] >= start + gain
    assert control["control"]
    assert control["success"][-1] <= start + control_gain


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_command_gives_the_same_curve(tmp_path: Path) -> None:
    arguments = ("--variants", "Flow-SDE", "--iterations", "2", "--no-control")
    one, again = (runs("learn_pusher_flow", tmp_path / f"{i}.json", *arguments, "--seeds", "1") for i in range(2))
    assert one[0]["success"] == again[0]["success"]
