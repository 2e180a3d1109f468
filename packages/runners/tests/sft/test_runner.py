"""What the loop of fine-tuning does at its end; no cluster, no trainer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.sft.runner import SFTRunner
from rlinf.runners.sft.schema import FineTuningRunnerConfig


class Done:
    """A call that has ended."""

    label = "actor"

    def wait(self, timeout: float | None = None) -> list[Any]:
        return [{}]

    def done(self) -> bool:
        return True


def test_an_evaluation_that_fails_says_where_the_weights_are(tmp_path: Path) -> None:
    def evaluate(checkpoint: Path) -> Any:
        raise ValueError("the gripper fell off")

    settings = FineTuningRunnerConfig(experiment_name="x", max_steps=1)
    cfg: Any = SimpleNamespace(runner=settings, source={}, optimizer_steps=10, exports=False)
    actor: Any = SimpleNamespace(save_checkpoint=lambda folder: Done(), close=Done)
    runner: Any = SFTRunner(cfg, actor, RunFolder(tmp_path), evaluate=evaluate)
    runner.step, runner.validate = 1, lambda: {"eval/loss": 1.0}
    with pytest.raises(ValueError, match="gripper") as caught:
        runner._finish(SimpleNamespace(), runner.checkpoints.save_last())
    assert caught.value.__notes__ == [f"What was trained before is saved: {tmp_path / 'checkpoints/global_step_1'}"]
