"""What a reward may be told of a response beside its text, what it may say beside one number, and how a model of it learns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rlinf.core.agents.episodes import Turn
from rlinf.core.data import LossOutput
from rlinf.core.data.tree import Tree
from rlinf.core.language.problems import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSample:
    """A response, and all that is known of the problem that it answers."""

    text: str
    """What is scored: a whole response, or what an agent answered in the end."""
    answer: str
    """What is right, as the problem says."""
    prompt: str = ""
    """What the model read, as text."""
    asked: str | tuple[Message, ...] = ""
    """What was asked before the policy's tokenizer saw it: a text, or messages."""
    prompt_tokens: tuple[int, ...] = ()
    """The same as tokens."""
    row: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """All columns of the problem's row; empty for a problem that was made on the spot."""
    tokens: tuple[int, ...] = ()
    """What the model wrote, and nothing that it read; those of several turns follow each other."""
    turns: tuple[Turn, ...] = ()
    """An agent's turns, with their calls and results; () for a single response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedScores:
    """What one of several rewards says."""

    values: Sequence[float]
    """One for each response, before its weight."""
    weight: float = 1.0
    """What the values are multiplied by before they are added to those of the others."""


Scored = Sequence[float] | Mapping[str, WeightedScores]
"""One number for each response, or several rewards by name, whose weighted sum counts."""


@runtime_checkable
class SampleReward(Protocol):
    """A reward that is told more than texts, may wait, or says of what its score is made.

    Groups are scored while others are still written: several calls may be under way at once, in threads of their own if they don't
    wait.
    """

    def score_samples(self, samples: Sequence[RewardSample]) -> Scored | Awaitable[Scored]:
        """Scores responses to one problem; may be `async`."""
        ...


@dataclass(frozen=True, slots=True)
class SampleFunction:
    """A function as a `SampleReward`; made by the decorator `sample_reward`."""

    function: Callable[[Sequence[RewardSample]], Scored | Awaitable[Scored]]
    """May be async."""

    def score_samples(self, samples: Sequence[RewardSample]) -> Scored | Awaitable[Scored]:
        """What the function says."""
        return self.function(samples)


def sample_reward(function: Callable[[Sequence[RewardSample]], Scored | Awaitable[Scored]]) -> SampleFunction:
    """The decorator that makes a function of `RewardSample`s a reward, to be chosen as `module:function`; it may be async."""
    return SampleFunction(function)


@runtime_checkable
class HasOpinion(Protocol):
    """A reward that says whether it has learned what it likes; one that does not say is a rule, which knows what is right."""

    @property
    def opinion(self) -> bool:
        """Whether its score is a model's opinion, of which no value is known to mean that a response is right."""
        ...


@runtime_checkable
class HasParts(Protocol):
    """A reward that is made of several, and says `WeightedScores` of each."""

    @property
    def rewards(self) -> Mapping[str, object]:
        """The reward of each part, by name."""
        ...


@runtime_checkable
class LearnsPreferences(Protocol):
    """A reward model that learns from pairs of texts, of which one was preferred."""

    def preference_loss(self, chosen: Mapping[str, Any], rejected: Mapping[str, Any]) -> LossOutput[Any]:
        """How surprising the preferences are; differentiable.

        Args:
            chosen: `input_ids` and `segment_ids`, each `[B, T]`, 0 for padding: the texts that were preferred.
            rejected: those that they were preferred to.

        Returns:
            The sum over pairs, and their number.
        """
        ...


@runtime_checkable
class LearnsReturns(Protocol):
    """A model of how recorded episodes go on, which learns from their returns, and does not act."""

    def return_loss(self, env_obs: Tree[Any], returns: Any, *, mask: Any = None) -> LossOutput[Any]:
        """How surprising the returns are; differentiable.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.
            returns: `[B]` in [−1, 0], of the steps that were observed.
            mask: `[B]` bool, False for rows that don't count; all count if None.

        Returns:
            The sum over what counts, and its number.
        """
        ...

    def state_values(self, env_obs: Tree[Any]) -> Any:
        """`[B]`, the return that it expects, without a graph."""
        ...


@runtime_checkable
class LearnsOffsets(Protocol):
    """Critics of how far a task got between two states, which learn from the frames of episodes that were solved, and don't act."""

    def offset_loss(self, env_obs: Tree[Any], later_obs: Tree[Any], offsets: Any, *, mask: Any = None) -> LossOutput[Any]:
        """How surprising the offsets are; differentiable.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.
            later_obs: those of other states of the same episodes, after them or before them.
            offsets: `[B]` in [−1, 1], how much later the second ones are, as a share of the episode.
            mask: `[B]` bool, False for rows that don't count; all count if None.

        Returns:
            The sum over what counts, as the mean over critics, and its number.
        """
        ...

    def expected_offsets(self, env_obs: Tree[Any], later_obs: Tree[Any]) -> Any:
        """`[N, B]`, how far each critic believes the second states to be beyond the first ones, without a graph."""
        ...
