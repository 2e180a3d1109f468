"""Random numbers keyed by what they are for, so that the same configuration gives the same run wherever it is placed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np


def keyed_seed(seed: int, component: str, *key: int) -> int:
    """A 63-bit seed that depends on all its arguments and on nothing else.

    Args:
        seed: the seed of the run.
        component: what the numbers are for, such as "rollout" or "shuffle".
        key: rank, slot, step, …: whatever tells two uses of the component apart.
    """
    # Not by `hash`, which is another one for texts in every process.
    text = f"{seed}/{component}/{'/'.join(str(k) for k in key)}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def keyed_generator(seed: int, component: str, *key: int) -> np.random.Generator:
    """A NumPy generator seeded by `keyed_seed`."""
    return np.random.Generator(np.random.Philox(keyed_seed(seed, component, *key)))


@dataclass(frozen=True, slots=True)
class RowGenerators:
    """One generator for each run of rows of a batch, so that rows that are decided for together draw what they would draw alone.

    A policy that says so (`PolicyTraits.row_generators`) takes it as the `generator` of `predict_action_batch`.
    """

    parts: tuple[tuple[int, Any], ...]
    """How many rows, and their generator; in order."""

    @property
    def device(self) -> Any:
        """That of all generators."""
        return self.parts[0][1].device
