"""Sequences that begin alike, as a tree in which what they share is computed once.

    rows of a batch            one packed row               what its columns see
    ppppaaa                    ppppaaabbcc                  p: p        a: p, a
    ppppabb      ── tree ─▶                                 b: p, a₁, b
    ppppcc.                                                 c: p, c

A column is shared where the same token follows the same tokens and decides the same next token; so at a fork the last common
token is there once for each branch. Branches lie depth first: what belongs to a column lies right behind it, and one number for
each column, where that ends, says who sees it. Forward passes alone know of trees, as of packing; what they find goes back to rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Keys = Sequence[NDArray[np.int64]]
"""For each row one number for each of its columns, equal where token and next token are."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Rows that begin alike."""

    rows: tuple[int, ...]
    """Sorted by what they hold, so that a row shares no more with any earlier one than with the one before it."""
    shared: tuple[int, ...]
    """How many columns each shares with the one before it; 0 for the first."""
    tokens: int
    """Columns, those that are shared once."""


def prefix_trees(keys: Keys, max_tokens: int) -> list[PrefixTree]:
    """Rows in trees of at most `max_tokens` columns; a row that shares nothing, or is longer, is a tree alone.

    Args:
        keys: of each row.
        max_tokens: the most columns of a tree.
    """
    # Big-endian bytes sort as the numbers do, which are not negative.
    order = sorted(range(len(keys)), key=lambda row: (keys[row].astype(">i8").tobytes(), row))
    trees: list[PrefixTree] = []
    for place, row in enumerate(order):
        length = len(keys[row])
        common = shared_columns(keys[order[place - 1]], keys[row]) if place else 0
        if common and trees[-1].tokens + length - common <= max_tokens:
            last = trees.pop()
            trees.append(PrefixTree((*last.rows, row), (*last.shared, common), last.tokens + length - common))
        else:
            trees.append(PrefixTree((row,), (0,), length))
    return trees


def shared_columns(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """How many columns two rows begin with that are the same."""
    length = min(len(one), len(other))
    apart = np.flatnonzero(one[:length] != other[:length])
    return int(apart[0]) if len(apart) else length


def tree_places(lengths: Sequence[int], shared: Sequence[int]) -> list[NDArray[np.int64]]:
    """Where each column of each row lies in a packed row that holds them from the left.

    Args:
        lengths: columns of each row.
        shared: how many of them lie where those of the row before it do.
    """
    found: list[NDArray[np.int64]] = []
    end = 0
    for length, common in zip(lengths, shared, strict=True):
        own = np.arange(end, end + length - common)
        found.append(np.concatenate([found[-1][:common], own]) if common else own)
        end += length - common
    return found


def seen_until(places: Sequence[NDArray[np.int64]], shared: Sequence[int], width: int) -> NDArray[np.int64]:
    """`[width]`, the column in front of which those end that see each column; a column that holds nothing sees itself alone.

    Column i sees column j where j ≤ i < seen_until[j].
    """
    found = np.arange(1, width + 1)
    path, end = np.zeros(0, np.int64), 0
    for place, common in zip(places, shared, strict=True):
        # Whatever of the row before is not shared has no further branch.
        found[path[common:]] = end
        path, end = place, max(end, int(place[-1]) + 1 if len(place) else end)
    found[path] = end
    return found


def row_keys(ids: Tensor, action: Tensor, columns: Sequence[Tensor]) -> Keys:
    """What tells columns apart, for each row.

    Args:
        ids: `[B, T]`, tokens.
        action: `[B, T]`, next tokens.
        columns: of each row those that are no padding.
    """
    # Two numbers below 2³¹ as one.
    both = (ids.to(torch.int64) << 31 | action.to(torch.int64)).cpu().numpy()
    return [both[row][found.cpu().numpy()] for row, found in enumerate(columns)]


def may_share(context: Any, segments: Tensor) -> bool:
    """Whether rows can be laid out as trees: one sequence of nothing but text in each."""
    return set(context) <= {"input_ids", "segment_ids"} and bool((segments <= 1).all())
