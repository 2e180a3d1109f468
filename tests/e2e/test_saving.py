"""What was trained is kept, however a run ends; in one process, as the place is not the point."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rlinf.runners import read_checkpoint

LOCAL = "cluster.backend=local"
FAILS = ("env.eval.env_type=faulty:Faulty", "env.eval.init_params={raise_at: 3}")


@pytest.mark.parametrize(("interval", "saved"), [(0, 2), (1, 1)])
def test_an_evaluation_that_fails_loses_nothing(app: Any, tiny: list[str], interval: int, saved: int) -> None:
    code, said = app.train_here(*tiny, LOCAL, *FAILS, f"runner.val_check_interval={interval}")
    assert code == 1
    assert "the gripper fell off" in said
    folder = app.logs / f"tiny/checkpoints/global_step_{saved}"
    assert f"What was trained before is saved: {folder}" in said
    assert read_checkpoint(app.logs / "tiny").state["step"] == saved
    code, said = app.train_here(*tiny, LOCAL, "env.train.auto_reset=false", f"runner.resume_dir={folder}")
    assert code == 0, said
    assert json.loads((app.logs / "tiny/summary.json").read_text())["eval/episodes"] == 4


def test_an_interrupt_saves_before_it_stops(app: Any, faulty: list[str], processes: Any) -> None:
    run = app.start(*faulty, LOCAL, "runner.save_interval=0")
    try:
        processes.wait_until(lambda: len(app.metrics("faulty")) >= 2 or run.poll() is not None, 300, "two iterations")
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 130, errors
    done = read_checkpoint(app.logs / "faulty")
    assert done.state["step"] == len(app.metrics("faulty")) >= 2, "the iteration that was under way is saved"
    assert f"runner.resume_dir={done.folder}" in errors


def test_a_run_in_which_nothing_was_learned_fails(app: Any, tiny: list[str]) -> None:
    code, said = app.train_here(*tiny, LOCAL, "algorithm={adv_type: reinpp, loss_type: 'faulty:NoGradient'}")
    assert code == 1
    assert "skipped 100% of optimizer steps" in said
    assert "NonFiniteError: train/skipped: every optimizer step of 2 iterations was skipped" in said


def test_the_return_judges_a_task_without_a_goal(app: Any, tiny: list[str]) -> None:
    """And an evaluation says where its video is, and leaves that of another protocol alone."""
    code, said = app.train_here(*tiny, LOCAL, "runner.max_steps=1")
    assert code == 0, said
    assert "success" not in said
    assert "eval/return -" in said
    trained = json.loads((app.logs / "tiny/summary.json").read_text())
    assert not any("success" in key for key in trained)
    assert 0 < trained["time/wall_s"] < 600
    folders: list[Path] = []
    for episodes in (4, 8):
        args = (str(app.logs / "tiny"), LOCAL, f"env.eval.episodes={episodes}", "env.eval.video_cfg.save_video=true")
        code, said = app.evaluate_here(*args)
        assert code == 0, said
        (video,) = (Path(line) for line in said.splitlines() if line.endswith(".mp4"))
        assert video.exists()
        folders.append(video.parents[1])
    assert folders[0] != folders[1]
    found = [json.loads((folder / "summary.json").read_text())["protocol"]["episodes"] for folder in folders]
    assert found == [4, 8]


def test_the_time_of_a_second_run_in_a_process_is_its_own(app: Any, tiny: list[str]) -> None:
    taken: list[float] = []
    for name in ("first", "second"):
        code, said = app.train_here(*tiny, LOCAL, "runner.max_steps=1", f"runner.experiment_name={name}")
        assert code == 0, said
        rows = app.metrics(name)
        taken.append(rows[-1]["time/wall_s"] - rows[0]["time/step"])
    first = (app.logs / "first/summary.json").stat().st_mtime
    second = (app.logs / "second/summary.json").stat().st_mtime
    assert taken[1] < second - first, "the first run is no part of it"
