"""Which checkpoints a run writes and keeps, and what an interrupt does; no cluster, no trainer."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import RLinfError
from rlinf.runners.checkpoints import interrupts
from rlinf.runners.checkpoints.checkpoint import hold_checkpoint, read_checkpoint
from rlinf.runners.checkpoints.checkpointer import Checkpointer
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.schema import RunnerConfig


@dataclass
class Run:
    """A loop without workers: `step` says how far it is."""

    logs: Path
    runner: RunnerConfig
    source: dict[str, Any] = field(default_factory=dict[str, Any])
    optimizer_steps: int = 40
    step: int = 0
    content: dict[str, str] = field(default_factory=dict[str, str])

    def checkpoints(self) -> Checkpointer:
        def write(part: Path) -> None:
            (part / "model.safetensors").write_text(str(self.step))

        return Checkpointer(self, RunFolder(self.logs), write_actor=write, state=lambda: {"step": self.step})

    @property
    def kept(self) -> set[int]:
        return {int(path.name.rpartition("_")[2]) for path in (self.logs / "checkpoints").glob("global_step_*")}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    def make(source: dict[str, Any] | None = None, **runner: Any) -> Run:
        return Run(tmp_path, RunnerConfig(experiment_name="x", max_steps=20, **runner), source or {})

    return make


def test_checkpoints_are_due_by_iterations_and_by_time(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("rlinf.runners.checkpoints.checkpointer.time.monotonic", lambda: now)
    loop = run(save_interval=3, save_minutes=2.0, keep_checkpoints=None)
    checkpoints = loop.checkpoints()
    for loop.step in range(1, 9):
        now += 59.0 if loop.step < 7 else 121.0
        checkpoints.save_if_due()
    assert loop.kept == {3, 6, 7, 8}
    now += 10 * 3600.0
    loop.step = 9
    silent = run(save_minutes=0.0)
    silent.step = 10
    later = silent.checkpoints()
    now += 10 * 3600.0
    later.save_if_due()
    assert loop.kept == {3, 6, 7, 8}


def test_by_default_a_run_saves_every_ten_minutes(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("rlinf.runners.checkpoints.checkpointer.time.monotonic", lambda: now)
    loop = run()
    checkpoints = loop.checkpoints()
    for loop.step, time_s in ((1, 599.0), (2, 601.0), (3, 1200.0), (4, 1202.0)):
        now = time_s
        checkpoints.save_if_due()
    assert loop.kept == {2, 4}


def test_the_last_the_best_and_those_in_use_are_kept(run: Callable[..., Run], tmp_path: Path) -> None:
    begun_from = str(tmp_path / "checkpoints/global_step_1")
    loop = run({"runner": {"resume_dir": begun_from}}, keep_checkpoints=2)
    checkpoints = loop.checkpoints()
    for loop.step in (1, 2, 3):
        checkpoints.save()
        if loop.step == 2:
            checkpoints.evaluated("eval/success_once", 0.5, protocol="a")
            hold_checkpoint(read_checkpoint(tmp_path / "checkpoints/global_step_2"))
    loop.step = 4
    checkpoints.evaluated("eval/success_once", 0.75, protocol="a")
    for loop.step in (5, 6, 7):
        checkpoints.save()
        checkpoints.evaluated("eval/success_once", 0.75, protocol="a")
        checkpoints.evaluated("eval/success_once", 0.99, protocol="another")
    assert loop.kept == {1, 2, 4, 6, 7}, "begun from 1, another process reads 2, 4 is the best, 6 and 7 are the last"
    assert read_checkpoint(tmp_path / "checkpoints/best").folder.name == "global_step_4"
    assert "global_step_4, eval/success_once 0.75" in str(checkpoints.best)


def test_a_resumed_run_knows_the_best_and_removes_what_it_left_behind(run: Callable[..., Run], tmp_path: Path) -> None:
    loop = run(keep_checkpoints=2)
    first = loop.checkpoints()
    for loop.step, loss in ((1, 3.0), (2, 1.0), (8, 2.0)):
        first.save()
        first.evaluated("eval/loss", loss, protocol="a", lower_is_better=True)
    again = loop.checkpoints()
    for loop.step, loss in ((3, 1.5), (4, float("nan"))):
        again.save()
        again.evaluated("eval/loss", loss, protocol="a", lower_is_better=True)
    assert loop.kept == {2, 3, 4}, "8 belongs to the branch that was left"
    assert json.loads((tmp_path / "checkpoints/best.json").read_text())["value"] == 1.0
    other = loop.checkpoints()
    loop.step = 5
    other.evaluated("eval/loss", 9.0, protocol="b", lower_is_better=True)
    assert (tmp_path / "checkpoints/best").resolve().name == "global_step_5", "values of two protocols are not compared"


def test_the_best_of_a_branch_that_was_left_is_none_of_the_run(run: Callable[..., Run], tmp_path: Path) -> None:
    """Its checkpoint is replaced where the run comes to that iteration again, by weights of which nobody said so."""
    loop = run(keep_checkpoints=None)
    first = loop.checkpoints()
    for loop.step, score in ((2, 0.5), (4, 0.9)):
        first.save()
        first.evaluated("eval/return", score, protocol="a")
    loop.runner = replace(loop.runner, resume_dir=str(tmp_path / "checkpoints/global_step_2"))
    again = loop.checkpoints()
    assert again.best is None
    for loop.step, score in ((3, 0.7), (4, 0.6)):
        again.save()
        again.evaluated("eval/return", score, protocol="a")
    assert "global_step_3, eval/return 0.7" in str(again.best)
    assert (tmp_path / "checkpoints/best").resolve().name == "global_step_3"
    loop.runner = replace(loop.runner, resume_dir=str(tmp_path))
    assert "global_step_3" in str(loop.checkpoints().best), "it is no later than where the run goes on"


def test_a_run_may_keep_no_best(run: Callable[..., Run]) -> None:
    loop = run(keep_best=False)
    loop.step = 1
    loop.checkpoints().evaluated("eval/return", 1.0, protocol="a")
    assert loop.checkpoints().best is None
    assert not (loop.logs / "checkpoints").exists()


def test_a_checkpoint_says_how_long_the_run_was_to_be_and_holds_absolute_paths(
    run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").touch()
    loop = run({"data": {"path": "data.jsonl"}})
    loop.step, loop.content = 1, {"data.path": "0 bytes"}
    checkpoint = read_checkpoint(loop.checkpoints().save())
    assert checkpoint.state == {"step": 1, "optimizer_steps": 40, "content": {"data.path": "0 bytes"}}
    assert checkpoint.config == {"data": {"path": str(tmp_path / "data.jsonl")}}


def test_what_was_trained_before_an_evaluation_that_fails_is_saved(run: Callable[..., Run], tmp_path: Path) -> None:
    loop = run()
    checkpoints = loop.checkpoints()
    with pytest.raises(ValueError, match="no picture") as before, checkpoints.saved_if_it_fails():
        raise ValueError("no picture")
    assert not (tmp_path / "checkpoints").exists(), "nothing was trained"
    assert not getattr(before.value, "__notes__", ())
    loop.step = 5
    with pytest.raises(ValueError, match="no picture") as caught, checkpoints.saved_if_it_fails():
        raise ValueError("no picture")
    assert caught.value.__notes__ == [f"What was trained before is saved: {tmp_path / 'checkpoints/global_step_5'}"]
    assert loop.kept == {5}


def interrupted(checkpoints: Checkpointer, body: Callable[[], None]) -> list[str]:
    """What a loop says that is interrupted while it does something."""
    notes: list[str] = []

    def loop() -> None:
        with checkpoints.stoppable(notes.append):
            body()

    with pytest.raises(KeyboardInterrupt):
        loop()
    return notes


def test_an_interrupt_lets_the_iteration_end_and_saves(run: Callable[..., Run]) -> None:
    loop = run()
    checkpoints, before = loop.checkpoints(), signal.getsignal(signal.SIGINT)

    def body() -> None:
        for loop.step in range(1, 9):
            if loop.step == 3:
                signal.raise_signal(signal.SIGINT)
            checkpoints.stop_if_asked()

    notes = interrupted(checkpoints, body)
    assert loop.kept == {3}
    assert notes == [f"saved; go on with runner.resume_dir={loop.logs / 'checkpoints/global_step_3'}"]
    assert signal.getsignal(signal.SIGINT) == before


def test_a_run_that_fails_says_where_it_can_go_on(run: Callable[..., Run]) -> None:
    loop = run()
    checkpoints = loop.checkpoints()

    def fails() -> list[str]:
        with pytest.raises(RLinfError) as failed, checkpoints.stoppable(print):
            raise RLinfError("robot", "is gone")
        return getattr(failed.value, "__notes__", [])

    assert fails() == [
        "There is no checkpoint to go on from: runner.save_interval and runner.save_minutes say when one is written."
    ]
    loop.step = 2
    folder = checkpoints.save()
    assert fails() == [f"The run can go on from its last checkpoint: runner.resume_dir={folder}"]


def test_an_interrupt_that_comes_twice_at_once_is_one(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal signals the whole process group, and uv passes its own signal on."""
    monkeypatch.setattr(interrupts, "REPEATED_S", 600.0)
    loop = run()
    loop.step = 2
    checkpoints = loop.checkpoints()

    def body() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        checkpoints.stop_if_asked()

    assert interrupted(checkpoints, body) == [f"saved; go on with runner.resume_dir={loop.logs / 'checkpoints/global_step_2'}"]


def test_a_second_interrupt_gives_up(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "REPEATED_S", 0.0)
    loop = run()
    loop.step = 2
    checkpoints = loop.checkpoints()
    checkpoints.save()

    def body() -> None:
        loop.step = 3
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the run went on")

    assert interrupted(checkpoints, body) == [f"not saved; the last checkpoint is {loop.logs / 'checkpoints/global_step_2'}"]


def test_an_interrupted_run_has_so_much_time_and_no_more(run: Callable[..., Run]) -> None:
    loop = run(interrupt_timeout_s=0.05)
    loop.step = 1

    def body() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)

    assert interrupted(loop.checkpoints(), body) == ["not saved; there is no checkpoint"]


def test_a_worker_that_an_interrupt_ended_is_no_failure(run: Callable[..., Run]) -> None:
    loop = run()
    loop.step = 1

    def body() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("env[0] died")

    assert interrupted(loop.checkpoints(), body) == ["not saved (env[0] died); there is no checkpoint"]


def test_outside_of_the_main_thread_a_run_needs_no_handler(run: Callable[..., Run]) -> None:
    loop, done = run(), list[int]()
    checkpoints = loop.checkpoints()

    def train() -> None:
        with checkpoints.stoppable(lambda text: None):
            checkpoints.stop_if_asked()
            done.append(1)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    assert done == [1]
