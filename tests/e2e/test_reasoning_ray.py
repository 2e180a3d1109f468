"""The reasoning app on Ray: placements change nothing, and a rollout engine that is killed costs its samples and no more."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from reasoning_app import ReasoningApp

COMPARED = ("train/loss", "train/grad_norm", "train/kl_ref", "rollout/rewards", "rollout/tokens")
REWARD = "reward={overlong: {max_length: 6, cache: 5, weight: 2}}"
"""Differs from response to response even where nothing is right."""
SHORT = ("runner.val_check_interval=0", "reference.source=initial", "algorithm.kl_beta=0.1", REWARD)
PLACEMENTS = {
    "local": "{actor: '0', rollout: 0-1, reward: '0'}",
    "collocated": "{actor: '0', rollout: 0-1, reward: '0'}",
    "disaggregated": "{actor: '0', rollout: 1-2, reward: '3'}",
    "hybrid": "{actor: '0', reward: '0', rollout: '1', inference: '2'}",
}


@pytest.fixture
def app(tmp_path: Path) -> ReasoningApp:
    return ReasoningApp(tmp_path)


def placed(name: str) -> str:
    return f"cluster={{virtual_accelerators: {{count: 4}}, component_placement: {PLACEMENTS[name]}}}"


def expect_same(found: dict[int, dict[str, float]], expected: dict[int, dict[str, float]], told: str) -> None:
    assert found.keys() == expected.keys()
    assert all(row["train/grad_norm"] > 1e-3 for row in expected.values()), "there is something to learn"
    for step, row in expected.items():
        for name in COMPARED:
            assert found[step][name] == pytest.approx(row[name], abs=1e-5), f"{told}, step {step}: {name}"


def slow(pids: Path) -> list[str]:
    """Time to kill who writes, and whom."""
    pids.mkdir()
    return [f"actor.model={{model_type: 'toy_reasoning:TinyLM', pids: '{pids}', pass_s: 0.1}}"]


def ended(run: subprocess.Popen[str]) -> bool:
    """Fails with what the run said if it is over."""
    if run.poll() is not None:
        pytest.fail(run.communicate()[1])
    return False


@pytest.mark.ray
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("shared_ray")
def test_elsewhere_and_with_an_engine_that_is_killed_numbers_are_those_of_one_process(
    app: ReasoningApp, processes: Any, tmp_path: Path
) -> None:
    """To the last bit: the same seeds and weights write the same tokens, whoever writes them, and its samples are written again."""
    undisturbed = ReasoningApp(tmp_path / "undisturbed")
    undisturbed.train(placed("local"), "runner.max_steps=3", *SHORT)
    pids = tmp_path / "pids"

    def kill() -> None:
        time.sleep(0.3)
        os.kill(int((pids / "1").read_text()), signal.SIGKILL)

    with processes.once(lambda: len(app.rows()) >= 1, kill):
        app.train(placed("disaggregated"), "runner.max_steps=3", *SHORT, *slow(pids), backend="ray")
    assert app.rows()[3]["rollout/restarts"] == 1
    expect_same(app.rows(), undisturbed.rows(), "disaggregated")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_without_restarts_a_killed_rollout_engine_ends_the_run_with_the_cause(
    app: ReasoningApp, processes: Any, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    run = app.start("runner.max_steps=1000", "rollout.max_restarts=0", *SHORT, *slow(pids))
    try:
        processes.wait_until(lambda: ended(run) or len(app.rows()) >= 1, 500, "an iteration")
        below = processes.descendants(run.pid)
        killed = time.monotonic()
        os.kill(int((pids / "0").read_text()), signal.SIGKILL)
        _, errors = run.communicate(timeout=60)
        took = time.monotonic() - killed
    finally:
        run.kill()
    assert run.returncode == 1, errors
    assert took < 25, f"{took:.1f} s: a few on an idle machine, and before Ray's own 30"
    assert re.search(r"WorkerError: rollout\[0\] failed (in \w+\(\)|between calls): .*(died|killed)", errors), errors
    processes.wait_until(lambda: not processes.alive(below), 60, "no orphans")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("shared_ray")
def test_where_things_run_changes_nothing(app: ReasoningApp) -> None:
    rows: dict[str, dict[int, dict[str, float]]] = {}
    for name in PLACEMENTS:
        app.train(placed(name), "runner.max_steps=2", *SHORT, backend="local" if name == "local" else "ray")
        rows[name] = app.rows()
    for name, found in rows.items():
        expect_same(found, rows["local"], name)
