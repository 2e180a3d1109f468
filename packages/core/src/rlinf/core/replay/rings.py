"""`Rings`: where the next rows of each producer go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import RLinfError

Ints = NDArray[np.int64]


class Block(NamedTuple):
    """Slots of neighbouring rings, the same ones in each: those of decisions, and behind them that of the newest observation."""

    rings: slice
    begin: int
    end: int
    """The slot of the newest observation."""


@dataclass(frozen=True, slots=True)
class Writers:
    """Who made the rows of one message."""

    ring: Ints
    """`[B]`, the ring of each row."""
    distinct: bool
    """Whether each row is of another ring."""
    neighbours: slice | None
    """The rings, where they follow one another as the rows do."""


class Rings:
    """A ring of slots for each producer.

    Args:
        producers: how many there may be.
        slots: of each.
    """

    def __init__(self, producers: int, slots: int) -> None:
        self.slots = slots
        self.names: dict[int, int] = {}
        """The ring of each producer that has written."""
        # Of each ring: where its next slot is, how many were written, and the episode that its newest observation is of.
        self.head = np.zeros(producers, np.int64)
        self.filled = np.zeros(producers, np.int64)
        self.episode = np.full(producers, -1, np.int64)
        # The same producers write again and again.
        self._writers: dict[bytes, Writers] = {}

    def __len__(self) -> int:
        return len(self.head)

    def writers(self, producer: Any) -> Writers:
        """The rings of producers `[B]`; one that is new gets the next ring.

        Raises:
            RLinfError: there are more than there may be.
        """
        names = np.asarray(producer, np.int64)
        key = names.tobytes()
        if key not in self._writers:
            ring = np.array([self._ring(name) for name in names.tolist()], np.int64)
            follow = bool(len(ring)) and bool((ring == ring[0] + np.arange(len(ring))).all())
            neighbours = slice(int(ring[0]), int(ring[-1]) + 1) if follow else None
            # Who writes alone and in any order makes too many kinds of messages to be remembered.
            if len(self._writers) >= 2 * len(self) + 8:
                self._writers.clear()
            self._writers[key] = Writers(ring, len(set(ring.tolist())) == len(ring), neighbours)
        return self._writers[key]

    def block(self, rings: slice, episode: Ints, steps: int) -> Block | None:
        """Where rows of neighbouring rings go, if that is the same block of slots in all; None if it is not, or it goes round."""
        heads, own = self.head[rings].tolist(), self.episode[rings].tolist()
        theirs = episode.tolist()
        if heads.count(heads[0]) < len(heads) or not self.filled[rings.start]:
            return None
        if own == theirs:
            # All go on: their first observation is the newest of the ring, in the slot before.
            begin = heads[0] - 1
        # Some go on and others begin anew, so that their first slots differ.
        elif any(newest == next_ for newest, next_ in zip(own, theirs, strict=True)):
            return None
        else:
            begin = heads[0]
        return Block(rings, begin, begin + steps) if begin >= 0 and begin + steps < self.slots else None

    def follows(self, ring: Ints, episode: Ints) -> NDArray[np.bool_]:
        """`[R]`, whether rows go on where their ring stopped."""
        return (self.filled[ring] > 0) & (self.episode[ring] == episode)

    def wrote(self, ring: Any, begin: Any, end: Any, episode: Ints) -> None:
        """Rows were written: from the slots `begin` on, up to `end`, counted on over the end of the ring.

        Args:
            ring: `[R]`, or a slice.
            begin: where, one number or `[R]`.
            end: the slot of the newest observation, one number or `[R]`.
            episode: `[R]`, of the newest observation; −1 where it ended.
        """
        # What goes on begins in the slot of the newest observation, which was counted.
        further = (self.head[ring] - begin) % self.slots
        self.filled[ring] = np.minimum(self.filled[ring] - further + (end + 1 - begin), self.slots)
        self.head[ring] = (end + 1) % self.slots
        self.episode[ring] = episode

    def _ring(self, producer: int) -> int:
        if producer not in self.names and len(self.names) == len(self):
            problem = f"rows of producer {producer} beside those of {sorted(self.names)}"
            raise RLinfError("replay buffer", problem, f"It was made for {len(self)} producers.")
        return self.names.setdefault(producer, len(self.names))
