"""OpenVLA learns to reach the red block, in a short version of the benchmark; it learns nothing from shuffled advantages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_openvla_learns_to_reach_the_red_block(tmp_path: Path) -> None:
    out = tmp_path / "curves.json"
    command = [sys.executable, "benchmarks/learn_slots_openvla.py", "--short", "--seeds", "0", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2300)
    assert done.returncode == 0, done.stderr
    learning, control = json.loads(out.read_text())["runs"]["PPO"]
    before = learning["success"][0]
    assert 0.3 <= before <= 0.55
    assert learning["success"][-1] >= before + 0.25
    assert control["control"]
    assert control["success"][-1] <= before + 0.1
