"""`reasoning_gym_grpo` from end to end, without its warm start."""

from __future__ import annotations

from pathlib import Path

import pytest
from reasoning_app import ReasoningApp

pytest.importorskip("reasoning_gym")


def test_problems_of_the_library_are_answered_and_scored_by_it(tmp_path: Path) -> None:
    app = ReasoningApp(tmp_path, recipe=("--config-name", "reasoning_gym_grpo"))
    app.train(
        *("sft=null", "runner.max_steps=1", "runner.val_check_interval=0", "reward.strict=false", "data.train=20"),
        *("data.rollout_batch_size=8", "data.validation=8", "data.val_problems=8", "data.final_problems=8"),
        *("rollout.group_size=4", "actor.global_batch_size=32", "rollout.sampling_params.max_new_tokens=3"),
    )
    (row,) = app.rows().values()
    # The library gives a number that is wrong a little, and what is no number nothing; an untrained model writes both.
    assert 0 < row["rollout/rewards"] < 0.2
    assert row["rollout/rewards_std"] > 0
    assert app.summary()["protocol"]["data"]["dataset"] == "chain_sum"
