"""`code_grpo` from end to end: programs run in the sandbox, as a tool and by the reward, whose parts are weighted and logged."""

from __future__ import annotations

from pathlib import Path

import pytest
from reasoning_app import ReasoningApp

from rlinf.envs.sandbox import ProcessSandbox

pytestmark = pytest.mark.skipif(bool(ProcessSandbox().refusal()), reason="this machine does not allow the sandbox's level")


def recipe(logs: Path) -> ReasoningApp:
    return ReasoningApp(logs, app="agent", recipe=("--config-name", "code_grpo"))


def test_programs_are_run_scored_by_their_share_of_cases_and_by_their_shape(tmp_path: Path) -> None:
    """Half of them pass all five cases in the right shape; the others fail the one of f(0), without the tags."""
    app = recipe(tmp_path)
    app.train(
        *("sft=null", "agent.workflow_type=toy_agent:programs", "runner.max_steps=2", "runner.val_check_interval=0"),
        # A busy machine may not run a program for a while.
        *("agent.tools=[{type: python, program_time_s: 60, timeout_s: 120}]", "reward.parts.tests.params.case_time_s=60"),
        *("data.rollout_batch_size=4", "data.train=4", "data.validation=4", "data.val_problems=4", "data.final_problems=4"),
        *(
            "rollout.group_size=2",
            "actor.global_batch_size=8",
            "actor.micro_batch_size=8",
            "rollout.sampling_params.max_new_tokens=4",
        ),
    )
    for row in app.rows().values():
        assert row["rollout/failed"] == 0
        assert row["rollout/reward/tests"] == pytest.approx(0.9)
        assert row["rollout/reward/tests_std"] == pytest.approx(0.1)
        assert row["rollout/reward/format"] == row["rollout/reward/format_std"] == 0.5
        assert row["rollout/rewards"] == pytest.approx(0.95)
        assert row["rollout/rewards_std"] == pytest.approx(0.15)
        assert row["rollout/accuracy"] == 0.5
    assert app.summary()["eval/accuracy"] == 0.5


@pytest.mark.slow
def test_functions_pass_more_and_more_of_their_cases(tmp_path: Path) -> None:
    """32.8 % after the warm start; 84.4 % [77.1, 89.7] was measured in the end, with this seed."""
    app = recipe(tmp_path)
    app.train("runner.seed=1")
    assert app.metrics()[0]["eval/accuracy"] <= 0.45
    assert app.summary()["eval/accuracy"] >= 0.75
