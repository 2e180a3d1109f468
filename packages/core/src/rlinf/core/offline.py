"""Recorded episodes, whatever format they come from: what a dataset gives, and what can be registered as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from rlinf.core.data import EnvSpec

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineEpisode:
    """One recorded episode of T steps."""

    number: int
    """Its number in the dataset."""
    observation: Mapping[str, Array]
    """By key, `[T + 1, *]`: what was seen before each action, and last what was seen after the last one. `[T, *]` in a format that
    does not keep the last (LeRobot). Images may lie in a file that is mapped into memory."""
    action: Array
    """`[T, *]`."""
    reward: Array
    """`[T]` float32."""
    terminated: Array
    """`[T]` bool: the task itself ended here."""
    truncated: Array
    """`[T]` bool: a limit cut the episode here. A recording that stops without either was cut: its last step is truncated."""
    task: str = ""
    """What was to be done, in words; "" where nobody said."""

    def __len__(self) -> int:
        return len(self.reward)


class OfflineSource(Protocol):
    """A dataset that was opened."""

    @property
    def name(self) -> str:
        """What it is called where it comes from."""
        ...

    @property
    def spec(self) -> EnvSpec:
        """What was seen and done, as of an environment; `task_descriptions` is among the observations if episodes have a task."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """All that it records, by its own names, whether or not somebody sees it."""
        ...

    def __len__(self) -> int:
        """Episodes."""
        ...

    def episodes(self) -> Iterator[OfflineEpisode]:
        """All episodes in their order; each is read when it is asked for."""
        ...


@runtime_checkable
class OfflineConfig(Protocol):
    """A registered dataset: where it is and how it is read."""

    def check(self, place: str) -> None:
        """Refuses early what `open` would refuse late, such as a reader that is not installed."""
        ...

    def open(self) -> OfflineSource:
        """Reads what describes the data, and not yet the data."""
        ...
