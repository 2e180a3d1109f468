"""Runs of an app whose iterations are timed, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent


def iterations_of(app: str, *overrides: str, variables: Mapping[str, str], timeout_s: float) -> list[dict[str, float]]:
    """The lines of metrics of a run that is evaluated only at its end; it finds what the scripts of this folder define.

    Args:
        app: the folder of its `train.py`.
        overrides: its arguments.
        variables: added to its environment.
        timeout_s: the longest that it may take.
    """
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as logs:
        run = ("runner.val_check_interval=0", f"runner.logger.log_path={logs}", "runner.experiment_name=timed")
        done = subprocess.run(
            [sys.executable, str(HERE.parent / "apps" / app / "train.py"), *run, *overrides],
            cwd=logs,
            env={**os.environ, **variables, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        lines = (Path(logs) / "timed/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
