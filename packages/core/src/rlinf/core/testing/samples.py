"""Random data for the contract suites, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf.core.data import Batch, Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ContractError

AsArray = Callable[[Any], Any]
"""Makes of a NumPy array an array of the examined library, such as `torch.as_tensor`."""


def random_trajectory(rows: int, horizon: int, *, as_array: AsArray, group_size: int = 1, seed: int = 3) -> Trajectory[Any]:
    """Rows of different lengths; a third terminates, a third is truncated, a third goes on. One step and one action dimension.

    Args:
        rows: B.
        horizon: T.
        as_array: makes an array of the examined library.
        group_size: how many consecutive rows form a group.
        seed: decides the numbers.
    """
    random = np.random.default_rng(seed)
    length = random.integers(1, horizon + 1, size=rows)
    mask = np.arange(horizon) < length[:, None]
    last = np.arange(horizon) == length[:, None] - 1
    end = np.arange(rows)[:, None] % 3

    def normal(*shape: int) -> Any:
        return as_array(random.standard_normal(shape, dtype=np.float32))

    return Trajectory.of(
        context={"states": normal(rows, horizon, 2)},
        action=normal(rows, horizon, 1, 1),
        logprob=normal(rows, horizon),
        reward=normal(rows, horizon),
        terminated=as_array(last & (end == 0)),
        truncated=as_array(last & (end == 1)),
        mask=as_array(mask),
        group=as_array(np.arange(rows) // group_size),
        value=normal(rows, horizon + 1),
    )


def random_batch(rows: int, horizon: int, *, as_array: AsArray, seed: int = 3) -> Batch[Any]:
    """A random trajectory with random credit."""
    random = np.random.default_rng(seed + 1)
    advantage, target = (as_array(random.standard_normal((rows, horizon), dtype=np.float32)) for _ in range(2))
    trajectory = random_trajectory(rows, horizon, as_array=as_array, seed=seed)
    return Batch.of(trajectory, advantage, target)


def same(place: str, expected: object, found: object, tolerance: float) -> None:
    """Refuses arrays that differ in shape, or anywhere by more than `tolerance` · (1 + |expected| / 10).

    With 1e-5 that is the rounding of float32, which has seven digits: sums in another order, as other processors make them, agree
    to no more.

    Raises:
        ContractError: the message says by how much they differ.
    """
    one, two = as_numpy(expected), as_numpy(found)
    if one.shape != two.shape:
        raise ContractError(place, f"expected the shape {one.shape}, found {two.shape}")
    gaps = np.abs(one.astype(np.float64) - two.astype(np.float64))
    # Not `>`, which is false of a gap that is no number.
    if not np.all(gaps <= tolerance * (1.0 + np.abs(one.astype(np.float64)) / 10.0)):
        gap = float(np.max(gaps))
        raise ContractError(place, f"expected agreement to {tolerance:g}, found a difference of {gap:.3g}")
