"""Countdown: from these numbers, make that one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem
from rlinf.core.random import keyed_generator
from rlinf.envs.tasks.generated import GeneratedTask, SplitSizes

_DRAWS = 1024
Sign = Literal["+", "-", "*", "/"]


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Numbers, and what is to be made of them."""

    numbers: tuple[int, ...]
    target: int

    def key(self) -> str:
        """The same whatever the order of the numbers."""
        return f"{sorted(self.numbers)} {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Countdown(GeneratedTask[Puzzle]):
    """Countdown puzzles, by name: `task_type: countdown`; scored by the reward `countdown`.

    As in Pan et al., "TinyZero" (2025): every number is to be used exactly once. A puzzle is drawn by combining its numbers at
    random, so that it has a solution; the one that is shown is found by search. The answer of a problem is what the reward reads:
    JSON of `numbers` and `target`.
    """

    place: ClassVar[str] = "countdown"
    numbers: int = 3
    """How many there are, from 2 to 6."""
    largest: int = 20
    """Numbers are from 1 to this."""
    largest_target: int = 100
    """Targets are from 1 to this."""
    operations: tuple[Sign, ...] = ("+", "-", "*")
    """What numbers may be combined with; a division must leave no rest."""
    train: int = 4_000
    """Puzzles to train on, all different."""
    validation: int = 256
    """Puzzles held out, all different; none of them is one to train on with its numbers in another order."""

    def __post_init__(self) -> None:
        SplitSizes.__post_init__(self)
        expect_range("numbers", self.numbers, 2, 6, remedy="The search tries every way.")
        for name, value in (("largest", self.largest), ("largest_target", self.largest_target)):
            expect_at_least(name, value, 1)
        if not self.operations:
            raise ConfigError("operations", "expected at least one, found none")

    def _key(self, item: Puzzle) -> str:
        return item.key()

    def _problem(self, number: int, item: Puzzle) -> Problem:
        return Problem(
            prompt=f"{','.join(map(str, item.numbers))}={item.target}:",
            answer=json.dumps({"numbers": list(item.numbers), "target": item.target}),
            id=number,
            solution=solve(item.numbers, item.target, self.operations),
        )

    def _drawn(self) -> Iterator[Puzzle]:
        generator = keyed_generator(self.seed, "countdown")
        while True:
            allowed = 0
            for row in generator.integers(1, self.largest + 1, size=(_DRAWS, self.numbers)).tolist():
                target = self._combined(row, generator)
                if target is not None and target <= self.largest_target:
                    allowed += 1
                    yield Puzzle(tuple(row), target)
            # After so many without one the search would most likely never end.
            if not allowed:
                found = f"{_DRAWS} draws, of which none comes to 1 … {self.largest_target}"
                raise ConfigError("countdown.largest_target", f"expected targets in reach, found {found}", "Raise it.")

    def _combined(self, row: Sequence[int], generator: np.random.Generator) -> int | None:
        """What the numbers come to in a random way; None if that is 0, or if with - or / alone no operation fits a pair."""
        left = list(row)
        while len(left) > 1:
            first, second = (left.pop(int(generator.integers(len(left)))) for _ in range(2))
            made = combined(first, second, self.operations)
            if not made:
                return None
            left.append(made[int(generator.integers(len(made)))][0])
        return left[0] or None


def solve(numbers: Sequence[int], target: int, operations: Sequence[Sign]) -> str | None:
    """An expression that uses each number once and comes to the target, such as `(7-3)*5`; None if there is none.

    All pairs are combined in all ways, one after the other; results on the way are never below 0 nor broken.
    """
    return _search([(number, str(number)) for number in numbers], target, operations)


def _search(left: Sequence[tuple[int, str]], target: int, operations: Sequence[Sign]) -> str | None:
    if len(left) == 1:
        # What was combined has parentheses around it, of which the outermost go; a number alone has none, and is no answer.
        value, text = left[0]
        return text.removeprefix("(").removesuffix(")") if value == target and text.startswith("(") else None
    for i, (x, first) in enumerate(left):
        for j, (y, second) in enumerate(left):
            # A pair is taken in both orders: only in one of them is a difference not below 0.
            if i == j:
                continue
            rest = [item for k, item in enumerate(left) if k not in (i, j)]
            for value, sign in combined(x, y, operations):
                found = _search([*rest, (value, f"({first}{sign}{second})")], target, operations)
                if found is not None:
                    return found
    return None


def combined(x: int, y: int, operations: Sequence[Sign]) -> list[tuple[int, Sign]]:
    """What two whole numbers make in this order, never below 0, and by which operation."""
    made: list[tuple[int, Sign]] = []
    for sign in operations:
        if sign == "+":
            made.append((x + y, sign))
        elif sign == "-" and x >= y:
            made.append((x - y, sign))
        elif sign == "*":
            made.append((x * y, sign))
        elif sign == "/" and y and x % y == 0:
            made.append((x // y, sign))
    return made
