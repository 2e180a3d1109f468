"""One episode: a workflow with a deadline, attempts, and an end for everything that can go wrong."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rlinf.core.agents import (
    Conversation,
    Episode,
    EpisodeFinish,
    Generate,
    PolicyEndpoint,
    ServedSession,
    SessionConfig,
    ToolBox,
    Turn,
)
from rlinf.core.agents.stopping import written_until
from rlinf.core.capabilities import HasContext
from rlinf.core.data import Completion
from rlinf.core.errors import ConfigError, RLinfError, error_text
from rlinf.core.language.generation import Generator, SamplingConfig
from rlinf.core.language.problems import Problem, Split, Tokenizer
from rlinf.core.random import keyed_seed
from rlinf.runners.agent.episode_groups import PlayedEpisode
from rlinf.runners.agent.schema import AgentSection
from rlinf.runners.conversations.conversation import RenderingError, TokenConversation
from rlinf.runners.reasoning.language import as_numpy, encode_prompt


class OutOfContext(Exception):
    """A conversation is as long as the generator can hold; where a workflow lets it pass, its episode ends with "length"."""


class OutOfTurns(Exception):
    """An agent of its own has asked for as many turns as a conversation may have."""


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
    split: Split = "train"
    """Of which the problem is."""
    opened: list[TokenConversation] = field(default_factory=list[TokenConversation])
    """All conversations, in the order in which they began."""
    endpoint: Callable[[], Awaitable[PolicyEndpoint]] | None = None
    """Where the policy can be reached over HTTP; None if nowhere."""
    sessions: list[ServedSession] = field(default_factory=list[ServedSession])
    """All sessions of the endpoint."""

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

    async def served(self) -> PolicyEndpoint:
        """The run's endpoint.

        Raises:
            ConfigError: the run has none.
        """
        if self.endpoint is None:
            raise ConfigError("agent.endpoint", "the run has none", "Add `endpoint: {}` to `agent`.")
        return await self.endpoint()

    async def session(self, generate: Generate) -> ServedSession:
        """A session of the run's endpoint; see `rlinf.core.agents.AgentTask`."""
        endpoint, turns = await self.served(), cast("TurnGenerator", generate)
        plain = isinstance(self.problem.prompt, str)
        config = SessionConfig(sampling=turns.sampling, fixed=True, plain=plain)
        asked = itertools.count()

        async def write(prompt: Sequence[int], sampling: SamplingConfig, *, request_id: str) -> Completion[Any]:
            if next(asked) >= self.max_turns:
                raise OutOfTurns(f"more than agent.max_turns = {self.max_turns} turns")
            completion = await turns.complete(prompt, sampling, request_id=request_id)
            if completion.finish == "abort" and turns.playing.group.aborted:
                raise Aborted
            return completion

        # It becomes part of an address, in which the slashes of a request's name can't be.
        name = re.sub(r"[^A-Za-z0-9._-]", ".", f"{turns.request}.{len(self.sessions)}")
        self.sessions.append(endpoint.open(name, config, write=write))
        return self.sessions[-1]

    def episode(self, finish: EpisodeFinish, *, answer: str = "", failure: str = "", reward: float = 0.0) -> Episode:
        """All that was written so far as an episode."""
        own = [each.closed() for each in self.opened if each.turns]
        served = [branch for session in self.sessions for branch in session.branches()]
        return Episode(branches=(*own, *served), finish=finish, answer=answer, failure=failure, reward=reward)


class TurnGenerator:
    """Writes turns with a generator; see `rlinf.core.agents.Generate`.

    Args:
        generator: writes.
        sampling: how, with the tokens that end a turn.
        seed: of the turn of a number.
        request: names the requests of this episode.
        playing: the episode; it says when a request may begin, and when one that was cut goes on.
    """

    def __init__(
        self,
        generator: Generator,
        sampling: SamplingConfig,
        *,
        seed: int,
        request: str,
        playing: PlayedEpisode,
    ) -> None:
        self._generator, self._seed, self._counts = generator, seed, Counter[str]()
        self.sampling = sampling
        """How turns are written, with the tokens that end them."""
        self.request = request
        """Names the requests of this episode."""
        self.playing = playing
        """The episode, of which this is one attempt."""
        self.failure: RLinfError | None = None
        """What the generator failed with, which is no fault of the episode."""

    async def __call__(self, conversation: Conversation) -> Turn:
        """The next turn of a conversation.

        Raises:
            OutOfContext: there is no room for another token.
            Aborted: a caller ended the episode.
        """
        own = cast("TokenConversation", conversation)
        completion = await self.complete(own.tokens, self.sampling, agent=own.agent, until=own)
        turn = own.write(completion)
        if completion.finish == "abort":
            raise Aborted
        return turn

    async def complete(
        self,
        prompt: Sequence[int],
        sampling: SamplingConfig,
        *,
        agent: str = "",
        request_id: str | None = None,
        until: TokenConversation | None = None,
    ) -> Completion[Any]:
        """What follows a prompt, NumPy; as long as asked for, or as there is room.

        It may be cut on its way, and go on later with other weights; each token has the version that wrote it.

        Args:
            prompt: token ids.
            sampling: how tokens are drawn.
            agent: who writes, where there are several.
            request_id: in place of a name of its own.
            until: a conversation whose texts of several tokens end it; None for none.

        Raises:
            OutOfContext: there is no room for another token.
            Aborted: a caller has ended the episode.
        """
        if self.playing.group.aborted:
            raise Aborted
        # By the agent, not by all turns so far: which of several agents is first depends on how long tools take.
        count = self._counts[agent]
        self._counts[agent] += 1
        request = request_id or f"{self.request}/{agent}{count}"
        seed = keyed_seed(self._seed, f"turn of {agent}" if agent else "turn", count)
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, self._room(len(prompt), sampling)))
        partial: Completion[Any] | None = None
        try:
            # A request that is cut goes on from what it has written, under the same name and with the same seed.
            while True:
                await self.playing.admitted()
                writing = self._generator.generate(prompt, sampling, seed=seed, request_id=request, partial=partial)
                with self.playing.group.request(request):
                    if until is not None and until.stops:
                        writing = written_until(writing, self._generator, request, until.tokenizer, until.stops)
                    partial = as_numpy(await writing)
                if not self.playing.was_cut(request, partial):
                    return partial
        # Of every kind, as the deadline of an episode cancels its requests.
        except BaseException as error:
            self.playing.forget(request)
            if isinstance(error, RLinfError):
                self.failure = error
            raise

    def _room(self, tokens: int, sampling: SamplingConfig) -> int:
        whole = self._generator.context_length if isinstance(self._generator, HasContext) else None
        if whole is None:
            return sampling.max_new_tokens
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
                generate.playing.attempt(deadline)
                episode: object = await config.workflow(task, generate)
                if not isinstance(episode, Episode):
                    raise TypeError(f"the workflow '{config.workflow_type}' returned {episode!r:.80}, expected an Episode")
                return replace(episode, attempts=attempt + 1)
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
                failed = task.episode("error", failure=error_text(error))
        finally:
            generate.playing.attempted()
            # Later requests of a client that still runs, such as one in a thread, are refused.
            for session in task.sessions:
                session.close()
    return replace(failed, attempts=config.attempts)
