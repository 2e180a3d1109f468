"""A stranger's package adds a task type: a schema, a worker and a loop. Nothing of ours is edited for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STRANGER = '''
from dataclasses import dataclass, field
from typing import Any

from rlinf.core.registry import Registry
from rlinf.core.worker import Worker
from rlinf.runners.config.schema import RunConfig, chosen
from rlinf.runners.reporting.metrics_log import MetricsLog
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.task_types import launch, register_task_type

STRIDES = Registry("stride", "stranger.strides")

@STRIDES.register("fixed")
@dataclass(frozen=True)
class Fixed:
    by: int = 1

@dataclass(frozen=True, kw_only=True)
class CounterConfig:
    stride_type: str = "fixed"
    stride: Any = field(metadata=chosen(STRIDES, "stride_type"))
    first: int = 0

@dataclass(frozen=True, kw_only=True)
class CountingConfig(RunConfig):
    counter: CounterConfig

class Counter(Worker):
    def __init__(self, cfg):
        self.at, self.by = cfg.counter.first + self.rank, cfg.counter.stride.by

    def count(self):
        self.at += self.by
        return self.at

class CountingLoop:
    def __init__(self, cfg, counter, folder):
        self.cfg, self.counter, self.folder, self.phases = cfg, counter, folder, Phases(cfg.runner.timeout_s)

    def init_workers(self): ...

    def run(self):
        with MetricsLog(self.folder, self.cfg.runner.logger) as log:
            for step in range(self.cfg.runner.max_steps):
                (counts,) = self.phases.timed("count", self.counter.count())
                log.write(step + 1, {"count": float(sum(counts))})

@register_task_type("counting", config=CountingConfig)
def counting(cfg, cluster, folder):
    return CountingLoop(cfg, launch(Counter, cfg, cluster, "counter"), folder)
'''
RECIPE = """
runner: {task_type: counting, experiment_name: mine, max_steps: 3, logger: {log_path: logs, logger_backends: []}}
cluster: {backend: local, virtual_accelerators: {count: 2}, component_placement: {counter: "0-1"}}
counter: {first: 10, by: 2}
"""


def rlinf(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, where the stranger's package is installed as far as Python's metadata say."""
    command = [sys.executable, "-c", "import sys; from rlinf.core.commands import main; sys.exit(main())", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, timeout=120, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    info = tmp_path / "site/stranger_counting-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger-counting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlinf.runners]\ncounting = stranger_counting:counting\n")
    (tmp_path / "site/stranger_counting.py").write_text(STRANGER)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return tmp_path


def test_a_task_type_of_a_stranger_runs_from_a_recipe(folder: Path) -> None:
    done = rlinf(folder, "train", "mine.yaml", "counter.first=20")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "logs/mine/metrics.jsonl").read_text().splitlines()]
    assert [row["count"] for row in rows] == [45.0, 49.0, 53.0]


def test_its_configuration_is_explained_and_refused_like_ours(folder: Path) -> None:
    assert "counter.by = 2  (mine.yaml)" in rlinf(folder, "config", "mine.yaml", "--explain", "counter").stdout
    said = rlinf(folder, "train", "mine.yaml", "counter.bye=3", "runner.max_steps=0").stderr
    assert "counter.bye: unknown key. Did you mean 'by'?" in said
    assert "runner.max_steps: expected more than 0, found 0" in said
