"""`Arriving`: rows of a trajectory as the columns of a replay buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import tree_leaves

OBSERVATION: Final = "observation"
"""How the names of columns with observations begin."""
Column = tuple[tuple[int, ...], "np.dtype[Any]"]
"""Shape of a slot and type."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """Rows as the columns that they go to, each with axes for rows and time."""

    observation: dict[str, NDArray[Any]]
    decision: dict[str, NDArray[Any]]
    episode: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Trajectory[Any]) -> Arriving:
        seen = tree_leaves({} if rows.observation is None else rows.observation)
        terminated = np.asarray(as_numpy(rows.terminated), np.bool_)
        return cls(
            {f"{OBSERVATION}.{path}" if path else OBSERVATION: as_numpy(leaf) for path, leaf in seen},
            {
                "action": as_numpy(rows.action),
                "reward": as_numpy(rows.reward),
                "terminated": terminated,
                "ended": terminated | np.asarray(as_numpy(rows.truncated), np.bool_),
            },
            as_numpy(rows.episode),
        )

    def columns(self) -> dict[str, Column]:
        """Shape and type of what differs between environments."""
        kept = {**self.observation, "action": self.decision["action"]}
        return {name: (leaf.shape[2:], leaf.dtype) for name, leaf in kept.items()}

    def left_in(self, row: Any, length: int) -> NDArray[np.int64]:
        """Of rows with `length` decisions the episode that is under way behind them; −1 where it ended."""
        return np.where(self.decision["ended"][row, length - 1], -1, self.episode[row])
