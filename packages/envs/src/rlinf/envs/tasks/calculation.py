"""Operations on large numbers, one after the other, for an agent with a calculator: `47*8;-95;*3=` is ((47 · 8) − 95) · 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem, WorkedTurn
from rlinf.core.random import keyed_generator
from rlinf.envs.tasks.generated import GeneratedTask, SplitSizes, called
from rlinf.envs.tasks.splits import is_worked

Operation = Literal["+", "-", "*"]
_DRAWS = 4096


@dataclass(frozen=True, slots=True)
class Chain:
    """A number and what is done to it, from left to right, without precedence."""

    first: int
    steps: tuple[tuple[str, int], ...]
    """Operation and number, at least one."""

    def __str__(self) -> str:
        return f"{self.first}" + ";".join(f"{operation}{number}" for operation, number in self.steps)

    def results(self) -> list[int]:
        """What each step comes to."""
        found: list[int] = []
        value = self.first
        for operation, number in self.steps:
            value = value + number if operation == "+" else value - number if operation == "-" else value * number
            found.append(value)
        return found

    def expressions(self) -> list[str]:
        """What a calculator is asked, step by step."""
        before = [self.first, *self.results()[:-1]]
        return [f"{value}{operation}{number}" for value, (operation, number) in zip(before, self.steps, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculation(GeneratedTask[Chain]):
    """Generated chains of operations, by name: `data.type: calculation`.

    A share of the worked examples asks a calculator step by step, each step with the result of the one before; the others state
    the answer at once, as somebody does who can work it out in his head. A small model can't: if it imitates both, it calls the
    calculator now and then, and has to find out by itself that it pays. The answer follows a `#` (the reward `exact_match` with
    `after: "#"`).
    """

    place: ClassVar[str] = "calculation"
    operations: tuple[Operation, ...] = ("+", "-", "*")
    """Those that occur, each equally often."""
    steps: int = 3
    """Operations in a problem, at least 1."""
    digits: int = 2
    """Digits of each number, of which the first is not 0."""
    largest: int = 9999
    """No result on the way is larger; none is below 0."""
    worked_share: float = 0.35
    """The share of problems whose worked example calls the calculator."""
    tool: str = "calculator"
    """The name of the calculator in worked examples; it takes an argument `expression`."""
    train: int = 20_000
    validation: int = 512

    def __post_init__(self) -> None:
        SplitSizes.__post_init__(self)
        for name, value in (("steps", self.steps), ("digits", self.digits), ("operations", len(self.operations))):
            expect_at_least(name, value, 1)
        expect_at_least("largest", self.largest, 1)
        expect_range("worked_share", self.worked_share, 0.0, 1.0)

    def _problem(self, number: int, item: Chain) -> Problem:
        answer = str(item.results()[-1])
        worked = is_worked(str(item), self.worked_share, seed=self.seed)
        calls = zip(item.expressions(), item.results(), strict=True) if worked else ()
        turns = [called(self.tool, {"expression": expression}, str(result)) for expression, result in calls]
        return Problem(prompt=f"{item}=", answer=answer, id=number, turns=(*turns, WorkedTurn(text=f"#{answer}")))

    def _drawn(self) -> Iterator[Chain]:
        """Chains without end, from one stream for all splits; those with forbidden results are left out."""
        generator = keyed_generator(self.seed, "calculation")
        low = 10 ** (self.digits - 1)
        while True:
            numbers: list[list[int]] = generator.integers(low, 10 * low, size=(_DRAWS, self.steps + 1)).tolist()
            chosen: list[list[int]] = generator.integers(len(self.operations), size=(_DRAWS, self.steps)).tolist()
            allowed = 0
            for row, picks in zip(numbers, chosen, strict=True):
                operations = (self.operations[pick] for pick in picks)
                chain = Chain(row[0], tuple(zip(operations, row[1:], strict=True)))
                if all(0 <= result <= self.largest for result in chain.results()):
                    allowed += 1
                    yield chain
            # After so many without one the search would most likely never end.
            if not allowed:
                found = f"no result on the way may be below 0 or above {self.largest}, found {_DRAWS} problems of which none fits"
                raise ConfigError("calculation.largest", found, "Raise it, use fewer steps or digits, or other operations.")
