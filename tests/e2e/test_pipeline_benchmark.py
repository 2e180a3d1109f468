"""The benchmark of pipelined rollouts runs on the workers of a run as they are now."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_it_measures_a_rollout_against_its_bound(tmp_path: Path) -> None:
    out = tmp_path / "measured.json"
    options = (
        "--backends",
        "local",
        "--cases",
        "batching",
        "--te-ms",
        "1",
        "--decisions",
        "2",
        "--repeats",
        "1",
        "--env-workers",
        "2",
    )
    command = [sys.executable, "benchmarks/rollout_pipeline.py", *options, "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("local")]
    assert {line.split()[3] for line in lines} == {"none", "waiting", "stage"}
    # Nothing is faster than its bound.
    assert all(0 < float(line.split("ratio")[1].split()[0]) <= 1.0 for line in lines)
    assert json.loads(out.read_text())
