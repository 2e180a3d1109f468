"""One episode: a workflow with a deadline, attempts, and an end for everything that can go wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

from rlinf.core.agents import Conversation, Episode, EpisodeFinish, ToolBox, Turn
from rlinf.core.capabilities import HasContext
from rlinf.core.errors import RLinfError
from rlinf.core.generation import Generator, SamplingConfig
from rlinf.core.problems import Problem, Tokenizer
from rlinf.core.random import keyed_seed
from rlinf.runners.agent.schema import AgentSection
from rlinf.runners.conversations.conversation import RenderingError, TokenConversation
from rlinf.runners.reasoning.language import as_numpy, encode_prompt


class OutOfContext(Exception):
    """A conversation is as long as the generator can hold; where a workflow lets it pass, its episode ends with "length"."""


class Aborted(Exception):
    """A caller ended the episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a workflow is given; see `rlinf.core.agents.AgentTask`."""

    problem: Problem
    """As the model reads it."""
    prompt: tuple[int, ...]
    """Its tokens."""
    tools: ToolBox
    """What may be called."""
    config: AgentSection
    """That of the run."""
    tokenizer: Tokenizer
    """That of the model."""
    opened: list[TokenConversation] = field(default_factory=list[TokenConversation])
    """All conversations, in the order in which they began."""

    @property
    def max_turns(self) -> int:
        """How many turns a conversation may have."""
        return self.config.max_turns

    def conversation(self, agent: str = "", *, prompt: str | None = None, tools: ToolBox | None = None) -> TokenConversation:
        """A new conversation that begins with the problem, or with a prompt of its own."""
        form, callable_here = self.config.tool_format.format, (tools or self.tools).tools
        problem, tokens = self.problem, self.prompt
        if prompt is not None:
            chats = not isinstance(self.problem.prompt, str)
            asked = ({"role": "user", "content": prompt},) if chats else prompt
            problem = self.config.prepared(Problem(prompt=asked, answer="", id=self.problem.id), callable_here)
            tokens = tuple(encode_prompt(self.tokenizer, problem))
        return TokenConversation(problem, tokens, self.tokenizer, form, callable_here, agent, self.opened)

    def episode(self, finish: EpisodeFinish, *, answer: str = "", failure: str = "") -> Episode:
        """All that was written so far as an episode."""
        branches = tuple(each.closed() for each in self.opened if each.turns)
        return Episode(branches=branches, finish=finish, answer=answer, failure=failure)


class TurnGenerator:
    """Writes turns with a generator; see `rlinf.core.agents.Generate`.

    Args:
        generator: writes.
        sampling: how, with the tokens that end a turn.
        seed: of the turn of a number.
        request: names the requests of this episode.
        in_flight: takes the names of those that are under way.
        aborted: whether a caller has ended the episode.
    """

    def __init__(
        self,
        generator: Generator,
        sampling: SamplingConfig,
        *,
        seed: int,
        request: str,
        in_flight: set[str],
        aborted: Callable[[], bool],
    ) -> None:
        self._generator, self._sampling, self._seed, self._request = generator, sampling, seed, request
        self._in_flight, self._aborted, self._counts = in_flight, aborted, Counter[str]()
        self.failure: RLinfError | None = None
        """What the generator failed with, which is no fault of the episode."""

    async def __call__(self, conversation: Conversation) -> Turn:
        """The next turn of a conversation.

        Raises:
            OutOfContext: there is no room for another token.
            Aborted: a caller ended the episode.
        """
        if self._aborted():
            raise Aborted
        own = cast("TokenConversation", conversation)
        # By the agent, not by all turns so far: which of several agents is first depends on how long tools take.
        agent, count = own.agent, self._counts[own.agent]
        self._counts[agent] += 1
        request = f"{self._request}/{agent}{count}"
        seed = keyed_seed(self._seed, f"turn of {agent}" if agent else "turn", count)
        sampling = replace(self._sampling, max_new_tokens=min(self._sampling.max_new_tokens, self._room(len(own.tokens))))
        self._in_flight.add(request)
        try:
            completion = await self._generator.generate(own.tokens, sampling, seed=seed, request_id=request)
        except RLinfError as error:
            self.failure = error
            raise
        finally:
            self._in_flight.discard(request)
        turn = own.write(as_numpy(completion))
        if completion.finish == "abort":
            raise Aborted
        return turn

    def _room(self, tokens: int) -> int:
        whole = self._generator.context_length if isinstance(self._generator, HasContext) else None
        if whole is None:
            return self._sampling.max_new_tokens
        if tokens >= whole:
            raise OutOfContext
        return whole - tokens


async def play(config: AgentSection, begin: Callable[[int], tuple[Task, TurnGenerator]]) -> Episode:
    """One episode, begun anew after a failure that is not the generator's, as often as `agent.attempts` allows.

    Args:
        config: that of the run.
        begin: the task, and what writes, of each attempt.

    Raises:
        RLinfError: the generator failed, or the conversation can't be rendered: no attempt would end otherwise.
    """
    failed = Episode(branches=(), finish="error")
    for attempt in range(config.attempts):
        task, generate = begin(attempt)
        deadline = asyncio.timeout(config.episode_timeout_s)
        try:
            async with deadline:
                return replace(await config.workflow(task, generate), attempts=attempt + 1)
        except Aborted:
            return task.episode("abort")
        except OutOfContext:
            return replace(task.episode("length"), attempts=attempt + 1)
        except RenderingError:
            raise
        except Exception as error:
            if generate.failure is not None:
                raise generate.failure from error
            if deadline.expired():
                failed = task.episode("timeout", failure=f"no end within agent.episode_timeout_s = {config.episode_timeout_s:g} s")
            else:
                failed = task.episode("error", failure=f"{type(error).__name__}: {error}")
    return replace(failed, attempts=config.attempts)
