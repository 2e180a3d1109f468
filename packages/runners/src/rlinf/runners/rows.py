"""Collects the steps of a slot and turns them into trajectory rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import Decision
from rlinf.core.trajectory import Trajectory
from rlinf.core.tree import Tree, tree_combine, tree_map

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


class RowCollector:
    """Steps of `num_envs` environments in lockstep, cut into one row for each piece of an episode.

    Args:
        first_env: global number of the first environment, which makes groups global.
        num_envs: environments of the slot.
        group_size: consecutive environments that share an initial state.
    """

    def __init__(self, *, first_env: int, num_envs: int, group_size: int) -> None:
        self._group = (first_env + np.arange(num_envs)) // group_size
        self._decisions: list[Decision[Any]] = []
        self._rewards: list[Floats] = []
        self._terminated: list[Bools] = []
        self._truncated: list[Bools] = []
        self._final_values: dict[tuple[int, int], float] = {}

    def append(self, decision: Decision[Any], reward: Floats, terminated: Bools, truncated: Bools) -> None:
        """One decision of each environment and what came of it; of a chunk, the sum of its rewards, and whether it saw an end."""
        self._decisions.append(decision)
        self._rewards.append(reward)
        self._terminated.append(terminated)
        self._truncated.append(truncated)

    def final_values(self, envs: NDArray[np.intp], values: Floats) -> None:
        """The critic's values of the final observations of episodes that ended with the last step appended."""
        last = len(self._decisions) - 1
        self._final_values.update({(last, int(env)): float(value) for env, value in zip(envs, values, strict=True)})

    def finish(self, bootstrap: Floats | None) -> Trajectory[Any]:
        """The rows of all steps so far.

        Args:
            bootstrap: `[num_envs]`, the critic's values of the observations after the last step; None without a critic.
        """
        env, start, length = self._pieces()
        steps = np.arange(int(length.max()))
        mask = steps < length[:, None]
        index = (np.minimum(start[:, None] + steps, start[:, None] + length[:, None] - 1), env[:, None])

        def gather(arrays: list[Any]) -> Any:
            picked = np.stack(arrays)[index]
            return np.where(mask.reshape(mask.shape + (1,) * (picked.ndim - 2)), picked, np.zeros((), picked.dtype))

        context: Tree[Any] = tree_map(gather, tree_combine(list, [d.context for d in self._decisions]))
        version = np.array([d.version for d in self._decisions], np.int64)[index[0]]
        return Trajectory(
            context=context,
            action=gather([d.action for d in self._decisions]),
            logprob=gather([d.logprob for d in self._decisions]),
            reward=gather(self._rewards),
            terminated=gather(self._terminated),
            truncated=gather(self._truncated),
            mask=mask,
            version=np.where(mask, version, 0),
            group=self._group[env],
            task=np.zeros(len(env), np.int64),
            value=None if bootstrap is None else self._values(gather, env, start, length, bootstrap),
        )

    def _pieces(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """For each row: its environment, its first step and how many steps it has; ordered by environment."""
        ended = np.stack(self._terminated) | np.stack(self._truncated)
        total = len(ended)
        pieces: list[tuple[int, int, int]] = []
        for env in range(ended.shape[1]):
            start = 0
            for end in [*np.flatnonzero(ended[:, env]) + 1, total]:
                if end > start:
                    pieces.append((env, start, int(end) - start))
                start = int(end)
        table = np.array(pieces, np.intp)
        return table[:, 0], table[:, 1], table[:, 2]

    def _values(self, gather: Any, env: Any, start: Any, length: Any, bootstrap: Floats) -> Floats:
        """`[B, T + 1]`: the value before each step, and after a row's last step the value of what followed it."""
        before: Floats = gather([decision.value for decision in self._decisions])
        values = np.concatenate([before, np.zeros((len(before), 1), before.dtype)], axis=1)
        total = len(self._decisions)
        for row, (e, s, n) in enumerate(zip(env, start, length, strict=True)):
            last = int(s + n)
            values[row, n] = bootstrap[e] if last == total else self._final_values[last - 1, int(e)]
        return values
