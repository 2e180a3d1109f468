"""`SumTree`: numbers that are drawn in proportion to their size, many at a time.

A node keeps the running sums of its 16 children, so that going down one level is one comparison with 16 numbers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_CHILDREN: Final = 16
"""Fewer make more levels, each of which costs several calls of NumPy; more make each call longer."""


class SumTree:
    """N numbers ≥ 0, of which index i is found with probability wᵢ / Σ w; 0 at the start.

    Finding and setting B of them takes B log N, whatever is set: a sum is always made anew of its children, from the first to the
    last, so that rounding never accumulates and the tree of some numbers does not depend on how they came there.

    Args:
        size: N.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._weights: list[Floats] = []
        self._running: list[Floats] = []
        nodes = size
        while not self._running or nodes > 1:
            parents = -(-nodes // _CHILDREN)
            self._weights.append(np.zeros(parents * _CHILDREN))
            self._running.append(np.zeros((parents, _CHILDREN)))
            nodes = parents

    def __getitem__(self, index: Any) -> Floats:
        return self._weights[0][index]

    @property
    def values(self) -> Floats:
        """`[N]`, a view of all numbers."""
        return self._weights[0][: self._size]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(part.nbytes for part in (*self._weights, *self._running))

    @property
    def total(self) -> float:
        """Σ w."""
        return float(self._running[-1][0, -1])

    def set(self, index: Ints, weight: Any) -> None:
        """Changes the numbers at `[B]` places; of several for one place the last one counts."""
        self._weights[0][index] = weight
        node = index
        for level, running in enumerate(self._running):
            node = node // _CHILDREN
            sums = self._weights[level].reshape(-1, _CHILDREN)[node].cumsum(axis=1)
            running[node] = sums
            if level + 1 < len(self._weights):
                self._weights[level + 1][node] = sums[:, -1]

    def set_all(self, weight: Floats) -> None:
        """Changes all N numbers."""
        self._weights[0][: self._size] = weight
        for level, running in enumerate(self._running):
            np.cumsum(self._weights[level].reshape(-1, _CHILDREN), axis=1, out=running)
            if level + 1 < len(self._weights):
                self._weights[level + 1][: len(running)] = running[:, -1]

    def find(self, mass: Floats) -> Ints:
        """Of each of `[B]` numbers in [0, Σ w) the index i with w₀ + … + wᵢ₋₁ ≤ mass < w₀ + … + wᵢ; wᵢ is never 0."""
        node = np.zeros(len(mass), np.int64)
        for running in reversed(self._running):
            sums = running[node]
            # What was subtracted above may have rounded the rest up to the whole sum, behind which no child is.
            left = np.minimum(mass, np.nextafter(sums[:, -1], 0.0))
            child = (sums <= left[:, None]).sum(axis=1)
            before = np.where(child > 0, sums[np.arange(len(node)), child - 1], 0.0)
            mass, node = left - before, node * _CHILDREN + child
        return node
