"""A process of a reasoning run is killed on Ray, in each phase: it is replaced, or the run ends in time with the cause."""

from __future__ import annotations

import os
import re
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
        self.killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)

    def replaced(self) -> None:
        """Waits until another process has taken the place of the killed one."""
        known, found = self.below, self.processes
        found.wait_until(lambda: any(map(found.works, found.descendants(self.run.pid) - known)), 120, "another process")

    def end(self, timeout: float) -> str:
        _, errors = self.run.communicate(timeout=timeout)
        self.took = time.monotonic() - self.killed
        self.processes.wait_until(lambda: not self.processes.alive(self.below), 60, "no orphans")
        return errors


@pytest.fixture
def held(tmp_path: Path, processes: Any) -> Iterator[Held]:
    found = Held(tmp_path, processes)
    yield found
    found.run.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> ReasoningApp:
    """A run in which nobody dies."""
    app = ReasoningApp(tmp_path_factory.mktemp("undisturbed"))
    app.train("runner.max_steps=3", REWARD)
    return app


def told(app: ReasoningApp) -> list[str]:
    """Every response of a run, in an order that does not depend on who wrote it."""
    return sorted((app.folder / "transcripts.jsonl").read_text().splitlines())


def lm(held: Held, at: str) -> str:
    return f"actor.model={{model_type: 'toy_faults:HeldLM', folder: '{held.folder}', at: {at}}}"


def sync(held: Held, way: str, nth: int, version: int) -> str:
    fields = f"way: {way}, nth: {nth}, version: {version}"
    return f"actor.weight_syncer={{type: 'toy_faults:HeldSync', folder: '{held.folder}', {fields}}}"


@pytest.mark.parametrize(
    ("place", "lost"), [("init", []), ("pass", ["generate"]), ("train", []), ("sync", ["sync_model_from_actor"])]
)
def test_a_rollout_worker_that_dies_is_replaced_whatever_it_did(
    held: Held, undisturbed: ReasoningApp, place: str, lost: list[str]
) -> None:
    """While it is built, in an evaluation, between two jobs, and while it receives weights: same responses, same numbers."""
    if place == "sync":
        held.start(REWARD, sync(held, "full", 1, version=2))
    else:
        held.start(REWARD, lm(held, place))
    waiting = held.pid(place)
    held.kill(waiting if place != "train" else int((held.folder / "rollout-1").read_text()))
    held.replaced()
    (held.folder / "go").touch()
    errors = held.end(400)
    assert held.run.returncode == 0, errors
    rows = held.app.rows()
    assert rows[3]["rollout/restarts"] == 1, errors
    assert re.findall(r"rollout\[1\] failed in (\w+)\(\)", errors) == lost, "calls that the death ended and nobody repeated"
    assert told(held.app) == told(undisturbed)
    for step, row in undisturbed.rows().items():
        for name in COMPARED:
            assert rows[step][name] == pytest.approx(row[name], abs=1e-5), f"step {step}: {name}"


@pytest.mark.parametrize(
    ("place", "who", "doing", "workers"),
    [
        ("train", r"actor\[0\]", "run_training", "{actor: '0', rollout: 0-1, reward: '0'}"),
        ("train", r"actor\[0\]", "run_training", "{actor: 0-1, rollout: '0', reward: '0'}"),
        ("score", r"reward\[0\]", "compute_rewards", "{actor: '0', rollout: 0-1, reward: '0'}"),
        ("refer", r"inference\[0\]", "compute_references", "{actor: '0', rollout: 0-1, reward: '0', inference: '1'}"),
    ],
    ids=["actor", "one of two actors", "reward", "inference"],
)
def test_whoever_is_not_replaced_ends_the_run_with_the_cause(held: Held, place: str, who: str, doing: str, workers: str) -> None:
    """The first one, though others hear of it too: the actor's other rank loses its connection."""
    reward = f"reward={{reward_type: 'toy_faults:HeldReward', folder: '{held.folder}'}}"
    asked = ["reference.source=initial", "algorithm.kl_beta=0.1"] if place == "refer" else []
    held.start(f"cluster.component_placement={workers}", reward if place == "score" else lm(held, place), *asked)
    held.kill(held.pid(place))
    errors = held.end(200)
    assert held.run.returncode == 1, errors
    assert held.took < 25, f"{held.took:.1f} s: a few on an idle machine, and before Ray's own 30"
    assert re.search(rf"^WorkerError: {who} failed in {doing}\(\): .*killed by SIGKILL", errors, re.M), errors
    assert len(re.findall(r"^WorkerError", errors, re.M)) == 1, "one first cause"


@pytest.mark.parametrize(("way", "nth", "restarts"), [("full", 1, 0), ("bucket", 2, 3)])
def test_a_death_among_weights_that_nobody_outlives_ends_the_run_with_the_cause(
    held: Held, way: str, nth: int, restarts: int
) -> None:
    """Without restarts; and in the midst of buckets, of which a new process knows nothing."""
    held.start(f"rollout.max_restarts={restarts}", sync(held, way, nth, version=2))
    held.kill(held.pid("sync"))
    errors = held.end(200)
    assert held.run.returncode == 1, errors
    assert held.took < (25 if not restarts else 100), f"{held.took:.1f} s"
    assert re.search(r"^WorkerError: rollout\[1\] failed in sync_model_from_actor\(\): .*killed by SIGKILL", errors, re.M), errors
