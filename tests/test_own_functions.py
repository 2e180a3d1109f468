"""A reward, a workflow or a tool of a user's that can't be called as a run calls it is refused before a worker starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.agents import AgentTask, Episode, Generate
from rlinf.core.errors import ConfigError
from rlinf.core.rewards import RewardSample, sample_reward
from rlinf.runners.agent import read_agent
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.reasoning import read_reasoning

CONFIG = Path(__file__).parents[1] / "apps/reasoning/config"


def texts(completions: Sequence[str], answers: Sequence[str], scale: float = 1.0) -> list[float]:
    return [scale for _ in zip(completions, answers, strict=True)]


def as_trl(completions: Sequence[str], **columns: object) -> list[float]:
    return [float(len(columns)) for _ in completions]


def as_verl(data_source: str, solution_str: str, ground_truth: str) -> float:
    return float(data_source == solution_str == ground_truth)


async def waits(completions: Sequence[str], answers: Sequence[str]) -> list[float]:
    return texts(completions, answers)


class Bare:
    def score_samples(self, samples: Sequence[RewardSample]) -> list[float]:
        return [1.0 for _ in samples]


@dataclass(frozen=True)
class Weighty:
    weight: float = 1.0

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        return texts(completions, answers, self.weight)


number = 3


@sample_reward
async def judge(samples: Sequence[RewardSample]) -> list[float]:
    return [1.0 for _ in samples]


def reasoning(*overrides: str) -> Any:
    return read_reasoning(compose_recipe(CONFIG, "grpo_arithmetic", ["~reward.after", *overrides]).data)


@pytest.mark.parametrize("name", ["texts", "judge"])
def test_what_can_be_called_is_taken(name: str) -> None:
    assert reasoning(f"reward.reward_type={__name__}:{name}").reward.reward is globals()[name]


def test_a_dataclass_has_its_fields_as_keys() -> None:
    own = reasoning(f"reward.reward_type={__name__}:Weighty", "+reward.weight=0.5").reward.reward
    assert own(["a"], ["b"]) == [0.5]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("as_trl", r"'as_trl\(completions.*\)' can't be called with completions and answers \(too many positional arguments\)"),
        ("as_verl", r"'as_verl\(data_source.*\)' can't be called .* \(missing a required argument: 'ground_truth'\)"),
        ("Bare", r"expected a function, found the class 'Bare', which is no dataclass"),
        ("number", r"expected a (function|name or a reward), found 3"),
        ("waits", r"expected no async function: .* with rlinf\.core\.rewards\.sample_reward"),
    ],
)
def test_what_can_not_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^reward\.reward_type: {message}"):
        reasoning(f"reward.reward_type={__name__}:{name}")
    parts = f"+reward.parts={{right: {{reward: exact_match}}, mine: {{reward: '{__name__}:{name}'}}}}"
    with pytest.raises(ConfigError, match=rf"^reward\.parts\.mine\.reward: {message}"):
        reasoning("reward.reward_type=composite", parts)


async def plays(task: AgentTask, generate: Generate) -> Episode:
    chat = task.conversation()
    written = await generate(chat)
    return Episode(branches=(chat.closed(),), finish="stop", answer=written.text)


async def plays_alone(task: AgentTask) -> Episode:
    raise NotImplementedError(str(task))


def waits_for_nothing(task: AgentTask, generate: Generate) -> Episode:
    raise NotImplementedError(f"{task} {generate}")


def agent(*overrides: str) -> Any:
    return read_agent(compose_recipe(CONFIG.parents[1] / "agent/config", "calculator_grpo", overrides).data)


def test_a_workflow_of_ones_own_is_an_async_function_of_task_and_generate() -> None:
    assert agent(f"agent.workflow_type={__name__}:plays").agent.workflow is plays
    for name, message in (
        ("plays_alone", r"'plays_alone\(task\)' can't be called with task and generate"),
        ("waits_for_nothing", "expected an async function, found the plain function 'waits_for_nothing'"),
        ("number", "expected a function, found 3"),
    ):
        with pytest.raises(ConfigError, match=rf"^agent\.workflow_type: {message}.*Write it as `async def"):
            agent(f"agent.workflow_type={__name__}:{name}")


def test_a_tool_that_can_not_be_built_is_told_under_its_key() -> None:
    with pytest.raises(ConfigError, match=rf"^agent\.tools\[1\]: expected a function at '{__name__}:number', found 3"):
        agent(f"agent.tools=[{{type: calculator}}, {{type: '{__name__}:number'}}]")
    server = "{type: mcp, server: sums, command: [no_such_program]}"
    with pytest.raises(ConfigError, match=r"^agent\.tools\[0\]\.command: no program 'no_such_program'\. Give its path"):
        agent(f"agent.tools=[{server}]")
