"""The steps of recorded episodes, each with what was seen before and after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ShapeError

Array = NDArray[Any]


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


def transitions(episodes: Iterable[OfflineEpisode]) -> Transitions:
    """The steps of all episodes, in order, in memory.

    Raises:
        ShapeError: there is no episode, or one does not keep what was seen after its last action.
    """
    found = list(episodes)
    if not found:
        raise ShapeError("transitions", "there is no episode")
    keys = list(found[0].observation)
    for episode in found:
        if any(len(episode.observation[key]) != len(episode) + 1 for key in keys):
            problem = f"expected one observation more than actions, episode {episode.number} has not"
            raise ShapeError("transitions", problem, "LeRobot's format has none; record NumPy files.")
    return Transitions(
        observation={key: np.concatenate([e.observation[key][:-1] for e in found]) for key in keys},
        next_observation={key: np.concatenate([e.observation[key][1:] for e in found]) for key in keys},
        action=np.concatenate([e.action for e in found]),
        reward=np.concatenate([e.reward for e in found]),
        terminated=np.concatenate([e.terminated for e in found]),
        truncated=np.concatenate([e.truncated for e in found]),
        episode=np.concatenate([np.full(len(e), e.number, np.int64) for e in found]),
    )
