"""What goes wrong is said on one screen, early, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlinf.runners import read_checkpoint

EXPERIMENT = "faulty"


def found_here(app: Any, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is a module of the folder in which the command is run, which no path names."""
    (app.logs / f"{module}.py").write_text((Path(__file__).parent / "faulty.py").read_text())
    monkeypatch.chdir(app.logs)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["runner.max_step=3"], r"runner\.max_step: unknown key\. Did you mean 'max_steps'\?"),
        (["runner.max_steps=many"], r"runner\.max_steps: expected a whole number, found 'many' \(str\)"),
        (["algorithm.loss_type=actor_crtic"], r"no policy loss named 'actor_crtic'\. Did you mean 'actor_critic'\?"),
        (["actor.optim.lrr=1"], r"actor\.optim\.lrr: unknown key"),
        (["cluster.nodes=1"], r"cluster\.nodes: unknown key"),
        (["cluster.component_placement.env=0-7"], r"cluster\.component_placement\.env.*0-7"),
        (["~cluster.component_placement.env"], r"(?s)env.*component_placement|component_placement.*env"),
        (["env.train.env_type=missing_extra:NeedsNoSuchModule"], r"Install rlinf-envs\[no-such\]: "),
        (["--config-name", "maniskill_ppo_mpl"], r"no recipe 'maniskill_ppo_mpl'\. Did you mean 'maniskill_ppo_mlp'"),
        (["runner.logger.log_path=/proc/nowhere"], r"runner\.logger\.log_path: can't write to '/proc/nowhere"),
    ],
)
def test_a_fault_in_the_configuration_ends_before_any_worker_starts(app: Any, overrides: list[str], message: str) -> None:
    code, errors = app.train_here(*overrides)
    assert code == 2, errors
    assert re.search(message, errors), errors
    assert "Traceback" not in errors
    assert errors.count("\n") < 24
    assert not list(app.logs.rglob("workers")), "a worker was started"


def test_a_fault_ends_the_program(app: Any) -> None:
    done = app.train("runner.max_step=3")
    assert done.returncode == 2
    assert "Did you mean 'max_steps'?" in done.stderr


def test_a_traceback_is_shown_when_asked_for(app: Any) -> None:
    assert "Traceback" in app.train_here("runner.max_step=3", "--traceback")[1]


@pytest.mark.parametrize("backend", [pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow]), "local"])
def test_a_worker_that_raises_ends_the_run_with_the_first_cause(
    app: Any, faulty: list[str], backend: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "ray":
        request.getfixturevalue("shared_ray")
    found_here(app, f"my_{backend}", monkeypatch)
    code, errors = app.train_here(
        *faulty, f"env.train.env_type=my_{backend}:Faulty", f"cluster.backend={backend}", "env.train.init_params.raise_at=30"
    )
    assert code == 1, errors
    assert re.search(r"WorkerError: env\[\d\] failed in interact\(\): ValueError: the gripper fell off, in slot", errors)
    shown = errors[errors.rindex("WorkerError: env[") :]
    assert re.search(rf"/my_{backend}\.py\", line \d+, in before\n    raise ValueError\(\"the gripper fell off\"\)", shown), shown
    assert "calls.py" not in shown, "frames of rlinf are folded"
    assert read_checkpoint(app.logs / EXPERIMENT).state["step"] >= 1


@pytest.mark.parametrize(
    ("section", "method", "place"),
    [
        ("train", "interact", "environment 1, step 3 of episode 0, iteration 0, epoch 0, step 3$"),
        ("eval", "evaluate", "environment 1, step 3 of episode 1$"),
    ],
)
def test_an_environment_that_raises_is_told_with_its_number_and_its_episode(
    app: Any, faulty: list[str], section: str, method: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_here(app, f"my_{section}", monkeypatch)
    broken = [f"env.{section}.env_type=my_{section}:Faulty", f"env.{section}.init_params={{raise_at: 3, raise_in: 1}}"]
    code, errors = app.train_here(*faulty, "cluster.backend=local", "runner.val_check_interval=1", *broken)
    assert code == 1, errors
    assert re.search(
        rf"^WorkerError: env\[0\] failed in {method}\(\): .*, in slot 0 \(environments 0 to \d+\), {place}", errors, re.M
    ), errors


@pytest.mark.ray
@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_stops_everything(app: Any, faulty: list[str], processes: Any, how: signal.Signals) -> None:
    run = app.start(*faulty, "cluster.component_placement.env='0'")
    try:
        processes.wait_until(lambda: len(app.metrics(EXPERIMENT)) >= 2, 300, "two iterations")
        below = processes.descendants(run.pid)
        assert len(below) > 3
        run.send_signal(how)
        _, errors = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 130
    assert "Interrupted" in errors
    assert "Traceback" not in errors
    processes.wait_until(lambda: not processes.alive(below), 60, "no orphans")
    assert read_checkpoint(app.logs / EXPERIMENT).state["step"] >= 1


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_a_killed_worker_ends_the_run_soon(
    app: Any, faulty: list[str], processes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_here(app, "my_env", monkeypatch)
    pid_file = tmp_path / "env.pid"
    before = processes.descendants(os.getpid())
    below: set[int] = set()
    killed: list[float] = []

    def kill() -> None:
        victim = int(pid_file.read_text())
        below.update(pid for pid in processes.descendants(os.getpid()) - before if processes.works(pid))
        assert victim in below
        killed.append(time.monotonic())
        os.kill(victim, signal.SIGKILL)

    with processes.once(lambda: len(app.metrics(EXPERIMENT)) >= 2, kill):
        mine = ("env.train.env_type=my_env:Faulty", f"env.train.init_params.pid_file={pid_file}")
        code, errors = app.train_here(*faulty, *mine, "env.max_restarts=0")
        took = time.monotonic() - killed[0]
    assert code == 1, errors
    assert took < 25, f"{took:.1f} s: a few on an idle machine, and before Ray's own 30"
    assert re.search(r"WorkerError: env\[\d\] failed (in \w+\(\)|between calls): .*(died|killed)", errors), errors
    assert len(re.findall(r"^WorkerError", errors, re.M)) == 1, "one first cause"
    processes.wait_until(lambda: not processes.alive(below), 60, "no orphans")
    assert read_checkpoint(app.logs / EXPERIMENT).state["step"] >= 1


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_driver_leaves_no_orphans(app: Any, faulty: list[str], processes: Any) -> None:
    run = app.start(*faulty)
    try:
        processes.wait_until(lambda: len(app.metrics(EXPERIMENT)) >= 1, 300, "an iteration")
        below = processes.descendants(run.pid)
    finally:
        run.kill()
        run.communicate(timeout=120)
    processes.wait_until(lambda: not processes.alive(below), 60, "no orphans")
