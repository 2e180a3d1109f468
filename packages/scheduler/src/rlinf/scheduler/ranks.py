"""Ranks as people write them: `3`, `"0-3"`, `"0,2,5-7"`, `"all"`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from rlinf.core.errors import ConfigError

ALL = "all"
SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
"""`n` or `a-b`."""


def read_spans(value: int | str, *, place: str) -> list[range] | None:
    """The ranges that a value names, ascending and disjoint; None for `all`.

    Args:
        value: a rank, or text such as `0,2,5-7`.
        place: the dotted path of the value, for messages.

    Raises:
        ConfigError: the text can't be read, a range runs backwards, or a rank is named twice.
    """
    text = str(value).strip()
    if text == ALL:
        return None
    spans: list[range] = []
    for piece in text.split(","):
        match = SPAN.fullmatch(piece.strip())
        if match is None:
            raise ConfigError(
                place, f"'{text}' can't be read at '{piece.strip()}'", "Expected ranks such as 3, 0-3, 0,2,5-7 or all."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(place, f"in '{text}' the range {piece.strip()} runs backwards", f"Write {last}-{first}.")
        spans.append(range(first, last + 1))
    spans.sort(key=lambda span: span.start)
    for before, after in pairwise(spans):
        if after.start < before.stop:
            raise ConfigError(place, f"'{text}' names rank {after.start} twice", "Name each rank once.")
    return spans


def parse_ranks(value: int | str, count: int, *, place: str) -> tuple[int, ...]:
    """The ranks of nodes that a value names, ascending.

    Args:
        value: a rank, or text such as `0,2,5-7` or `all`.
        count: how many there are; ranks are below it.
        place: the dotted path of the value, for messages.

    Raises:
        ConfigError: see `read_spans`; or a rank is out of range.
    """
    spans = read_spans(value, place=place)
    if spans is None:
        return tuple(range(count))
    # Before the ranges become ranks one by one: a typing error shall not fill the memory.
    if spans[-1].stop > count:
        have = f"there are {count} nodes (0-{count - 1})" if count > 1 else "there is 1 node (0)"
        raise ConfigError(place, f"'{value}' names node {spans[-1].stop - 1}, but {have if count else 'there is no node'}")
    return tuple(rank for span in spans for rank in span)


def format_ranks(ranks: Iterable[int]) -> str:
    """Ascending ranks in the shortest text that `parse_ranks` reads: `0-3,7`."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)
