"""The shared memory: observations, rewards and flags from the simulator's process, actions to it.

    | actions | slot 0 | slot 1 | slot 2 | slot 3 | slot of partial batches |      a slot: one array [N, …] for each key, …

A slot holds what one call gives for all N environments, each process writing its own rows. What a caller gets are views of a slot:
nothing is copied on this side. An observation once given must stay as it is, so a slot is *leased* while any array made of it is
alive, and written again only then. Who keeps many observations gets copies from the moment on at which the last free slot would go.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.core.process import SharedMemory
from rlinf.envs.spaces import is_a

SLOTS = 4
"""Slots to lease. A loop that uses an observation and lets it go needs two or three: the last, the present, the next."""
PARTIAL = SLOTS
"""The slot of partial batches, which are gathered from several processes and therefore copied."""
_ALIGNMENT = 64

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a slot."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def of(self, raw: NDArray[np.uint8]) -> NDArray[Any]:
        """This array, as a view of the bytes of a slot."""
        return np.ndarray(self.shape, self.dtype, raw, self.start)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each array lies; both sides compute it from the same spaces."""

    actions: Part
    observation: Mapping[str, Part]
    results: Mapping[str, Part]
    first_slot: int
    slot_size: int

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.first_slot + (SLOTS + 1) * self.slot_size


def plan(observation: Any, action: Any, num_envs: int) -> Layout:
    """The layout for `num_envs` environments.

    Args:
        observation: the space of one environment, a flat `Dict`.
        action: the space of one environment's action.
        num_envs: N, over all processes.

    Raises:
        ConfigError: observations that are no flat `Dict`.
    """
    if not is_a(observation, gymnasium.spaces.Dict) or any(is_a(s, gymnasium.spaces.Dict) for s in observation.values()):
        raise ConfigError("env", f"observations must be a Dict of arrays by key, found {observation}", "Wrap the environment.")
    at = 0

    def part(dtype: Any, shape: tuple[int, ...]) -> Part:
        nonlocal at
        made = Part(np.dtype(dtype), (num_envs, *shape), at)
        at += -(-made.size // _ALIGNMENT) * _ALIGNMENT
        return made

    seen = {key: part(space.dtype, tuple(space.shape or ())) for key, space in observation.items()}
    results = {"reward": part(np.float32, ()), "terminated": part(np.bool_, ()), "truncated": part(np.bool_, ())}
    slot = _pages(at)
    at = 0
    actions = part(action.dtype, tuple(action.shape or ()))
    return Layout(actions, seen, results, _pages(at), slot)


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class Memory:
    """One side's view of the shared memory.

    Args:
        shared: the memory; it is made as large as the layout.
        layout: what lies where.
    """

    def __init__(self, shared: SharedMemory, layout: Layout) -> None:
        self._layout = layout
        self._bytes = shared.map(layout.size)
        self.actions = layout.actions.of(np.frombuffer(self._bytes, np.uint8, layout.first_slot))
        self._free = list(range(SLOTS))
        self._leases: dict[int, weakref.ref[Any]] = {}
        self.results: list[Arrays] = [_parts(layout.results, self._raw(slot)) for slot in range(SLOTS + 1)]

    def observation(self, slot: int) -> Arrays:
        """The observation in a slot, by key, without a lease."""
        return _parts(self._layout.observation, self._raw(slot))

    def acquire(self) -> int:
        """A free slot; there is one always, as `lease` keeps one back."""
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Gives back a slot that was acquired but not leased."""
        self._free.append(slot)

    def lease(self, slot: int) -> Arrays:
        """The observation in an acquired slot, which is free again when the last array made of it is gone."""
        if not self._free:
            copies = {key: array.copy() for key, array in self.observation(slot).items()}
            self.release(slot)
            return copies
        raw = self._raw(slot)
        # NumPy makes `raw` the base of every view, and of views of views, so it lives exactly as long as the last of them.
        self._leases[slot] = weakref.ref(raw, lambda _: self._free.append(slot))
        return _parts(self._layout.observation, raw)

    def _raw(self, slot: int) -> NDArray[np.uint8]:
        start = self._layout.first_slot + slot * self._layout.slot_size
        # A new array at each call, as its lifetime is that of one lease.
        return np.frombuffer(self._bytes, np.uint8, self._layout.slot_size, start)


def _parts(parts: Mapping[str, Part], raw: NDArray[np.uint8]) -> Arrays:
    return {key: part.of(raw) for key, part in parts.items()}
