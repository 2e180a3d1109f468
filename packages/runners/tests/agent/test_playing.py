"""An episode ends in some way, whatever happens: with its deadline, its attempts and its context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import agent_toy
import pytest
from agent_toy import TagFormat, TagTokenizer, written

from rlinf.core.agents import AgentTask, Episode, Generate
from rlinf.core.errors import RLinfError
from rlinf.core.language.generation import SamplingConfig
from rlinf.runners.agent.episode_groups import EpisodeGroup
from rlinf.runners.agent.reward_worker import transcript
from rlinf.runners.agent.schema import AgentSection
from rlinf.runners.agent.workflows import UseTools
from rlinf.runners.conversations.tool_use import ToolFormatSection

TOKENIZER = TagTokenizer()


@dataclass
class Scripted:
    """A generator that says what it is told to."""

    says: list[Any]
    context_length: int | None = None
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    seen: Callable[[int], None] = lambda count: None

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingConfig, *, seed: int, request_id: str, partial: Any = None
    ) -> Any:
        self.asked.append((TOKENIZER.decode(prompt), sampling.max_new_tokens, seed))
        said = self.says.pop(0)
        self.seen(len(self.asked))
        await asyncio.sleep(0)
        if isinstance(said, Exception):
            raise said
        return said if not isinstance(said, str) else written(said)


def section(workflow: Any = None, **changes: Any) -> AgentSection:
    tool_format = ToolFormatSection(type="toy", format=TagFormat())
    return AgentSection(tool_format=tool_format, workflow=workflow or UseTools(), **changes)


def played(generator: Scripted, config: AgentSection, abort_after: int | None = None) -> Episode:
    """One episode; a caller aborts it after so many requests."""
    writer: Any = generator
    group = EpisodeGroup(writer)

    def look(count: int) -> None:
        group.aborted = count == abort_after

    generator.seen = look
    return agent_toy.played(generator, config, SamplingConfig(max_new_tokens=5), group=group)


def test_a_model_calls_tools_until_it_answers() -> None:
    generator = Scripted(["<t>c</t>", "<t>e</t>", "done<eos>"])
    episode = played(generator, section())
    assert (episode.finish, episode.answer, len(episode), episode.attempts) == ("stop", "done", 3 + 3 + 5, 1)
    texts = [text for text, _, _ in generator.asked]
    assert texts == ["ab:", "ab:<t>c</t>[cc]", "ab:<t>c</t>[cc]<t>e</t>[error: no]"]
    assert len({seed for _, _, seed in generator.asked}) == 3
    assert [[result.outcome for result in turn.results] for turn in episode.own_turns] == [["ok"], ["error"], []]
    assert transcript(episode, TOKENIZER) == "<t>c</t>⟦[cc]⟧<t>e</t>⟦[error: no]⟧done<eos>"


def test_turns_are_bounded() -> None:
    episode = played(Scripted(["<t>c</t>"] * 9), section(max_turns=2))
    assert (episode.finish, episode.answer, len(episode.own_turns)) == ("turns", "", 2)


def test_a_turn_that_is_cut_off_ends_the_episode() -> None:
    episode = played(Scripted(["<t>c</t>", written("abcde", "length")]), section())
    assert (episode.finish, episode.answer) == ("length", "abcde")


def test_the_context_bounds_a_turn_and_ends_the_episode() -> None:
    generator = Scripted(["<t>c</t>", "<t>d</t>", "x"], context_length=12)
    episode = played(generator, section())
    assert [most for _, most, _ in generator.asked] == [5, 2]
    assert (episode.finish, episode.answer, len(episode.own_turns)) == ("length", "", 2)


def test_an_abort_ends_the_episode_with_what_was_written() -> None:
    episode = played(Scripted(["<t>c</t>", "<t>d</t>", "x"]), section(), abort_after=2)
    assert (episode.finish, len(episode.own_turns)) == ("abort", 2)
    assert played(Scripted([written("ab", "abort")]), section()).finish == "abort"


def breaks(times: int) -> Any:
    left = [times]

    async def workflow(task: AgentTask, generate: Generate) -> Episode:
        """Fails some times, after a turn."""
        chat = task.conversation()
        await generate(chat)
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("lost")
        return Episode(branches=(chat.closed(),), finish="stop", answer="ok")

    return workflow


@pytest.mark.parametrize(("times", "finish", "attempts"), [(0, "stop", 1), (1, "stop", 2), (2, "error", 2)])
def test_a_failed_attempt_is_begun_anew_and_then_is_data(times: int, finish: str, attempts: int) -> None:
    generator = Scripted(["a<eos>"] * 3)
    episode = played(generator, section(breaks(times)))
    assert (episode.finish, episode.attempts, episode.failed) == (finish, attempts, finish == "error")
    assert episode.failure == ("ValueError: lost" if finish == "error" else "")
    assert len({seed for _, _, seed in generator.asked}) == attempts  # another attempt draws other tokens


def test_a_workflow_that_returns_no_episode_is_told_so() -> None:
    async def forgets(task: AgentTask, generate: Generate) -> Any:
        """Returns nothing."""
        await generate(task.conversation())

    failure = played(Scripted(["a<eos>"] * 2), section(forgets)).failure
    assert failure.startswith("TypeError: the workflow ")
    assert failure.endswith(" returned None, expected an Episode")


def test_an_episode_has_a_deadline() -> None:
    async def hangs(task: AgentTask, generate: Generate) -> Episode:
        """Never ends."""
        await generate(task.conversation())
        await asyncio.sleep(3600)
        raise AssertionError

    episode = played(Scripted(["a<eos>"] * 2), section(hangs, episode_timeout_s=0.02))
    assert (episode.finish, episode.failed) == ("timeout", True)
    assert "agent.episode_timeout_s = 0.02" in episode.failure


def test_a_timeout_of_the_workflow_itself_is_its_error() -> None:
    async def impatient(task: AgentTask, generate: Generate) -> Episode:
        """Waits too little."""
        async with asyncio.timeout(0):
            await asyncio.sleep(1)
        raise AssertionError

    assert played(Scripted([]), section(impatient, attempts=1)).finish == "error"


def test_what_the_generator_fails_with_is_no_fault_of_the_episode() -> None:
    with pytest.raises(RLinfError, match="no memory"):
        played(Scripted([RLinfError("forward", "no memory")]), section())

    async def swallows(task: AgentTask, generate: Generate) -> Episode:
        """Hides the cause."""
        try:
            await generate(task.conversation())
        except RLinfError:
            raise ValueError("something") from None
        raise AssertionError

    with pytest.raises(RLinfError, match="no memory"):
        played(Scripted([RLinfError("forward", "no memory")]), section(swallows))
