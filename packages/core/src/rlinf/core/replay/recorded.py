"""`RecordedTransitions`: recorded episodes that an off-policy algorithm draws from, beside a replay buffer or in place of one.

The one reader for demonstrations (RLPD) and for offline learning (IQL, AWAC): whatever format episodes come from, what is drawn is
what a `ReplayBuffer` gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import EnvSpec, Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.replay.buffer import ReplayBuffer
from rlinf.core.replay.episodes import TEXTS, episode_rows, within_bounds
from rlinf.core.replay.sizes import available_memory, bytes_of_slot
from rlinf.core.replay.transitions import Transitions

Array = NDArray[Any]
_GIB: Final = 2**30
_RECORD: Final = "Choose the environment that it was recorded in."


class RecordedTransitions:
    """The transitions of recorded episodes, in memory; they stay as they are, and are drawn uniformly with replacement.

    Args:
        episodes: in any order; each becomes the decisions that `episode_rows` makes of it.
        spec: of the environment. Actions beyond its bounds are clipped to them, as simulators do.
        chunk: K, control steps in one decision.
        n_step: over how many decisions a transition goes at most, as in `ReplayBuffer`.
        gamma: γ in [0, 1], discount of one decision.
        bootstrap_truncated: whether what follows a cut has a value; false makes it an end.
        place: the key that errors name.
        name: of the dataset, for errors.

    Raises:
        ConfigError: there is nothing to learn from: no transition, no reward but 0, something that is not a number, or other spaces
            than the environment's; or it does not fit into the memory that is free.
    """

    def __init__(
        self,
        episodes: Iterable[OfflineEpisode],
        spec: EnvSpec,
        *,
        chunk: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        bootstrap_truncated: bool = True,
        place: str = "dataset",
        name: str = "the dataset",
    ) -> None:
        reader = _Reader(spec, chunk, bootstrap_truncated, place, name)
        rows = [row for row in map(reader.rows, episodes) if row is not None]
        reader.refuse_nothing(len(rows))
        slots = sum(row.horizon + 1 for row in rows)
        _refuse_too_large(slots, bytes_of_slot(spec.observation, spec.action, chunk=chunk), place, name)
        self._buffer = ReplayBuffer(capacity=max(2, slots), n_step=n_step, gamma=gamma)
        decided: list[int] = []
        for row in rows:
            # What was seen last takes a slot of its own behind the decisions of an episode.
            begin = decided[-1] + 2 if decided else 0
            decided += range(begin, begin + self._buffer.add(row, [0]))
        self._index: NDArray[np.int64] = np.stack([np.zeros(len(decided), np.int64), np.array(decided, np.int64)], axis=1)
        self.episodes = len(rows)
        """How many of them have a transition."""
        self.mean_return = float(np.mean(reader.returns))
        """Of the episodes as they were recorded: what the behaviour achieved."""

    def __len__(self) -> int:
        """How many transitions there are to draw from."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        return self._buffer.nbytes

    def sample(self, size: int, generator: np.random.Generator) -> Transitions[Array]:
        """`size` transitions, each one as likely as any other, with replacement; all randomness is the generator's."""
        return self._buffer.take(self._index[generator.integers(len(self), size=size)])


class _Reader:
    """Turns episodes into rows of a replay buffer, and refuses what can't be learned from."""

    def __init__(self, spec: EnvSpec, chunk: int, bootstrap_truncated: bool, place: str, name: str) -> None:
        self._spec, self._chunk, self._bootstrap = spec, chunk, bootstrap_truncated
        self._place, self._name = place, name
        self.returns: list[float] = []
        self._outside = self._numbers = 0
        self._rewarded = False

    def rows(self, episode: OfflineEpisode) -> Trajectory[Array] | None:
        """The decisions of an episode; None if its only step was cut, and nobody knows what followed."""
        whole = all(len(episode.observation.get(key, ())) > len(episode) for key in self._keys)
        if len(episode) == 1 and not whole and not np.asarray(episode.terminated)[-1]:
            return None
        seen = {key: episode.observation[key] for key in self._keys if key in episode.observation}
        for what, values in {"reward": episode.reward, "action": episode.action, **seen}.items():
            self._refuse_infinite(episode, what, np.asarray(values))
        try:
            rows = episode_rows(episode, self._spec, chunk=self._chunk)
        except (ConfigError, ShapeError) as error:
            raise ConfigError(self._place, f"'{self._name}', {error.place}: {error.problem}", error.remedy or _RECORD) from error
        self.returns.append(float(np.sum(episode.reward)))
        self._rewarded |= bool(np.any(episode.reward))
        rows = replace(rows, action=self._within(episode, rows.action))
        if not self._bootstrap:
            rows = replace(rows, terminated=rows.terminated | rows.truncated, truncated=np.zeros_like(rows.truncated))
        return rows

    def refuse_nothing(self, rows: int) -> None:
        """Refuses a dataset without a transition, without rewards, or in other units."""
        if not rows:
            raise ConfigError(self._place, f"'{self._name}' has no transition", "Record episodes of at least two steps.")
        if not self._rewarded:
            problem = f"all rewards of '{self._name}' are 0, so that there is nothing to learn from them"
            raise ConfigError(self._place, problem, "Record rewards, or imitate with apps/embodied/sft.py.")
        # Some actions beyond the bounds are clipped, as simulators do; most of them beyond are in another unit.
        if self._outside > self._numbers // 2:
            share = self._outside / self._numbers
            problem = f"{share:.0%} of the actions of '{self._name}' are beyond the bounds of the environment"
            raise ConfigError(self._place, problem, "They seem to be in other units: record them as the environment takes them.")

    @property
    def _keys(self) -> list[str]:
        return [key for key in self._spec.observation if key != TEXTS]

    def _within(self, episode: OfflineEpisode, action: Array) -> Array:
        """Actions `[1, T, K, *]` in the types of a replay buffer, within the bounds of the environment."""
        spec = self._spec.action
        numbered = np.issubdtype(np.dtype(spec.dtype), np.integer)
        if spec.low is not None and spec.high is not None:
            low, high = as_numpy(spec.low), as_numpy(spec.high)
            beyond = int(((action < low) | (action > high)).sum())
            if numbered and beyond:
                problem = f"episode {episode.number} of '{self._name}' has an action beyond {low} … {high}"
                raise ConfigError(self._place, problem, _RECORD)
            self._outside, self._numbers = self._outside + beyond, self._numbers + action.size
        return within_bounds(action, spec).astype(np.int64 if numbered else np.float32)

    def _refuse_infinite(self, episode: OfflineEpisode, what: str, values: Array) -> None:
        if not np.issubdtype(values.dtype, np.floating) or np.isfinite(values).all():
            return
        step = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))[0])
        problem = f"'{what}' of step {step} in episode {episode.number} of '{self._name}' is not a finite number"
        raise ConfigError(self._place, problem, "Leave that episode out, or record it again.")


def _refuse_too_large(slots: int, size: int, place: str, name: str) -> None:
    free = available_memory()
    if slots * size > free:
        taken = f"{slots:,} steps of {size:,} bytes take {slots * size / _GIB:.1f} GiB, and {free / _GIB:.1f} GiB are free"
        raise ConfigError(place, f"'{name}': {taken}", "Use fewer episodes.")
