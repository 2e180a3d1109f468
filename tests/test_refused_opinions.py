"""A reward that was learned has no right and wrong of its own: a run says what counts as right, or does not begin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.runners.agent import read_agent
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.reasoning import read_reasoning

APPS = Path(__file__).parents[1] / "apps"
LIKED = "liked: {reward: yes_no, params: {model: {preset: tiny}}}"
RIGHT = "right: {reward: exact_match, weight: %s, params: {after: '#'}}"
MISSING = r"^reward\.success: missing: '%s' has a model's opinion in it.*reward\.success_part"


def reasoning(*overrides: str) -> Any:
    return read_reasoning(compose_recipe(APPS / "reasoning/config", "grpo_arithmetic", overrides).data)


def parts(*written: str) -> list[str]:
    return ["reward.reward_type=composite", f"+reward.parts={{{', '.join(written)}}}"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward.reward_type=reward_model", "+reward.model.preset=tiny"], MISSING % "reward_model"),
        (["reward.reward_type=yes_no", "+reward.model.preset=tiny"], MISSING % "yes_no"),
        (parts(RIGHT % 1, LIKED), MISSING % "composite"),
        ([*parts(RIGHT % 1, LIKED), "+reward.success_part=liked"], MISSING % "liked"),
        (
            [*parts(RIGHT % 1, LIKED), "+reward.success_part=rigth"],
            r"^reward\.success_part: .*no part 'rigth'\. Did you mean 'right'",
        ),
        (["+reward.success_part=right"], r"^reward\.success_part: the reward 'exact_match' has no part 'right'"),
    ],
)
def test_an_opinion_alone_says_not_what_is_right(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.compile(message, re.DOTALL)):
        reasoning(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["reward.reward_type=reward_model", "+reward.model.preset=tiny", "+reward.success=1.0"],
        [*parts(RIGHT % 1, LIKED), "+reward.success_part=right"],
        [*parts(RIGHT % 0, LIKED), "+reward.success_part=right"],
        parts(RIGHT % 1, LIKED.replace("yes_no", "yes_no, weight: 0")),
        parts(RIGHT % 1),
    ],
)
def test_a_rule_or_the_user_says_it(overrides: list[str]) -> None:
    reasoning(*overrides)


def test_agents_are_asked_the_same() -> None:
    overrides = ["reward.reward_type=yes_no", "+reward.model.preset=tiny"]
    with pytest.raises(ConfigError, match=MISSING % "yes_no"):
        read_agent(compose_recipe(APPS / "agent/config", "calculator_grpo", overrides).data)
