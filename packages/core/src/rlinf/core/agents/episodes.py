"""What an agent wrote: turns, the branches that they form, and episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rlinf.core.data import Completion
from rlinf.core.language.tool_calls import ToolCall, ToolResult

EpisodeFinish = Literal["stop", "length", "turns", "abort", "timeout", "error"]
"""How an episode ended:

| finish | why |
|---|---|
| `stop` | the agent was done |
| `length` | a turn, or the whole conversation, was as long as allowed |
| `turns` | it had as many turns as allowed |
| `abort` | a caller ended it |
| `timeout` | it took longer than allowed |
| `error` | something other than the agent failed; `failure` says what |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What was put before a model, what it wrote, and what came of that."""

    prompt: tuple[int, ...]
    """The tokens that were added since the turn before, which the model read and did not write."""
    completion: Completion[Any]
    """What it wrote, token by token; NumPy."""
    text: str
    """The same as text, without the token that ended it."""
    calls: tuple[ToolCall, ...] = ()
    """The calls in it."""
    results: tuple[ToolResult, ...] = ()
    """What became of them; they are part of the next turn's prompt, if there is one."""
    reward: float = 0.0
    """That of this turn alone; it comes with its last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Turns that one agent read and wrote one after the other: one row of a trajectory."""

    turns: tuple[Turn, ...]
    """Each sees all before it."""
    inherited: int = 0
    """How many of the first turns belong to the branch that this one left, and are trained on there."""
    agent: str = ""
    """Who wrote it, where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A whole episode; one that failed is data, too."""

    branches: tuple[Branch, ...]
    """At least one, unless it failed before its first token."""
    finish: EpisodeFinish
    """How it ended."""
    answer: str = ""
    """What is scored: as a rule the text of the last turn."""
    reward: float = 0.0
    """What the workflow itself gives for the whole, beside what the run's reward says of the answer."""
    failure: str = ""
    """The reason of `error` and `timeout`; "" otherwise."""
    attempts: int = 1
    """How often it was begun, failed attempts among them."""

    def __len__(self) -> int:
        return sum(len(turn.completion) for turn in self.own_turns)

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """Every turn once, in the order of the branches."""
        return tuple(turn for branch in self.branches for turn in branch.turns[branch.inherited :])

    @property
    def oldest(self) -> int | None:
        """The oldest weight version that wrote a token; None if there is no token."""
        return min((v for turn in self.own_turns if (v := turn.completion.oldest) is not None), default=None)

    @property
    def failed(self) -> bool:
        """Whether something other than the agent failed, so that nothing can be learned from it."""
        return self.finish in ("error", "timeout")
