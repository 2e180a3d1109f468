"""What the loop of fine-tuning does at its end; no cluster, no trainer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.core.metrics import Metric
from rlinf.runners.checkpoints.checkpoint import read_checkpoint
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.sft.runner import SFTRunner
from rlinf.runners.sft.schema import FineTuningRunnerConfig


class Done:
    """A call that has ended."""

    label = "actor"

    def __init__(self, found: Any = None) -> None:
        self.found = found

    def wait(self, timeout: float | None = None) -> list[Any]:
        return [self.found or {}]

    def done(self) -> bool:
        return True


def test_an_evaluation_that_fails_says_where_the_weights_are(tmp_path: Path) -> None:
    def evaluate(checkpoint: Path) -> Any:
        raise ValueError("the gripper fell off")

    settings = FineTuningRunnerConfig(experiment_name="x", max_steps=1)
    cfg: Any = SimpleNamespace(runner=settings, source={}, content={}, optimizer_steps=10, exports=False)
    actor: Any = SimpleNamespace(save_checkpoint=lambda folder: Done(), close=Done)
    runner: Any = SFTRunner(cfg, actor, RunFolder(tmp_path), evaluate=evaluate)
    runner.step, runner.validate = 1, lambda: {"eval/loss": 1.0}
    with pytest.raises(ValueError, match="gripper") as caught:
        runner._finish(SimpleNamespace(), runner.checkpoints.save_last())
    assert caught.value.__notes__ == [f"What was trained before is saved: {tmp_path / 'checkpoints/global_step_1'}"]


@pytest.mark.parametrize(("bound", "learned"), [(0.5, True), (0.25, False), (None, False)])
def test_a_run_that_its_loss_ended_is_over_when_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: float | None, learned: bool
) -> None:
    def begun(bound: float | None) -> Any:
        settings = FineTuningRunnerConfig(experiment_name="x", max_steps=9, val_check_interval=1, until_loss=bound)
        cfg: Any = SimpleNamespace(runner=settings, source={}, content={}, optimizer_steps=90, exports=False)
        actor: Any = SimpleNamespace(
            save_checkpoint=lambda folder: Done(),
            load_checkpoint=lambda folder: Done(),
            init_worker=lambda: Done([7]),
            validate=lambda: Done({"loss": Metric(0.4)}),
        )
        runner: Any = SFTRunner(cfg, actor, RunFolder(tmp_path))
        runner._protocol = {"hash": "0"}
        return runner

    runner = begun(0.5)
    runner.validate()
    saved = read_checkpoint(runner.checkpoints.save_last())
    monkeypatch.setattr("rlinf.runners.sft.runner.resumed_checkpoint", lambda cfg: saved)
    again = begun(bound)
    again.init_workers()
    assert again.learned == learned, "by the bound of now"
