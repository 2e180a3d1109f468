"""`SumTree`: numbers that are drawn in proportion to their size, many at a time.

Node n has the children 2n and 2n + 1 and keeps their sum; node 1 is the sum of all. The numbers of a batch go through the tree
together, one level with a few calls of NumPy. Sums are made when they are asked for, of all numbers that were changed meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_LEVEL: Final = 512
"""The first node of the level, so many of which are looked through in about the time of one level on the way down."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class SumTree:
    """N numbers ≥ 0, of which index i is found with probability wᵢ / Σ w; 0 at the start.

    Finding and setting B of them takes B log N, whatever is set: a sum is always made anew of its two children, so that rounding
    never accumulates, and the tree of some numbers does not depend on how they came there.

    Args:
        size: N.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._depth = max(1, (size - 1).bit_length())
        self._leaves = 2**self._depth
        self._sums = np.zeros(2 * self._leaves)
        # Places that were changed since sums were made: arrays of them, and runs by first place and length.
        self._changed: list[Ints] = []
        self._runs: list[tuple[int, int]] = []
        self._waiting = 0

    @property
    def values(self) -> Floats:
        """`[N]`, a view of all numbers; whoever changes it calls `changed`."""
        return self._sums[self._leaves : self._leaves + self._size]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self._sums.nbytes

    @property
    def total(self) -> float:
        """Σ w."""
        self._sum_changed()
        return float(self._sums[1])

    def get(self, index: Ints) -> Floats:
        """The numbers at `[B]` places."""
        return self._sums[index + self._leaves]

    def set(self, index: Ints, weight: Any) -> None:
        """Changes the numbers at `[B]` places; of several for one place the last one counts."""
        node = index + self._leaves
        self._sums[node] = weight
        self._changed.append(node)
        self._wait(len(node))

    def changed(self, first: int, length: int) -> None:
        """The numbers at `length` places from `first` on were changed in `values`."""
        self._runs.append((first, length))
        self._wait(length)

    def set_all(self, weight: Floats) -> None:
        """Changes all N numbers."""
        self.values[:] = weight
        self.changed(0, self._size)

    def find(self, mass: Floats) -> Ints:
        """Of each of `[B]` numbers in [0, Σ w) the index i with w₀ + … + wᵢ₋₁ ≤ mass < w₀ + … + wᵢ; wᵢ is never 0."""
        self._sum_changed()
        # All masses are parted at once over the nodes of one level; from there on each goes its way.
        level = min(_LEVEL, self._leaves)
        ends = self._sums[level : 2 * level].cumsum()
        # Rounding may make a mass as large as the last end, behind which there is no node.
        node = np.minimum(ends.searchsorted(mass, "right"), level - 1)
        left = mass - np.where(node > 0, ends.take(node - 1), 0.0)
        node += level
        while level < self._leaves:
            level *= 2
            node <<= 1
            first = self._sums.take(node)
            second = left >= first
            left -= first * second
            node += second
        lost = np.flatnonzero(self._sums.take(node) == 0.0)
        if len(lost):
            node[lost] = self._find_carefully(mass[lost])
        return node - self._leaves

    def _wait(self, places: int) -> None:
        """So many further places were changed; what nobody draws from for long does not pile up."""
        self._waiting += places
        if self._waiting >= self._leaves:
            # `_waiting` stays as it is: from so many places on all sums are made anew, and nobody asks where they were.
            self._changed, self._runs = [], []

    def _sum_changed(self) -> None:
        """Makes anew the sums of what was changed."""
        if not self._waiting:
            return
        level = self._leaves
        # Where a level has fewer nodes than were changed it is cheaper to make all of it anew.
        if level > max(2, self._waiting):
            runs = [np.arange(first, first + length) + level for first, length in self._runs]
            node = np.concatenate([*self._changed, *runs])
            while level > max(2, len(node)):
                # The left one of two siblings is even. Both are added, as either may have changed.
                left = node & -2
                node >>= 1
                self._sums[node] = self._sums.take(left) + self._sums.take(left + 1)
                level //= 2
        self._sum_above(level)
        self._changed, self._runs, self._waiting = [], [], 0

    def _sum_above(self, level: int) -> None:
        """Makes anew all sums above a level, which is known by its first node."""
        while level > 1:
            below = self._sums[level : 2 * level]
            level //= 2
            np.add(below[::2], below[1::2], out=self._sums[level : 2 * level])

    def _find_carefully(self, mass: Floats) -> Ints:
        """The same where rounding has led to a number that is 0: what is left of a mass may be rounded up to the whole sum."""
        node, left = np.ones(len(mass), np.int64), mass.copy()
        for _ in range(self._depth):
            node <<= 1
            first = self._sums.take(node)
            second = (left >= first) & (self._sums.take(node + 1) > 0.0)
            left -= first * second
            node += second
        return node
