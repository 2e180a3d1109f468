"""Which split a problem belongs to: decided by what it asks, so that no problem is in two."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Final, TypeVar

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Split
from rlinf.core.random import keyed_seed

T = TypeVar("T", bound=Hashable)
PATIENCE: Final = 20_000
"""Draws in a row without a new problem after which there are taken to be no more."""
_STEPS: Final = 1 << 20


def split_of(key: str, *, seed: int, validation_share: float) -> Split:
    """The split of whatever has this key.

    Args:
        key: equal for problems that must stay together, such as `3+4` and `4+3`.
        seed: another seed parts the same problems differently.
        validation_share: of all keys, in (0, 1).
    """
    # By the key alone, so that asking for more problems moves none to the other split.
    drawn = keyed_seed(seed, f"split of {key}") % _STEPS
    return "validation" if drawn < validation_share * _STEPS else "train"


def distinct(
    drawn: Iterator[T], key: Callable[[T], str], split: Split, count: int, *, seed: int, validation_share: float, place: str
) -> list[T]:
    """The first `count` different ones of an endless stream that belong to a split; what has the same key is in the same split.

    Raises:
        ConfigError: the stream does not have so many.
    """

    def belongs(item: T) -> bool:
        return split_of(key(item), seed=seed, validation_share=validation_share) == split

    return first_distinct(drawn, count, place=f"{place}.{split}", wanted=belongs)


def first_distinct(drawn: Iterator[T], count: int, *, place: str, wanted: Callable[[T], bool] = lambda _: True) -> list[T]:
    """The first `count` different ones of an endless stream.

    Args:
        drawn: the stream.
        count: how many.
        place: who asks, for the message.
        wanted: whether one of them counts.

    Raises:
        ConfigError: the stream does not have so many.
    """
    found: dict[T, None] = {}
    idle = 0
    while len(found) < count and idle < PATIENCE:
        item = next(drawn)
        idle += 1
        if item not in found and wanted(item):
            found[item] = None
            idle = 0
    if len(found) < count:
        problem = f"expected {count} different problems, found {len(found)}"
        raise ConfigError(place, problem, "Ask for fewer, or make the problems larger.")
    return list(found)


def is_worked(key: str, share: float, *, seed: int) -> bool:
    """Whether a problem belongs to the share whose worked example uses tools: by what it asks alone, whatever else is drawn.

    Args:
        key: what it asks.
        share: of all problems.
        seed: another seed chooses others.
    """
    return keyed_seed(seed, f"worked {key}") % _STEPS < share * _STEPS


def check_sizes(train: int, validation: int, validation_share: float) -> None:
    """Refuses splits that can't be filled.

    Raises:
        ConfigError: a split has no problem, or the share is not between 0 and 1.
    """
    for name, size in (("train", train), ("validation", validation)):
        expect_at_least(name, size, 1)
    expect_range("validation_share", validation_share, 0.0, 1.0, open_low=True, open_high=True)
