"""The recipes of learned rewards, one after another as documented: examples, a policy, who scores it, and the run."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

APP = Path(__file__).parents[2] / "apps/reasoning"
FEW = ("cluster.backend=local", "runner.logger.log_path=logs", "runner.max_steps=1", "runner.val_check_interval=0")
LEARN = (*FEW, "runner.steps_per_iteration=2", "data.val_problems=8")
PLAY = (*FEW, "data.rollout_batch_size=4", "rollout.group_size=4", "actor.global_batch_size=16", "actor.micro_batch_size=16")


def app(script: str, *arguments: str) -> None:
    assert runpy.run_path(str(APP / script))["main"](list(arguments)) == 0


def metrics(run: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in Path("logs", run, "metrics.jsonl").read_text().splitlines():
        found |= json.loads(line)
    return found


def played(recipe: str) -> dict[str, Any]:
    app("train.py", "--config-name", recipe, *PLAY, "+data.train=200", "data.val_problems=8", "data.final_problems=8")
    return metrics(recipe)


def one_part_says_it(found: dict[str, Any], weight: float) -> None:
    """Accuracy is that of the rule; the sum is what is trained on."""
    right, liked = found["rollout/reward/right"], found["rollout/reward/liked"]
    assert found["rollout/accuracy"] == right
    assert found["rollout/rewards"] == pytest.approx(right + weight * liked)


@pytest.mark.slow
def test_the_documented_commands_reach_both_learned_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app("preference_pairs.py", "--out", "data/arithmetic_pairs.jsonl", "--terms", "4", "--pairs", "200")
    app("preference_pairs.py", "--out", "data/arithmetic_questions.jsonl", "--terms", "4", "--pairs", "200", "--questions")
    app("sft.py", *LEARN, "+data.train=200", "+data.terms=4", "+data.guessed_share=0.9")
    app("sft.py", "--config-name", "reward_arithmetic_warm", *LEARN)
    found = played("grpo_arithmetic_reward_model")
    one_part_says_it(found, 0.1)
    assert found["train/kl_ref"] == 0.0
    app("sft.py", "--config-name", "judge_arithmetic", *LEARN)
    found = played("grpo_arithmetic_judge")
    one_part_says_it(found, 0.5)
    assert 0 < found["rollout/reward/liked"] < 1
