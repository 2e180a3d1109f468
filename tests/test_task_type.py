"""A stranger's package adds a task type: a schema, a worker and a loop. Nothing of ours is edited for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STRANGER = """
from dataclasses import dataclass
from rlinf.core.worker import Worker
from rlinf.runners.config.schema import RunConfig
from rlinf.runners.reporting.metrics_log import MetricsLog
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.task_types import launch, register_task_type

@dataclass(frozen=True, kw_only=True)
class CounterConfig:
    first: int = 0
    by: int = 1
@dataclass(frozen=True, kw_only=True)
class CountingConfig(RunConfig):
    counter: CounterConfig
class Counter(Worker):
    def __init__(self, cfg):
        self.at, self.by = cfg.counter.first + self.rank, cfg.counter.by
    def count(self):
        self.at += self.by
        return self.at
class CountingLoop:
    def __init__(self, cfg, counter, folder):
        self.cfg, self.counter, self.folder, self.phases = cfg, counter, folder, Phases(cfg.runner.timeout_s)
    def init_workers(self): ...
    def run(self):
        with MetricsLog(self.folder, self.cfg) as log:
            for step in range(self.cfg.runner.max_steps):
                (counts,) = self.phases.timed("count", self.counter.count())
                log.write(step + 1, {"count": float(sum(counts))})

@register_task_type("counting", config=CountingConfig)
def counting(cfg, cluster, folder):
    return CountingLoop(cfg, launch(Counter, cfg, cluster, "counter"), folder)
"""
RECIPE = """
runner: {task_type: counting, experiment_name: mine, max_steps: 3, logger: {log_path: logs, logger_backends: []}}
cluster: {backend: local, virtual_accelerators: {count: 2}, component_placement: {counter: "0-1"}}
counter: {first: 10, by: 2}
"""


@pytest.fixture
def rlinf(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, where the stranger's package is installed as far as Python's metadata say."""
    (info := tmp_path / "site/stranger_counting-1.0.dist-info").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger-counting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlinf.runners]\ncounting = stranger_counting:counting\nbroken = broken:start\n")
    (tmp_path / "site/broken.py").write_text("import nobody_has_this\n")
    (tmp_path / "site/stranger_counting.py").write_text(STRANGER)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    start = [sys.executable, "-c", "import sys; from rlinf.core.commands import main; sys.exit(main())"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    return lambda *arguments: subprocess.run(
        [*start, *arguments], cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=120, check=False
    )


def test_a_task_type_of_a_stranger_runs_from_a_recipe(rlinf: Callable[..., Any], tmp_path: Path) -> None:
    done = rlinf("train", "mine.yaml", "counter.first=20")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "logs/mine/metrics.jsonl").read_text().splitlines()]
    assert [row["count"] for row in rows] == [45.0, 49.0, 53.0]
    said = rlinf("train", "mine.yaml", "counter.bye=3", "runner.max_steps=0").stderr
    assert "counter.bye: unknown key. Did you mean 'by'?" in said
    assert "runner.max_steps: expected more than 0, found 0" in said


def test_a_task_type_that_cannot_be_imported_stops_only_its_own_runs(rlinf: Callable[..., Any], tmp_path: Path) -> None:
    # Without its name, a task type is found by the sections of the recipe, for which all installed ones are looked at.
    (tmp_path / "unnamed.yaml").write_text(RECIPE.replace("task_type: counting, ", ""))
    done = rlinf("train", "unnamed.yaml")
    assert done.returncode == 0, done.stderr
    assert "the task type 'broken' (broken:start) is left out: MissingExtra" in done.stderr
    refused = rlinf("train", "mine.yaml", "runner.task_type=broken")
    assert refused.returncode == 2
    assert "runner.task_type: the task type 'broken' needs the module 'nobody_has_this'" in refused.stderr
    listed = rlinf("plugins", "rlinf.runners")
    assert "broken:start  (stranger-counting 1.0)  can't be imported: ModuleNotFoundError: No module named" in listed.stdout
    assert listed.returncode == 0
