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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(out.read_text())["runs"].values()
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("variant", ["Flow-SDE", "Flow-Noise"])
def test_a_flow_policy_learns_to_push(variant: str, tmp_path: Path) -> None:
    learning, control = runs("learn_pusher_flow", tmp_path / "curves.json", "--variants", variant, "--seeds", "0")
    before = learning["success"][0]
    assert 0.2 <= before <= 0.5
    assert learning["success"][-1] >= before + 0.15
    assert control["control"]
    assert control["success"][-1] <= before + 0.05


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_command_gives_the_same_curve(tmp_path: Path) -> None:
    arguments = ("--variants", "Flow-SDE", "--iterations", "2", "--no-control")
    one, again = (runs("learn_pusher_flow", tmp_path / f"{i}.json", *arguments, "--seeds", "1") for i in range(2))
    assert one[0]["success"] == again[0]["success"]
