"""What an ordinary async function needs to be a workflow: a task, and something that writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlinf.core.agents.episodes import Branch, Episode, Turn
from rlinf.core.agents.serving import ServedSession
from rlinf.core.agents.toolbox import ToolBox
from rlinf.core.language.problems import Problem, Split
from rlinf.core.language.tool_calls import ToolResult


class Conversation(Protocol):
    """What a model reads and writes, as exact tokens: what it wrote is never tokenised again."""

    @property
    def tokens(self) -> Sequence[int]:
        """Every token so far, read or written."""
        ...

    @property
    def turns(self) -> Sequence[Turn]:
        """What was written so far, with what became of its calls."""
        ...

    def add(self, results: Sequence[ToolResult]) -> None:
        """Puts results of the last turn's calls before the model."""
        ...

    def reward(self, value: float) -> None:
        """Gives the last turn a reward of its own."""
        ...

    def branch(self, agent: str = "") -> Conversation:
        """A conversation that goes on from here on its own; what both share is trained on once."""
        ...

    def closed(self) -> Branch:
        """The turns so far."""
        ...


class AgentTask(Protocol):
    """What a workflow is given."""

    @property
    def problem(self) -> Problem:
        """What is to be solved."""
        ...

    @property
    def split(self) -> Split:
        """Of which the problem is: nothing is learned from one that is held out."""
        ...

    @property
    def tools(self) -> ToolBox:
        """What may be called."""
        ...

    @property
    def max_turns(self) -> int:
        """How many turns a conversation may have."""
        ...

    def conversation(self, agent: str = "", *, prompt: str | None = None, tools: ToolBox | None = None) -> Conversation:
        """A new conversation.

        Args:
            agent: who writes it, where there are several.
            prompt: with which it begins; None for the problem.
            tools: those whose calls are understood in it; None for `tools` of the task.
        """
        ...

    async def session(self, generate: Generate) -> ServedSession:
        """A session of the run's endpoint, so that a client writes this episode; what it says is part of the episode.

        Args:
            generate: what the workflow was given.

        Raises:
            ConfigError: the run has no endpoint.
        """
        ...


class Generate(Protocol):
    """Writes the next turn of a conversation."""

    async def __call__(self, conversation: Conversation) -> Turn:
        """The turn, which the conversation has from now on; its calls are parsed and not yet made."""
        ...


class Workflow(Protocol):
    """From a task to an episode: an ordinary async function."""

    async def __call__(self, task: AgentTask, generate: Generate) -> Episode:
        """Plays one episode. An error that it raises makes a failed episode, not a failed run."""
        ...
