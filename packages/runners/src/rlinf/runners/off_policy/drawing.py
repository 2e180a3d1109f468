"""`Drawing`: what one update draws from a replay buffer, and what it learns of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.replay import ReplayBuffer, Transitions


@dataclass(slots=True)
class Drawing:
    """A replay buffer for one update: it draws as often as it is asked, and tells the buffer how badly that was predicted."""

    buffer: ReplayBuffer
    beta: float
    """Of the weights, see `rlinf.core.replay.Sampling`."""
    _index: list[NDArray[np.int64]] = field(default_factory=list[Any])

    def __len__(self) -> int:
        return len(self.buffer)

    def sample(self, size: int) -> Transitions[NDArray[Any]]:
        """`size` transitions."""
        index = self.buffer.draw(size)
        self._index.append(index)
        return self.buffer.take(index, beta=self.beta)

    def learned(self, error: NDArray[Any] | None) -> None:
        """The errors of the update, `[B]`, those of what was drawn first; None of an objective that tells none."""
        if error is not None and self._index:
            # What the buffer gave comes first in a batch; demonstrations behind it have no priorities.
            index = np.concatenate(self._index)
            self.buffer.update_priorities(index, error[: len(index)])
