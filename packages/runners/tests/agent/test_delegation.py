"""Several agents in one episode: what is handed on, to whom, how many at a time, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import agent_toy
import numpy as np
import pytest
from agent_toy import DOUBLE, TagFormat, TagTokenizer, written

from rlinf.core.agents import Episode, Tool, ToolBox, ToolCall, ToolLimits
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.language.generation import SamplingConfig
from rlinf.runners.agent import Delegate, DelegateTool, episode_rows
from rlinf.runners.agent.reward_worker import transcript
from rlinf.runners.agent.schema import AgentSection
from rlinf.runners.conversations.tool_use import ToolFormatSection

TOKENIZER: Any = TagTokenizer()


@dataclass(frozen=True)
class TwoTools(TagFormat):
    """`<t>x</t>` doubles, `<t>:a b</t>` hands on a and b."""

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        calls = super().parse(text, tools)
        return tuple(
            ToolCall(name="delegate", arguments={"subtasks": call.arguments["x"][1:].replace(" ", "\n")})
            if call.arguments["x"].startswith(":")
            else call
            for call in calls
        )


@dataclass
class Script:
    """Says what belongs to what it has read; how many are asked at once is noted."""

    says: Mapping[str, Any]
    slow: Mapping[str, int] = field(default_factory=dict[str, int])
    asked: list[tuple[str, int]] = field(default_factory=list)
    now: int = 0
    most: int = 0

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingConfig, *, seed: int, request_id: str, partial: Any = None
    ) -> Any:
        text = TOKENIZER.decode(prompt)
        self.asked.append((text, seed))
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(self.slow.get(text, 1)):
            await asyncio.sleep(0)
        self.now -= 1
        said = self.says[text]
        if isinstance(said, Exception):
            raise said
        return said if not isinstance(said, str) else written(said)


def played(script: Script, workflow: Delegate, *, limits: ToolLimits | None = None, **changes: Any) -> Episode:
    config = AgentSection(tool_format=ToolFormatSection(type="toy", format=TwoTools()), workflow=workflow, attempts=1, **changes)
    tools = (DOUBLE, (DelegateTool().build(), limits or ToolLimits()))
    return agent_toy.played(script, config, SamplingConfig(max_new_tokens=99), prompt="lead:", tools=tools)


WIDE = {
    "lead:": "<t>:a b c</t>",
    "do a": "<t>a</t>",
    "do a<t>a</t>[aa]": "aa<eos>",
    "do b": "b<eos>",
    "do c": "<t>c</t>",
    "do c<t>c</t>[cc]": "cc<eos>",
    "lead:<t>:a b c</t>[[1] aa\n[2] b\n[3] cc]": "done<eos>",
}
TEAM = Delegate(sub_prompt="do {subtask}")


def test_agents_work_at_the_same_time_and_answer_in_order() -> None:
    script = Script(WIDE)
    episode = played(script, TEAM)
    assert (episode.finish, episode.answer, script.most) == ("stop", "done", 3)
    assert [branch.agent for branch in episode.branches] == ["lead", "lead.1", "lead.2", "lead.3"]
    assert [len(branch.turns) for branch in episode.branches] == [2, 2, 1, 2]
    text = transcript(episode, TOKENIZER)
    assert "[lead.3] <t>c</t>⟦[cc]⟧cc<eos>" in text


def test_one_row_for_each_agent_in_which_only_its_own_words_count() -> None:
    rows = episode_rows([played(Script(WIDE), TEAM)], [1.0], group=0, pad_id=0)
    assert np.asarray(rows.episode).tolist() == [0, 0, 0, 0]
    said: list[str] = []
    for ids, mask in zip(rows.action[..., 0, 0], rows.mask, strict=True):
        said.append(TOKENIZER.decode([int(token) for token in ids[mask]]))
    assert said == ["<t>:a b c</t>done<eos>", "<t>a</t>aa<eos>", "b<eos>", "<t>c</t>cc<eos>"]
    assert np.asarray(rows.reward).sum(1).tolist() == [1.0] * 4


def test_what_is_drawn_does_not_depend_on_who_is_first() -> None:
    one, other = Script(WIDE), Script(WIDE, slow={"do a": 9, "do b": 5})
    first, second = played(one, TEAM), played(other, TEAM)
    assert [text for text, _ in one.asked] != [text for text, _ in other.asked]
    assert dict(one.asked) == dict(other.asked)
    assert transcript(first, TOKENIZER) == transcript(second, TOKENIZER)
    assert len({seed for _, seed in one.asked}) == len(one.asked)


@pytest.mark.parametrize(
    ("workflow", "told"),
    [
        (Delegate(max_width=2), "expected at most 2 subtasks in a turn, found 3"),
        (Delegate(max_agents=3), "at most 2 more agents can be started, found 3 subtasks"),
        (Delegate(max_width=0), "nobody else works here, do it yourself"),
        (Delegate(max_depth=0), "nobody else works here, do it yourself"),
    ],
)
def test_what_goes_beyond_a_bound_becomes_a_message(workflow: Delegate, told: str) -> None:
    script = Script({"lead:": "<t>:a b c</t>", f"lead:<t>:a b c</t>[error: {told}]": "ok<eos>"})
    episode = played(script, workflow)
    assert (episode.answer, len(episode.branches), len(script.asked)) == ("ok", 1, 2)


def test_a_turn_that_hands_on_twice_is_bounded_as_one() -> None:
    says = {"lead:": "<t>:a b</t><t>:c d</t>", "a": "A<eos>", "b": "A<eos>"}
    told = "[[1] A\n[2] A][error: expected at most 3 subtasks in a turn, found 4]"
    episode = played(Script({**says, f"lead:{says['lead:']}{told}": "ok<eos>"}), Delegate(max_width=3))
    assert (episode.answer, len(episode.branches)) == ("ok", 3)


def test_depth_is_bounded_and_agents_may_have_agents() -> None:
    told = "[error: what was handed to you can't be handed on, do it yourself]"
    says = {"lead:": "<t>:a</t>", "a": "<t>:b</t>", f"a<t>:b</t>{told}": "A<eos>", "lead:<t>:a</t>[[1] A]": "ok<eos>"}
    episode = played(Script(says), Delegate())
    assert ([branch.agent for branch in episode.branches], episode.answer) == (["lead", "lead.1"], "ok")
    says = {"lead:": "<t>:a</t>", "a": "<t>:b</t>", "b": "E<eos>", "a<t>:b</t>[[1] E]": "A<eos>", "lead:<t>:a</t>[[1] A]": "k<eos>"}
    # One place: an agent that waits for its own must not wait for the place that it takes.
    episode = played(Script(says), Delegate(max_depth=2), limits=ToolLimits(max_concurrent=1, timeout_s=60))
    assert [branch.agent for branch in episode.branches] == ["lead", "lead.1", "lead.1.1"]
    assert episode.answer == "k"


def test_the_lead_calls_only_what_it_may() -> None:
    script = Script({"lead:": "<t>x</t>", "lead:<t>x</t>[error: no tool named 't'. Tools: delegate.]": "ok<eos>"})
    assert played(script, Delegate(lead_tools=())).answer == "ok"


def test_an_agent_without_an_answer_is_told_of() -> None:
    says = {"lead:": "<t>:a b</t>", "a": "<t>x</t>", "b": written("bb", "length")}
    read = "lead:<t>:a b</t>[[1] error: no answer, turns\n[2] error: no answer, length]"
    episode = played(Script({**says, read: "ok<eos>"}), Delegate(sub_turns=1))
    assert (episode.finish, episode.answer) == ("stop", "ok")
    assert [len(branch.turns) for branch in episode.branches] == [2, 1, 1]


def test_a_generator_that_fails_under_an_agent_ends_more_than_the_call() -> None:
    """A tool's error is a message; this one is nobody's message."""
    says = {"lead:": "<t>:a b</t>", "a": "A<eos>", "b": RLinfError("forward", "no memory")}
    with pytest.raises(RLinfError, match="no memory"):
        played(Script({**says, "lead:<t>:a b</t>[error: RLinfError: forward: no memory]": "ok<eos>"}), Delegate())


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(Delegate):
    """Notes how many tasks there are when it begins and when it failed."""

    tasks: list[int]

    async def __call__(self, task: Any, generate: Any) -> Episode:
        self.tasks.append(len(asyncio.all_tasks()))
        try:
            return await Delegate.__call__(self, task, generate)
        finally:
            self.tasks.append(len(asyncio.all_tasks()))


def test_agents_beside_one_that_fails_end_with_it() -> None:
    says = {"lead:": "<t>:a b</t>", "a": "A<eos>", "b": RLinfError("forward", "no memory")}
    tasks: list[int] = []
    with pytest.raises(RLinfError, match="no memory"):
        played(Script(says, slow={"a": 10**9}), Watched(tasks=tasks))
    assert tasks[0] == tasks[1], "nobody writes on into the next attempt"


def test_agents_that_take_too_long_are_ended_and_the_lead_is_told() -> None:
    told = "lead:<t>:a b</t>[error: 'delegate' did not answer within 1 s]"
    script = Script({"lead:": "<t>:a b</t>", "a": "A<eos>", "b": "never", told: "ok<eos>"}, slow={"b": 10**9})
    episode = played(script, Delegate(), limits=ToolLimits(timeout_s=1.0))
    assert (episode.finish, episode.answer) == ("stop", "ok")
    assert [branch.agent for branch in episode.branches] == ["lead", "lead.1"]


@pytest.mark.parametrize("changes", [{"max_width": -1}, {"max_agents": 0}, {"sub_prompt": "{task}"}, {"sub_result": "{0}"}])
def test_bounds_and_texts_are_checked(changes: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Delegate(**changes)


def test_the_tool_alone_has_nobody_to_hand_on_to() -> None:
    result = asyncio.run(ToolBox([DelegateTool().build()]).call(ToolCall(name="delegate", arguments={"subtasks": "a"})))
    assert result.outcome == "error"
    assert "only the workflow 'delegate' has agents" in result.text
