"""Recorded episodes as arrays, whatever format they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import ShapeError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineEpisode:
    """One recorded episode of T steps."""

    number: int
    """Its number in the dataset."""
    observation: Mapping[str, Array]
    """By key, `[T + 1, *]`: what was seen before each action, and last what was seen after the last one."""
    action: Array
    """`[T, *]`."""
    reward: Array
    """`[T]` float32."""
    terminated: Array
    """`[T]` bool: the task itself ended here."""
    truncated: Array
    """`[T]` bool: a limit cut the episode here. A recording that stops without either was cut: its last step is truncated."""

    def __len__(self) -> int:
        return len(self.reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """B steps, each with what was seen before and after it."""

    observation: Mapping[str, Array]
    """By key, `[B, *]`."""
    next_observation: Mapping[str, Array]
    """By key, `[B, *]`; the final observation where an episode ended, never that of the next episode."""
    action: Array
    """`[B, *]`."""
    reward: Array
    """`[B]` float32."""
    terminated: Array
    """`[B]` bool; what follows has no value here."""
    truncated: Array
    """`[B]` bool; what follows still has its value."""
    episode: Array
    """`[B]` int64, the episode's number."""

    def __len__(self) -> int:
        return len(self.reward)


class OfflineSource(Protocol):
    """A dataset that was opened."""

    @property
    def name(self) -> str:
        """What it is called where it comes from."""
        ...

    def __len__(self) -> int:
        """Episodes."""
        ...

    def episodes(self) -> Iterator[OfflineEpisode]:
        """All episodes in their order; each is read when it is asked for."""
        ...


def transitions(episodes: Iterable[OfflineEpisode]) -> Transitions:
    """The steps of all episodes, in order, in memory.

    Raises:
        ShapeError: there is no episode.
    """
    found = list(episodes)
    if not found:
        raise ShapeError("transitions", "there is no episode")
    keys = list(found[0].observation)
    return Transitions(
        observation={key: np.concatenate([e.observation[key][:-1] for e in found]) for key in keys},
        next_observation={key: np.concatenate([e.observation[key][1:] for e in found]) for key in keys},
        action=np.concatenate([e.action for e in found]),
        reward=np.concatenate([e.reward for e in found]),
        terminated=np.concatenate([e.terminated for e in found]),
        truncated=np.concatenate([e.truncated for e in found]),
        episode=np.concatenate([np.full(len(e), e.number, np.int64) for e in found]),
    )
