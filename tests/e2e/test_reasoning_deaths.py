"""A rollout worker is killed on Ray where it is built, and where it receives weights: it is replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reasoning_app import ReasoningApp

COMPARED = ("train/loss", "train/grad_norm", "rollout/rewards", "rollout/tokens")
REWARD = "reward={overlong: {max_length: 6, cache: 5, weight: 2}}"
"""Differs from response to response even where nothing is right."""
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1200)]


class Held:
    """A run on Ray that waits at a place until a process of it was killed."""

    def __init__(self, logs: Path, processes: Any) -> None:
        self.app, self.processes, self.folder = ReasoningApp(logs), processes, logs / "marks"
        self.folder.mkdir()

    def start(self, *overrides: str) -> None:
        self.run = self.app.start("runner.max_steps=3", *overrides)

    def pid(self, place: str) -> int:
        """The process that waits there."""
        mark = self.folder / place

        def there() -> bool:
            if self.run.poll() is not None:
                pytest.fail(self.run.communicate()[1])
            return mark.exists()

        self.processes.wait_until(there, 400, place)
        return int(mark.read_text())

    def kill(self, pid: int) -> None:
        self.below = self.processes.descendants(self.run.pid)
        assert pid in self.below
        os.kill(pid, signal.SIGKILL)

    def end(self, timeout: float) -> str:
        _, errors = self.run.communicate(timeout=timeout)
        self.processes.wait_until(lambda: not self.processes.alive(self.below), 15, "no orphans")
        return errors


@pytest.fixture
def held(tmp_path: Path, processes: Any) -> Iterator[Held]:
    found = Held(tmp_path, processes)
    yield found
    found.run.kill()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, float]]:
    """The numbers of a run in which nobody dies."""
    undisturbed = ReasoningApp(tmp_path_factory.mktemp("undisturbed"))
    undisturbed.train("runner.max_steps=3", REWARD)
    return undisturbed.rows()


def lm(held: Held) -> str:
    return f"actor.model={{model_type: 'toy_faults:HeldLM', folder: '{held.folder}'}}"


def sync(held: Held, way: str, nth: int, version: int) -> str:
    fields = f"way: {way}, nth: {nth}, version: {version}"
    return f"actor.weight_syncer={{type: 'toy_faults:HeldSync', folder: '{held.folder}', {fields}}}"


@pytest.mark.parametrize("place", ["init", "sync"])
def test_a_rollout_worker_that_dies_is_replaced_whatever_it_did(
    held: Held, expected: dict[int, dict[str, float]], place: str
) -> None:
    """The numbers stay the same."""
    if place == "sync":
        held.start(REWARD, sync(held, "full", 1, version=2))
    else:
        held.start(REWARD, lm(held))
    held.kill(held.pid(place))
    time.sleep(1.0)
    (held.folder / "go").touch()
    errors = held.end(400)
    assert held.run.returncode == 0, errors
    rows = held.app.rows()
    assert rows[3]["rollout/restarts"] == 1, errors
    for step, row in expected.items():
        for name in COMPARED:
            assert rows[step][name] == pytest.approx(row[name], abs=1e-5), f"step {step}: {name}"
