"""Small functions to write, of which an example says what the description leaves open: `f(x)=x*83+?;f(47)=3960:`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.language.problems import Problem, WorkedTurn
from rlinf.core.random import keyed_generator
from rlinf.envs.tasks.generated import GeneratedTask, SplitSizes, called
from rlinf.envs.tasks.splits import is_worked

_DRAWS: Final = 4096
_ARGUMENTS: Final = np.arange(1, 1000)


@dataclass(frozen=True, slots=True)
class Specification:
    """What a function shall do, and one example."""

    factor: int
    """What is said of it."""
    constant: int
    """What only the example says."""
    x: int
    """The example's argument."""

    def __str__(self) -> str:
        return f"f(x)=x*{self.factor}+?;f({self.x})={self.value(self.x)}:"

    @property
    def program(self) -> str:
        """The function."""
        return f"def f(x):return x*{self.factor}+{self.constant}"

    @property
    def trial(self) -> str:
        """A program that prints what the description leaves open."""
        return f"print({self.value(self.x)}-{self.x}*{self.factor})"

    def value(self, x: int) -> int:
        """What the function returns."""
        return x * self.factor + self.constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs(GeneratedTask[Specification]):
    """Generated specifications of functions, by name: `data.type: programs`.

    `f(x)=x*83+?;f(47)=3960:` leaves a constant open; the example tells it to whom can work out 3960 − 47 · 83. The answer is a
    program in a fenced block within `<answer>` tags; the problem's answer holds test cases for the reward `code`.

    A share of the worked examples has a program work the constant out before it writes the function; the others write the right
    function at once, as somebody does who can work it out in his head.
    """

    place: ClassVar[str] = "programs"
    digits: int = 2
    """Digits of the factor, the constant and the example's argument, of which the first is not 0."""
    cases: int = 5
    """Test cases of each problem, none of which is the example; the first asks for f(0), which tells the constant alone."""
    worked_share: float = 0.35
    """The share of problems whose worked example runs a program before it answers."""
    tool: str = "python"
    """The name of the tool in worked examples; it takes an argument `code`."""
    train: int = 10_000
    validation: int = 512

    def __post_init__(self) -> None:
        SplitSizes.__post_init__(self)
        for name, value in (("digits", self.digits), ("cases", self.cases)):
            expect_at_least(name, value, 1)
        expect_range("worked_share", self.worked_share, 0.0, 1.0)

    def _key(self, item: Specification) -> str:
        """What the example is of: nobody is asked it in both splits."""
        return f"{item.factor} {item.x}"

    def _problem(self, number: int, item: Specification) -> Problem:
        answer = WorkedTurn(text=f"<answer>\n```python\n{item.program}\n```\n</answer>")
        trial = called(self.tool, {"code": item.trial}, str(item.constant))
        row = {"factor": item.factor, "constant": item.constant}
        turns = (trial, answer) if is_worked(str(item), self.worked_share, seed=self.seed) else (answer,)
        return Problem(prompt=str(item), answer=self._cases(item), id=number, turns=turns, row=row)

    def _cases(self, asked: Specification) -> str:
        # By what is asked and not by its number: a split of another size has the same cases.
        generator = keyed_generator(self.seed, f"cases {asked}")
        # One more than are asked for, as the example's argument may be among them.
        others: list[int] = [x for x in generator.permutation(_ARGUMENTS)[: self.cases].tolist() if x != asked.x]
        return json.dumps([f"assert f({x}) == {asked.value(x)}" for x in (0, *others[: self.cases - 1])])

    def _drawn(self) -> Iterator[Specification]:
        """Specifications without end, from one stream for all splits."""
        generator = keyed_generator(self.seed, "programs")
        low = 10 ** (self.digits - 1)
        while True:
            numbers: list[list[int]] = generator.integers(low, 10 * low, size=(_DRAWS, 3)).tolist()
            for factor, constant, x in numbers:
                yield Specification(factor, constant, x)
