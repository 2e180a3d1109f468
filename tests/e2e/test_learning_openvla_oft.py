"""OpenVLA-OFT learns from pictures, in a short version of the benchmark; it learns nothing from shuffled advantages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("variant", ["PPO, a ratio per step", "GRPO, a ratio per token"])
def test_openvla_oft_learns_to_find_the_red_block(variant: str, tmp_path: Path) -> None:
    out = tmp_path / "curves.json"
    command = [sys.executable, "benchmarks/learn_slots_openvla_oft.py", "--short", "--seeds", "0", "--out", str(out)]
    done = subprocess.run([*command, "--variants", variant], cwd=ROOT, capture_output=True, text=True, timeout=2300)
    assert done.returncode == 0, done.stderr
    learning, control = json.loads(out.read_text())["runs"][variant]
    before = learning["success"][0]
    assert 0.35 <= before <= 0.65
    assert learning["success"][-1] >= before + 0.1
    assert control["control"]
    assert control["success"][-1] <= before + 0.05
