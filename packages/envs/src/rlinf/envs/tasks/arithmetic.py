"""Sums to be worked out step by step: of `7+5-4=` a worked solution is `7+5=12-4#8`, and one without its work `#8`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem
from rlinf.core.random import keyed_generator
from rlinf.envs.tasks.generated import GeneratedTask, SplitSizes
from rlinf.envs.tasks.splits import is_worked

Operation = Literal["+", "-", "*"]
_DRAWS = 4096
_FARTHEST = 5
"""How far a guess is off at most."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of an expression."""

    left: int
    operation: str
    right: int
    result: int
    goes_on: bool
    """Whether `left` is the result of the step before."""


@dataclass(frozen=True, slots=True)
class Expression:
    """Numbers and the operations between them; multiplication binds closer."""

    numbers: tuple[int, ...]
    operations: tuple[str, ...]
    """One less than there are numbers."""

    def __str__(self) -> str:
        rest = zip(self.operations, self.numbers[1:], strict=True)
        return str(self.numbers[0]) + "".join(f"{operation}{number}" for operation, number in rest)

    def steps(self) -> list[Step]:
        """The operations in the order in which they are carried out; the result of the last is the value."""
        numbers, operations, found = list(self.numbers), list(self.operations), list[Step]()
        before = -1
        while operations:
            at = operations.index("*") if "*" in operations else 0
            left, right, operation = numbers[at], numbers.pop(at + 1), operations.pop(at)
            numbers[at] = left + right if operation == "+" else left - right if operation == "-" else left * right
            # The step before left its result at `before`; only what is carried out there goes on with it.
            found.append(Step(left, operation, right, numbers[at], goes_on=at == before))
            before = at
        return found

    def worked(self) -> str:
        """All steps; each begins with the result of the one before it, or after a comma. The last result follows a `#`."""
        text = ""
        for step in self.steps():
            begin = "" if step.goes_on else f",{step.left}" if text else str(step.left)
            text += f"{begin}{step.operation}{step.right}={step.result}"
        before, _, value = text.rpartition("=")
        return f"{before}#{value}"

    def key(self) -> str:
        """The same for all expressions that differ by the order of their terms and factors only."""
        products: list[list[int]] = [[self.numbers[0]]]
        # The first term has a sign as well, as it may stand elsewhere.
        signs = ["+"]
        for operation, number in zip(self.operations, self.numbers[1:], strict=True):
            if operation == "*":
                products[-1].append(number)
            else:
                products.append([number])
                signs.append(operation)
        return "".join(sorted(sign + "*".join(map(str, sorted(product))) for sign, product in zip(signs, products, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic(GeneratedTask[Expression]):
    """Generated arithmetic, by name: `task_type: arithmetic`.

    The solutions are those of a hasty teacher: a share of them shows its work, the others state an answer alone, and some of those
    answers may be guesses. A model that imitates them has seen how to reason, and has to find out by itself that it pays. In any
    response the answer follows a `#` (the reward `exact_match` with `after: "#"`).
    """

    place: ClassVar[str] = "arithmetic"
    operations: tuple[Operation, ...] = ("+", "-")
    """Those that occur, each equally often."""
    terms: int = 6
    """How many numbers a problem has, at least 2; more make it harder."""
    digits: int = 1
    """Digits of each number, of which the first is not 0."""
    largest: int | None = 20
    """No result on the way is larger; None for any."""
    negative: bool = False
    """Whether a result on the way may be below 0."""
    worked_share: float = 0.4
    """The share of problems whose solution shows its work; that of the others is `#` and an answer."""
    guessed_share: float = 0.0
    """The share of the others whose answer is off by 1 to 5. Where there are none, a transformer learns to answer at once, too."""
    train: int = 20_000
    validation: int = 256
    """Problems held out, all different; none of them is a problem to train on with its terms in another order."""

    def __post_init__(self) -> None:
        SplitSizes.__post_init__(self)
        for name, value, least in (("terms", self.terms, 2), ("digits", self.digits, 1), ("operations", len(self.operations), 1)):
            expect_at_least(name, value, least)
        expect_at_least("largest", self.largest, 1)
        expect_range("worked_share", self.worked_share, 0.0, 1.0)
        expect_range("guessed_share", self.guessed_share, 0.0, 1.0)

    def _key(self, item: Expression) -> str:
        return item.key()

    def _problem(self, number: int, item: Expression) -> Problem:
        answer = item.steps()[-1].result
        worked = is_worked(str(item), self.worked_share, seed=self.seed)
        solution = item.worked() if worked else f"#{self._stated(item, answer)}"
        return Problem(prompt=f"{item}=", answer=str(answer), id=number, solution=solution)

    def _stated(self, expression: Expression, answer: int) -> int:
        """What the teacher says without working it out."""
        if self.guessed_share == 0.0:
            return answer
        generator = keyed_generator(self.seed, f"stated {expression}")
        if generator.random() >= self.guessed_share:
            return answer
        off = int(generator.integers(1, _FARTHEST + 1))
        # Upwards where the guess would otherwise be below 0.
        return answer + off if answer < off or generator.integers(2) else answer - off

    def _drawn(self) -> Iterator[Expression]:
        """Expressions without end, from one stream for all splits; those with forbidden results are left out."""
        generator = keyed_generator(self.seed, "arithmetic")
        low = 10 ** (self.digits - 1)
        while True:
            numbers: list[list[int]] = generator.integers(low, 10 * low, size=(_DRAWS, self.terms)).tolist()
            chosen: list[list[int]] = generator.integers(len(self.operations), size=(_DRAWS, self.terms - 1)).tolist()
            allowed = 0
            for row, picks in zip(numbers, chosen, strict=True):
                operations = tuple([self.operations[pick] for pick in picks])
                if self._allows(row, operations):
                    allowed += 1
                    yield Expression(tuple(row), operations)
            # After so many without one the search would most likely never end.
            if not allowed:
                wrong = [*([] if self.negative else ["below 0"]), *([] if self.largest is None else [f"above {self.largest}"])]
                found = f"no result on the way may be {' or '.join(wrong)}, found {_DRAWS} problems of which none fits"
                key = "negative" if self.largest is None else "largest"
                raise ConfigError(
                    f"arithmetic.{key}", found, "Allow more of them, or use fewer terms or digits, or other operations."
                )

    def _allows(self, numbers: list[int], operations: tuple[str, ...]) -> bool:
        low, high = -math.inf if self.negative else 0, math.inf if self.largest is None else self.largest
        if "*" in operations:
            return all(low <= step.result <= high for step in Expression(tuple(numbers), operations).steps())
        # From left to right, up to the first result that is not allowed: most of what is drawn has one.
        result = numbers[0]
        for operation, number in zip(operations, numbers[1:], strict=True):
            result = result + number if operation == "+" else result - number
            if not low <= result <= high:
                return False
        return True
