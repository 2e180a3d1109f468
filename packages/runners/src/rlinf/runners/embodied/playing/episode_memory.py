"""What a policy with a memory remembers of the episodes under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.tree import Tree, tree_map
from rlinf.runners.embodied.topology import Remembered


class EpisodeMemory:
    """The memory of each episode of a slot, kept beside its simulator and sent along with its observations.

    Rollout workers keep nothing from one request to the next, so that an answer does not depend on who gives it. An episode that
    is not known begins without a memory: a reset needs no further word.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._memory: Tree[Any] | None = None

    def keep(self, episodes: Sequence[int], memory: Tree[Any] | None) -> None:
        """Takes over what was answered for the decisions that are carried out; what was known of other episodes is forgotten.

        Args:
            episodes: the number of each.
            memory: each leaf `[len(episodes), *]`; None of a policy without one.
        """
        self._rows = {episode: row for row, episode in enumerate(episodes)}
        self._memory = memory

    def recall(self, episodes: Sequence[int]) -> Remembered | None:
        """What goes with the observations of episodes; None if nothing is known of any."""
        rows: NDArray[np.intp] = np.array([self._rows.get(episode, -1) for episode in episodes], np.intp)
        begins = rows < 0
        if self._memory is None or begins.all():
            return None
        # Of an episode that begins, any row stands in: the rollout worker puts the initial state there.
        return Remembered(memory=tree_map(lambda leaf: leaf[rows], self._memory), begins=begins)

    def saved(self) -> dict[str, Any]:
        """The memory and the numbers of its episodes, in the order of its rows; nothing where there is none."""
        return {} if self._memory is None else {"remembered": np.array(list(self._rows)), "memory": self._memory}
