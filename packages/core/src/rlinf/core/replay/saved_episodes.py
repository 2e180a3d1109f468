"""The episodes of a saved replay buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.replay.saved import SavedBuffer, Shard

_OBSERVATION: Final = "observation"
_ALONE: Final = "states"
"""What an observation is called that is one array."""


@dataclass(frozen=True, slots=True)
class SavedEpisode:
    """Consecutive decisions of one producer."""

    episode: OfflineEpisode
    """A step is a decision: `[T, K, A]` of chunks of K > 1 steps, with the sum of their rewards. The final observation is kept."""
    begun: bool
    """False where the ring has turned over, so that its beginning may be overwritten."""
    ended: bool
    """False where it is under way, or was given up; its last step is truncated all the same, as in any recording."""


def saved_spec(saved: SavedBuffer) -> EnvSpec:
    """What was seen and decided; no episode has more steps than slots were used."""
    keys = {_key(name): of for name, of in saved.columns.items() if name.startswith(_OBSERVATION)}
    observation = {key: ArraySpec(shape=shape, dtype=str(dtype)) for key, (dtype, shape) in keys.items()}
    dtype, shape = saved.columns.get("action", (np.dtype(np.float32), (1,)))
    return EnvSpec(
        observation=observation,
        # The axis K of chunks of one step is left out, as in `_episode`.
        action=ArraySpec(shape=shape[1:] if shape[:1] == (1,) else shape, dtype=str(dtype)),
        max_episode_steps=max(1, saved.used),
        knows_success=False,
    )


def saved_episodes(saved: SavedBuffer, shard: Shard, *, first: int = 0) -> Iterator[SavedEpisode]:
    """The episodes of one shard, those of each producer in the order of time, numbered from `first` on.

    Raises:
        CheckpointError: a file of the shard is missing or damaged.
    """
    columns = saved.read(shard)
    number = first
    for row in range(shard.producers):
        ring = shard.first + row
        filled = int(saved.filled[ring])
        order = (int(saved.head[ring]) - filled + np.arange(filled)) % saved.slots
        decided = columns["decided"][row, order]
        # Behind the last decision of an episode is what followed it, on which nothing was decided.
        edges = np.flatnonzero(np.diff(np.concatenate([[False], decided, [False]]).astype(np.int8)))
        for begin, end in edges.reshape(-1, 2).tolist():
            episode = _episode(columns, row, order[begin : end + 1], number)
            begun = begin > 0 or filled < saved.slots
            yield SavedEpisode(episode, begun, bool(columns["ended"][row, order[end - 1]]))
            number += 1


def _episode(columns: dict[str, NDArray[Any]], row: int, order: NDArray[np.int64], number: int) -> OfflineEpisode:
    steps = order[:-1]
    action, terminated = columns["action"][row, steps], np.array(columns["terminated"][row, steps])
    truncated = columns["ended"][row, steps] & ~terminated
    truncated[-1] |= not terminated[-1]
    return OfflineEpisode(
        number=number,
        observation={_key(name): of[row, order] for name, of in columns.items() if name.startswith(_OBSERVATION)},
        action=action[:, 0] if action.shape[1] == 1 else action,
        reward=np.array(columns["reward"][row, steps]),
        terminated=terminated,
        truncated=truncated,
    )


def _key(name: str) -> str:
    return name.removeprefix(_OBSERVATION).removeprefix(".") or _ALONE
