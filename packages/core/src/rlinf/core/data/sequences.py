"""Sequences: laying them out in bins, and what counts as one action of a decision of several parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, cast

from rlinf.core.data.arrays import A
from rlinf.core.errors import ConfigError, did_you_mean

Granularity = Literal["token_level", "action_level", "chunk_level"]
"""One log-probability for each dimension of each step, for each step, or for the whole decision."""

_PARTS: Final = {"token_level": 2, "action_level": 1, "chunk_level": 0}
"""How many of the axes `[K, A]` are left."""


def check_granularity(granularity: str, *, place: str) -> None:
    """Refuses a granularity that does not exist.

    Raises:
        ConfigError: the message has the nearest.
    """
    if granularity not in _PARTS:
        raise ConfigError(place, f"no granularity '{granularity}'", did_you_mean(granularity, list(_PARTS)))


def at_granularity(x: A, granularity: Granularity, *, axes: int) -> A:
    """Adds log-probabilities, or entropies, of the parts of a decision up to those of a granularity.

    log π(a₁, …, a_n | s) = Σᵢ log π(aᵢ | s, a_<i)

    Args:
        x: NumPy or torch, `[*, K, A]`, `[*, K]` or `[*]`, in nats. What is coarse already stays as it is.
        granularity: what counts as one action.
        axes: how many axes `*` has: 1 for `[B]`, 2 for `[B, T]`.

    Raises:
        ConfigError: an unknown granularity.
    """
    check_granularity(granularity, place="logprob_type")
    summed, array = tuple(range(axes + _PARTS[granularity], len(x.shape))), cast("Any", x)
    return array.sum(summed) if summed else array


def first_fit_decreasing(lengths: Sequence[int], capacity: int, *, bins: int | None = None) -> list[list[int]]:
    """Lays items out in bins, the longest first, each in the first bin with room: the same for the same lengths.

    Johnson, "Near-optimal bin packing algorithms" (1973): at most 11/9 of the fewest bins.

    Args:
        lengths: of each item, ≥ 0.
        capacity: of a bin; a longer item has one of its own.
        bins: the most bins, where items that fit into none of them are left out; None for any number.

    Returns:
        The indices of the items of each bin, in the order in which they were laid there.
    """
    packed: list[list[int]] = []
    room: list[int] = []
    # The sort is stable, so that items of one length keep their order.
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        at = next((i for i, free in enumerate(room) if free >= lengths[item]), None)
        if at is not None:
            packed[at].append(item)
            room[at] -= lengths[item]
        elif bins is None or len(packed) < bins:
            packed.append([item])
            room.append(capacity - lengths[item])
    return packed
