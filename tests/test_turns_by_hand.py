"""Advantages of agents' episodes, from the conversation to the number of each token, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlinf.core.agents import Branch, Episode, Turn
from rlinf.core.data import Completion, Trajectory
from rlinf.core.language.problems import Problem, WorkedTurn
from rlinf.core.language.tool_calls import ToolCall, ToolResult
from rlinf.core.registry import ADVANTAGES
from rlinf.models.language import TokensConfig, _tokenizers
from rlinf.runners.agent import episode_rows
from rlinf.runners.config.sections import read_section
from rlinf.runners.conversations.tool_use import ToolUseConfig
from rlinf.runners.sft.examples import example_with_tools


def turn(read: int, wrote: int, reward: float = 0.0) -> Turn:
    nothing = np.zeros(wrote, np.float32)
    completion = Completion(tokens=np.full(wrote, 5), logprob=nothing, version=np.zeros(wrote, int), finish="stop")
    return Turn(prompt=(4,) * read, completion=completion, text="", reward=reward)


def episode(*turns: Turn, finish: Any = "stop") -> Episode:
    return Episode(branches=(Branch(turns=turns),), finish=finish)


def credit(rows: Trajectory[Any], name: str, **params: Any) -> list[list[float]]:
    found = ADVANTAGES.build(name, params, place="algorithm")(rows.map(torch.as_tensor))
    return [[round(float(x), 4) for x in row] for row in found.advantage]


def test_grpo_compares_episodes_and_leaves_what_was_read_alone() -> None:
    """Returns 1.5, 0 and 0 of one group; mean 0.5, deviation √(1/2 · (1 + 0.25 + 0.25)) = 0.8660."""
    episodes = [
        episode(turn(2, 1, 0.5), turn(2, 2)),  # 0.5 for its first turn, 1 for the whole
        episode(turn(2, 3)),
        episode(turn(2, 1), turn(1, 1)),
    ]
    rows = episode_rows(episodes, [1.0, 0.0, 0.0], group=0, pad_id=0)
    good, bad = 1.1547, -0.5774
    assert credit(rows, "grpo", eps=0.0) == [
        [0, good, 0, 0, good, good],
        [0, bad, bad, bad, 0, 0],
        [0, bad, 0, bad, 0, 0],
    ]


def test_a_failed_episode_changes_no_statistic() -> None:
    """Without it 1 and 0: mean 0.5, deviation √0.5."""
    failed = episode(turn(2, 2), finish="error")
    rows = episode_rows([episode(turn(2, 1)), failed, episode(turn(2, 1))], [1.0, 0.0, 0.0], group=0, pad_id=0)
    assert credit(rows, "grpo", eps=0.0) == [[0, 0.7071], [0, 0], [0, -0.7071]]


@pytest.mark.parametrize(("mode", "expected"), [("turn", (0.5774, 0.5774, -1.1547)), ("trajectory", (0.7071, 0.7071, -0.7071))])
def test_an_episode_of_two_branches_counts_once_or_twice(mode: str, expected: tuple[float, ...]) -> None:
    """Over rows: 1, 1, 0, mean 2/3, deviation 0.5774. Over episodes: 1, 0, mean 1/2, deviation 0.7071."""
    first = turn(2, 1)
    branches = (Branch(turns=(first, turn(1, 1))), Branch(turns=(first, turn(1, 2)), inherited=1))
    rows = episode_rows([Episode(branches=branches, finish="stop"), episode(turn(2, 1))], [1.0, 0.0], group=0, pad_id=0)
    one, two, other = expected
    assert credit(rows, "grpo_dynamic", advantage_mode=mode, eps=0.0) == [
        [0, one, 0, one, 0],
        [0, 0, 0, two, two],
        [0, other, 0, 0, 0],
    ]


def team(lead: tuple[int, ...], *others: int) -> Episode:
    """A lead of turns with so many tokens, and agents of one turn each."""
    rows = [tuple(turn(1, wrote) for wrote in lead), *((turn(1, wrote),) for wrote in others)]
    names = ["lead", *(f"lead.{number}" for number in range(1, len(rows)))]
    return Episode(branches=tuple(Branch(turns=t, agent=n) for t, n in zip(rows, names, strict=True)), finish="stop")


@pytest.mark.parametrize(
    ("mode", "advantages"),
    [
        # Four rows of 1 and two of 0: mean 2/3, deviation √(4/15) = 0.5164.
        ("turn", (0.6455, -1.2910)),
        # Two episodes, 1 and 0: mean 1/2, deviation 0.7071.
        ("trajectory", (0.7071, -0.7071)),
    ],
)
def test_all_agents_of_an_episode_share_its_outcome(mode: str, advantages: tuple[float, float]) -> None:
    """A lead with three agents, whose table is right; a lead with one, whose table is wrong."""
    rows = episode_rows([team((2, 1), 1, 2, 1), team((1,), 2)], [1.0, 0.0], group=0, pad_id=0)
    good, bad = advantages
    assert credit(rows, "grpo_dynamic", advantage_mode=mode, eps=0.0) == [
        [good, good, 0, good],
        [good, 0, 0, 0],
        [good, good, 0, 0],
        [good, 0, 0, 0],
        [bad, 0, 0, 0],
        [bad, bad, 0, 0],
    ]


@pytest.mark.parametrize(
    ("scale", "factors"),
    [
        # 10 decisions, 2 episodes of 7 and 3: each token of the first counts 10 / 2 / 7.
        ("episode", ((0.7143,) * 3, 0.7143, 0.7143, 0.7143, 1.6667, 1.6667)),
        # 6 rows of 3, 1, 2, 1, 1 and 2.
        ("agent", ((0.5556,) * 3, 1.6667, 0.8333, 1.6667, 1.6667, 0.8333)),
        # 7 turns: the lead's of 2 and 1, and those of the others.
        ("turn", ((0.7143, 0.7143, 1.4286), 1.4286, 0.7143, 1.4286, 1.4286, 0.7143)),
    ],
)
def test_what_counts_once_may_be_an_episode_an_agent_or_a_turn(scale: str, factors: Any) -> None:
    rows = episode_rows([team((2, 1), 1, 2, 1), team((1,), 2)], [1.0, 0.0], group=0, pad_id=0)
    found = credit(rows, "grpo_dynamic", advantage_mode="trajectory", eps=0.0, unbiased=False, loss_scale=scale)
    (one, two, three), others = factors[0], factors[1:]
    expected = [[one, two, 0, three], *([factor, factor, 0, 0] for factor in others)]
    signs = [1, 1, 1, 1, -1, -1]
    for row, sign, wanted, mask in zip(found, signs, expected, rows.mask.tolist(), strict=True):
        assert row == pytest.approx([sign * factor * decided for factor, decided in zip(wanted, mask, strict=True)], abs=2e-4)


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_a_worked_example_in_a_chat_is_laid_out_as_an_episode_would_be(kind: Any) -> None:
    """Messages, a chat template, calls as JSON: what the assistant said is learned, with its ends; all else is read."""
    tokenizer = _tokenizers.made(TokensConfig(kind=kind), ["6*7"])
    tools = ({"type": "calculator"},)
    data = {"tools": list(tools), "tool_format": {"type": "hermes"}}
    use = read_section(ToolUseConfig, data, "data.agent")
    call = ToolCall(name="calculator", arguments={"expression": "6*7"})
    turns = (WorkedTurn(text="I ask. ", calls=(call,), results=(ToolResult(text="42"),)), WorkedTurn(text="42"))
    problem = Problem(prompt=({"role": "user", "content": "6*7?"},), answer="42", id=0, turns=turns)
    found = example_with_tools(problem, tokenizer, use, use.built())
    told = use.tool_format.format.instructions(use.built())
    assert tokenizer.decode(found.prompt) == f"system: {told}\nuser: 6*7?\nassistant: "
    learned = [token for place, token in enumerate(found.response) if place not in found.read]
    read = [token for place, token in enumerate(found.response) if place in found.read]
    said = 'I ask. <tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call><eos>42<eos>'
    assert tokenizer.decode(learned) == said
    assert tokenizer.decode(read) == "\nuser: <tool_response>\n42\n</tool_response>\nassistant: "
