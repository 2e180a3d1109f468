import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.runners.checkpoints.checkpoint import write_checkpoint
from rlinf.runners.checkpoints.resuming import check_resume, misses_evaluation, resumed_checkpoint
from rlinf.runners.checkpoints.run_folder import open_run_folder, run_folder
from rlinf.runners.embodied.rules import read_embodied


@dataclass(frozen=True)
class Optim:
    lr_scheduler: str = "linear"
    total_training_steps: int | None = None


@dataclass(frozen=True)
class Scheduled:
    optim: Optim = field(default_factory=Optim)

    def build(self, policy: Any, **ranks: Any) -> Any: ...


Make = Callable[..., Any]


@pytest.fixture
def resumed(toy_data: dict[str, Any], tmp_path: Path) -> Make:
    """A run of so many iterations that goes on from a checkpoint after 4 of 5 iterations, which were to take 40 optimizer steps."""
    folder = tmp_path / "checkpoints/global_step_4"
    write_checkpoint(folder, lambda part: None, config={}, state={"step": 4, "optimizer_steps": 40, "env_steps": 0})

    def make(max_steps: int, *, optim: Optim | None = None, **train: Any) -> Any:
        toy_data["runner"] |= {"resume_dir": str(folder), "max_steps": max_steps}
        toy_data["env"]["train"] |= train
        cfg = read_embodied(toy_data)
        trainer = cfg.actor.trainer if optim is None else Scheduled(optim)
        return replace(cfg, actor=replace(cfg.actor, trainer=trainer))

    return make


def test_a_run_that_is_shorter_than_its_checkpoint_is_refused(resumed: Make) -> None:
    for check in (check_resume, resumed_checkpoint):
        with pytest.raises(ConfigError, match=r"runner\.max_steps: expected at least the 4 iterations that '.*global_step_4' has"):
            check(resumed(3))


def test_a_checkpoint_of_another_kind_of_run_is_refused(resumed: Make, tmp_path: Path) -> None:
    for made, name in (("embodied_off_policy", "of another"), ("embodied", "of this")):
        folder, config = tmp_path / name / "global_step_4", {"runner": {"task_type": made}}
        write_checkpoint(folder, lambda part: None, config=config, state={"step": 4, "optimizer_steps": 40})
        cfg = resumed(5)
        cfg = replace(cfg, runner=replace(cfg.runner, resume_dir=str(folder)))
        if made == "embodied":
            check_resume(cfg)
            continue
        message = r"^runner\.resume_dir: .* of the task type embodied_off_policy, and this one is embodied\. .* runner\.ckpt_path"
        with pytest.raises(ConfigError, match=message):
            check_resume(cfg)


def test_a_run_that_is_as_long_is_only_evaluated(resumed: Make, capsys: pytest.CaptureFixture[str]) -> None:
    check_resume(resumed(4))
    assert "all 4 iterations are done; only the last evaluation is run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        (None, False),
        ('{"step": 3, "eval/return": 1.0}\n{"step": 4, "train/loss": 1.0}\n', True),
        ('{"step": 4, "train/loss": 1.0}\n{"step": 4, "eval/return": 1.0}\n{"step": 40, "train/loss": 1.0}\n', False),
        ('{"step": 4, "eval/return": 1.0}\n{"step": 4, "train/loss": 1.0}\n', True),  # the first is of a branch that was left
        ('{"step": 3, "eval/return": 1.0}\n{"step": 4, "eval/ret', True),
    ],
)
def test_whether_a_checkpoint_was_evaluated_is_read_from_the_numbers_of_its_run(
    resumed: Make, tmp_path: Path, lines: str | None, missing: bool
) -> None:
    if lines is not None:
        (tmp_path / "metrics.jsonl").write_text(lines)
    assert misses_evaluation(resumed(5)) == missing


def test_a_schedule_does_not_stretch_in_silence(resumed: Make, capsys: pytest.CaptureFixture[str]) -> None:
    steps = resumed(5).optimizer_steps
    assert steps == 40, "as the checkpoint was planned"
    check_resume(resumed(5, optim=Optim()))
    message = r"actor\.optim\.total_training_steps: expected the 40 optimizer steps .* found 48: .* Set it to 40 for .* or to 48"
    with pytest.raises(ConfigError, match=message):
        check_resume(resumed(6, optim=Optim()))
    check_resume(resumed(6, optim=Optim("constant")))
    check_resume(resumed(6, optim=Optim("linear", 48)))
    check_resume(resumed(6))


def test_what_is_not_as_before_is_said(resumed: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = resumed(5)
    folder, before = tmp_path / "checkpoints/global_step_4", copy.deepcopy(dict(cfg.source))
    state = {"step": 4, "optimizer_steps": 40, "env_steps": 0, "content": {"algorithm.gamma": "1 byte"}}
    before["algorithm"]["gamma"] = 0.5
    before["runner"]["max_steps"] = 4
    before["actor"]["micro_batch_size"] = 3
    write_checkpoint(folder, lambda part: None, config=before, state=state)
    check_resume(cfg)
    said = capsys.readouterr().err
    assert f"resuming: not as in {folder}: " in said
    assert re.search(r"actor\.micro_batch_size is .* \(was 3\); algorithm\.gamma is .* \(was 0\.5\)\n", said)
    write_checkpoint(folder, lambda part: None, config=dict(cfg.source), state=state)
    check_resume(cfg)
    assert f"resuming: not as in {folder}: the file of algorithm.gamma has changed\n" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_there_is_refused_at_once(resumed: Make, toy_data: dict[str, Any], tmp_path: Path) -> None:
    resumed(6)
    toy_data["runner"]["resume_dir"] = str(tmp_path / "nowhere")
    with pytest.raises((CheckpointError, ConfigError), match="nowhere"):
        check_resume(read_embodied(toy_data))


def test_a_run_that_starts_anew_needs_no_checkpoint(toy_data: dict[str, Any]) -> None:
    cfg = read_embodied(toy_data)
    check_resume(cfg)
    assert resumed_checkpoint(cfg) is None


@pytest.fixture
def automatic(toy_data: dict[str, Any], tmp_path: Path) -> Any:
    toy_data["runner"] |= {"resume_dir": "auto", "max_steps": 200, "logger": {"log_path": str(tmp_path)}}
    return read_embodied(toy_data)


def test_auto_starts_anew_without_a_checkpoint_and_says_so(automatic: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check_resume(automatic)
    said = f"resuming: nothing yet in {run_folder(automatic).checkpoints}: the run starts anew"
    assert said in capsys.readouterr().err
    assert resumed_checkpoint(automatic) is None
    # What an earlier run of that name left, which never came to a checkpoint, is kept beside.
    run_folder(automatic).path.mkdir(parents=True)
    (run_folder(automatic).path / "metrics.jsonl").touch()
    open_run_folder(automatic)
    assert not run_folder(automatic).metrics.exists()
    assert run_folder(automatic).path.with_name("toy.1").is_dir()


def test_auto_goes_on_from_the_checkpoint_with_the_most_iterations(automatic: Any, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = run_folder(automatic).checkpoints
    for step in (100, 20):
        state = {"step": step, "optimizer_steps": automatic.optimizer_steps, "env_steps": 0}
        write_checkpoint(checkpoints / f"global_step_{step}", lambda part: None, config={}, state=state)
    # What a killed run left of a later one.
    (checkpoints / ".global_step_120.partial").mkdir()
    check_resume(automatic)
    assert f"resuming: from {checkpoints / 'global_step_100'}\n" in capsys.readouterr().err
    found = resumed_checkpoint(automatic)
    assert found is not None
    assert found.state["step"] == 100
    assert open_run_folder(automatic).path == run_folder(automatic).path
    assert (checkpoints / "global_step_100").is_dir(), "the run goes on in its folder"
