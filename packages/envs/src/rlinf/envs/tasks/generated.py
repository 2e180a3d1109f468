"""What the tasks whose problems are made from a seed have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from rlinf.core.language.problems import Problem, Split, WorkedTurn
from rlinf.core.language.tool_calls import ToolCall, ToolResult
from rlinf.envs.tasks.splits import check_sizes, distinct

T = TypeVar("T", bound=Hashable)


def called(tool: str, arguments: Mapping[str, Any], result: str) -> WorkedTurn:
    """A turn of a worked example that calls a tool, and reads its result."""
    return WorkedTurn(calls=(ToolCall(name=tool, arguments=arguments),), results=(ToolResult(text=result, name=tool),))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSizes:
    """How many problems there are in each split, and what decides which."""

    train: int
    """Problems to train on, all different."""
    validation: int
    """Problems held out, all different; none of them is a problem to train on."""
    validation_share: float = 0.1
    """The share of all there could be from which those held out are taken."""
    seed: int = 0
    """Decides the problems, their splits and their worked examples."""

    def __post_init__(self) -> None:
        check_sizes(self.train, self.validation, self.validation_share)


class SeededTask(ABC, Generic[T]):
    """A task whose problems are made from a seed."""

    __slots__ = ()

    def check(self, place: str) -> None:
        """Nothing has to be installed."""

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split.

        Raises:
            ConfigError: there are not so many different ones.
        """
        return [self._problem(number, item) for number, item in enumerate(self.asked(split))]

    @abstractmethod
    def asked(self, split: Split) -> Sequence[T]:
        """What the problems of a split ask, all of it different.

        Raises:
            ConfigError: there is not so much.
        """

    @abstractmethod
    def _problem(self, number: int, item: T) -> Problem:
        """A problem; by the item alone, so that its worked example stays the same whatever else is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTask(SplitSizes, SeededTask[T]):
    """A task whose problems are drawn from one stream without end; what each asks decides its split."""

    place: ClassVar[str]
    """What messages call it."""

    def asked(self, split: Split) -> Sequence[T]:
        count, share = self.train if split == "train" else self.validation, self.validation_share
        return distinct(self._drawn(), self._key, split, count, seed=self.seed, validation_share=share, place=self.place)

    def _key(self, item: T) -> str:
        """Equal for what must be in the same split."""
        return str(item)

    @abstractmethod
    def _drawn(self) -> Iterator[T]:
        """What to ask, without end, from one stream for all splits; what can't be asked is left out."""
