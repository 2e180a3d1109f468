"""Random numbers for many environments at once, each depending on its own key alone.

A `numpy.random.Generator` for each environment would cost more than the simulation. Here a number is a hash of key and position
(the finaliser of SplitMix64: Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators" (2014)), computed for all
environments together in 64-bit integers, so that it is the same on every machine and for every number of environments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# SplitMix64's increment, 2⁶⁴ divided by the golden ratio, and the two multipliers of its finaliser.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class KeyedRandom:
    """A sequence of numbers for each of `n` keys.

    Args:
        *keys: integers or arrays `[n]` of integers ≥ 0, which together are the key.
    """

    def __init__(self, *keys: ArrayLike) -> None:
        parts = [np.atleast_1d(np.asarray(key, np.uint64)) for key in keys]
        # Not `broadcast_arrays`: NumPy keeps some bytes of each array that it marks writeable, so that resets would add up.
        state = np.zeros(np.broadcast_shapes(*(part.shape for part in parts)), np.uint64)
        for part in parts:
            state = _mix((state ^ _mix(part + _GOLDEN)) + _GOLDEN)
        self._state = state
        self._taken = 0

    def uniform(self, low: float, high: float, count: int) -> NDArray[np.float64]:
        """The next numbers in [low, high), `[n, count]`."""
        positions = np.arange(self._taken + 1, self._taken + count + 1, dtype=np.uint64)
        self._taken += count
        bits = _mix(self._state[:, None] + _GOLDEN * positions)
        # The upper 53 bits, as many as a float64 holds exactly.
        return low + (high - low) * ((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def choice(self, count: int) -> NDArray[np.int64]:
        """The next number as an integer in [0, count), `[n]`."""
        return (self.uniform(0.0, 1.0, 1)[:, 0] * count).astype(np.int64)

    def order(self, count: int) -> NDArray[np.int64]:
        """A random order of 0 … count − 1 for each key, `[n, count]`."""
        # Only a stable sort orders equal numbers the same way on every machine.
        return np.argsort(self.uniform(0.0, 1.0, count), axis=-1, kind="stable")

    def apart(self, low: float, high: float, others: NDArray[np.float64], distance: float) -> NDArray[np.float64]:
        """Points `[n, 2]` in the square [low, high)², at least `distance` from `others` `[n, m, 2]`.

        After 16 attempts the last one is kept, so the square must have room.
        """
        point = self.uniform(low, high, 2)
        for _ in range(15):
            gap = others - point[:, None, :]
            near = np.any(gap[..., 0] ** 2 + gap[..., 1] ** 2 < distance**2, axis=-1, keepdims=True)
            # Drawn for all keys, so that what a key gets next doesn't depend on the others.
            point = np.where(near, self.uniform(low, high, 2), point)
        return point


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
