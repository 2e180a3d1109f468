"""How a loss goes through a batch: decision by decision, in each element by element, and summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias


class Aggregation(NamedTuple):
    """How decisions become one number; the one of the package has the same two fields and serves as well."""

    mode: str = "token-mean"
    length: int | None = None


TOKEN_MEAN = Aggregation()


SEQUENCE_MEAN = Aggregation("seq-mean-token-mean")


def factors(mask: list[list[bool]], mode: str, length: int | None = None) -> tuple[list[list[float]], float]:
    """The factor of each decision, and the weight: decisions for `token-mean`, rows with a decision for the other modes."""
    result: list[list[float]] = []
    decisions, rows = 0, 0
    for row in mask:
        n = sum(1 for valid in row if valid)
        decisions += n
        rows += 1 if n else 0
        result.append([_factor(mode, n, length) if valid else 0.0 for valid in row])
    return result, float(decisions if mode == "token-mean" else rows)


def _factor(mode: str, decisions: int, length: int | None) -> float:
    if mode == "seq-mean-token-mean":
        return 1.0 / decisions
    if mode == "constant-length":
        if length is None:
            raise ValueError("constant-length needs a length")
        return 1.0 / length
    return 1.0


def aggregate(
    loss: list[list[float]], mask: list[list[bool]], mode: str = "token-mean", length: int | None = None
) -> tuple[float, float]:
    """The sum of factor times loss, and the weight."""
    factor, weight = factors(mask, mode, length)
    total = 0.0
    for b, row in enumerate(mask):
        for t, valid in enumerate(row):
            if valid:
                total += factor[b][t] * loss[b][t]
    return total, weight


def leaves(x: Any) -> list[float]:
    """The numbers in nested lists, in order; a number is a list of one."""
    return [leaf for part in x for leaf in leaves(part)] if isinstance(x, list) else [x]  # pyright: ignore[reportUnknownVariableType]


def per_decision(x: list[list[Any]]) -> list[list[float]]:
    """The mean of what belongs to each decision."""
    return [[sum(leaves(decision)) / len(leaves(decision)) for decision in row] for row in x]


Nested: TypeAlias = list[list[Any]]
"""A tensor `[B, T, …]` as `tolist` gives it."""


Rows: TypeAlias = list[list[float]]
"""`[B, T]`."""


Mask: TypeAlias = list[list[bool]]
"""`[B, T]`."""


Summed: TypeAlias = tuple[float, float, dict[str, float]]
"""Total, weight, and the mean of each metric over decisions."""


Decide: TypeAlias = Callable[[int, int], dict[str, float]]
"""What is known of a decision (row, column); `loss` is what it costs."""


def at(x: Nested, row: int, column: int) -> list[float]:
    """The elements of one decision."""
    return leaves(x[row][column])


def average(items: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each entry."""
    return {name: sum(item[name] for item in items) / len(items) for name in items[0]}


def decided(mask: Mask) -> list[list[int]]:
    """The columns of each row in which something was decided."""
    return [[t for t, valid in enumerate(row) if valid] for row in mask]


def summed(mask: Mask, decide: Decide, aggregation: Aggregation = TOKEN_MEAN) -> Summed:
    """Adds up what decisions cost, as `aggregation` says."""
    known = [{t: decide(b, t) for t in columns} for b, columns in enumerate(decided(mask))]
    loss = [[known[b][t]["loss"] if valid else 0.0 for t, valid in enumerate(row)] for b, row in enumerate(mask)]
    total, weight = aggregate(loss, mask, aggregation.mode, aggregation.length)
    everything = [item for row in known for item in row.values()]
    return total, weight, average(everything) if everything else {}
