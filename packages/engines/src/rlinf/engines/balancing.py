"""Dividing rows over ranks so that each has about the same number of tokens."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf.core.arrays import as_numpy
from rlinf.core.errors import ShapeError
from rlinf.core.trajectory import Batch
from rlinf.engines.packing import token_lengths

Division = list[tuple[float, list[int]]]
"""The weight and the items of each part, the heaviest part first."""


def balanced(weights: Sequence[float], parts: int) -> list[list[int]]:
    """Divides items into parts of nearly equal weight: the same for the same weights.

    Karmarkar & Karp, "The differencing method of set partitioning" (1982): the two partial divisions that are most uneven are
    joined, the heaviest of one with the lightest of the other, until one is left. No part is empty unless there are too few items.

    Args:
        weights: of each item, > 0.
        parts: how many.

    Returns:
        The items of each part, rising, the heaviest part first.

    Raises:
        ShapeError: less than one part.
    """
    if parts < 1:
        raise ShapeError("balanced(parts)", f"expected at least 1, found {parts}")
    heap: list[tuple[float, int, Division]] = []
    for item, weight in enumerate(weights):
        division: Division = [(weight, [item]), *((0.0, list[int]()) for _ in range(parts - 1))]
        heapq.heappush(heap, (-weight, item, division))
    # The second entry decides between equal differences: divisions themselves are never compared.
    age = len(weights)
    while len(heap) > 1:
        (_, _, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        joined = [(a + b, items + more) for (a, items), (b, more) in zip(one, reversed(other), strict=True)]
        joined.sort(key=lambda part: (-part[0], part[1]))
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], age, joined))
        age += 1
    return [sorted(items) for _, items in heap[0][2]] if heap else [[] for _ in range(parts)]


def split_by_tokens(batch: Batch[Any], parts: int, *, whole_groups: bool = True) -> list[Batch[Any]]:
    """A batch for each rank, with nearly as many tokens as the others have.

    Args:
        batch: rows of text, of all ranks.
        parts: how many ranks.
        whole_groups: whether rows of one group stay together; they need not once credit was given.

    Raises:
        ShapeError: the context is not that of a language model, or there are fewer groups (or rows) than parts.
    """
    # A row without a token is a row all the same: weights must be positive.
    lengths = np.maximum(np.asarray(token_lengths(batch)), 1)
    names = as_numpy(batch.trajectory.group) if whole_groups else np.arange(len(batch))
    groups, member = np.unique(names, return_inverse=True)
    if len(groups) < parts:
        what = "groups" if whole_groups else "rows"
        raise ShapeError(
            "split_by_tokens(parts)", f"{len(groups)} {what} can't be divided over {parts} ranks", "Use larger batches."
        )
    weights = np.bincount(member.reshape(-1), weights=lengths)
    chosen = balanced([float(weight) for weight in weights], parts)
    return [batch.rows(np.flatnonzero(np.isin(member, items))) for items in chosen]
