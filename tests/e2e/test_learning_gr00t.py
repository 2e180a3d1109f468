"""GR00T learns to push, in a short version of the benchmark; it learns nothing from shuffled advantages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_gr00t_learns_to_push(tmp_path: Path) -> None:
    out = tmp_path / "curves.json"
    command = [sys.executable, "benchmarks/learn_pusher_gr00t.py", "--short", "--seeds", "0", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2300)
    assert done.returncode == 0, done.stderr
    learning, control = json.loads(out.read_text())["runs"]["Flow-SDE"]
    before = learning["success"][0]
    assert learning["success"][-1] >= before + 0.15
    assert control["control"]
    assert control["success"][-1] <= before + 0.05
