"""Runs `apps/reasoning` with the recipe `toy_reasoning`, or another app with another one: in this process, or as a user would."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOY = ("--config-dir", str(HERE / "config"), "--config-name", "toy_reasoning")
EXPERIMENT = "toy_reasoning"


@dataclass
class ReasoningApp:
    """The app with a log folder of its own."""

    logs: Path
    app: str = "reasoning"
    recipe: tuple[str, ...] = TOY

    @property
    def folder(self) -> Path:
        return self.logs / self.recipe[-1]

    def transcripts(self, kind: str = "") -> list[dict[str, Any]]:
        """What the policy wrote, a line for each prompt; only in training ("train") or evaluations ("eval") if `kind` says so."""
        lines = map(json.loads, (self.folder / "transcripts.jsonl").read_text().splitlines())
        return [line for line in lines if kind in ("", line["kind"])]

    def train(self, *overrides: str, backend: str = "local") -> str:
        """A whole run in this process; returns what it says on stderr."""
        return self._main("train.py", *self.recipe, f"cluster.backend={backend}", *self.log_path, *overrides)

    def evaluate(self, *arguments: str) -> str:
        return self._main("eval.py", *arguments, "cluster.backend=local")

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        """A run on Ray in a process of its own."""
        command = [sys.executable, str(ROOT / "apps/reasoning/train.py"), *TOY, *self.log_path, *overrides]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), "COLUMNS": "200"}
        return subprocess.Popen(command, env=environment, cwd=self.logs, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def rows(self) -> dict[int, dict[str, float]]:
        """The metrics of each iteration."""
        return {row["step"]: row for row in self.metrics() if "train/loss" in row}

    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    def weights(self, step: int) -> dict[str, Any]:
        return load_file(self.folder / f"checkpoints/global_step_{step}/actor/model.safetensors")

    @property
    def log_path(self) -> tuple[str, ...]:
        return (f"runner.logger.log_path={self.logs}",)

    def _main(self, script: str, *arguments: str) -> str:
        main = runpy.run_path(str(ROOT / "apps" / self.app / script))["main"]
        said = io.StringIO()
        handler = signal.getsignal(signal.SIGINT)
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                assert main(list(arguments)) == 0
        finally:
            signal.signal(signal.SIGINT, handler)
        return said.getvalue()
