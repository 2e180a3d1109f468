"""Small functions to write, of which an example says what the description leaves open: `f(x)=x*83+?;f(47)=3960:`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rlinf.core.errors import ConfigError
from rlinf.core.problems import Problem, Split, WorkedTurn
from rlinf.core.random import keyed_generator, keyed_seed
from rlinf.core.tool_calls import ToolCall, ToolResult
from rlinf.envs.tasks.splits import check_sizes, distinct

_DRAWS: Final = 4096
_PARTS: Final = 1 << 20


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
class Programs:
    """Generated specifications of functions, by name: `data.type: programs`.

    `f(x)=x*83+?;f(47)=3960:` leaves a constant open; the example tells it to whom can work out 3960 − 47 · 83. The answer is a
    program in a fenced block within `<answer>` tags; the problem's answer holds test cases for the reward `code`.

    A share of the worked examples has a program work the constant out before it writes the function; the others write the right
    function at once, as somebody does who can work it out in his head.
    """

    digits: int = 2
    """Digits of the factor, the constant and the example's argument, of which the first is not 0."""
    cases: int = 5
    """Test cases of each problem, none of which is the example; the first asks for f(0), which tells the constant alone."""
    worked_share: float = 0.35
    """The share of problems whose worked example runs a program before it answers."""
    tool: str = "python"
    """The name of the tool in worked examples; it takes an argument `code`."""
    train: int = 10_000
    """Problems to train on, all different."""
    validation: int = 512
    """Problems held out, all different; none of them is a problem to train on."""
    validation_share: float = 0.1
    """The share of all there could be from which those held out are taken."""
    seed: int = 0
    """Decides the problems, their splits, their test cases and their worked examples."""

    def __post_init__(self) -> None:
        check_sizes(self.train, self.validation, self.validation_share)
        for name, value in (("digits", self.digits), ("cases", self.cases)):
            if value < 1:
                raise ConfigError(name, f"expected at least 1, found {value}")
        if not 0 <= self.worked_share <= 1:
            raise ConfigError("worked_share", f"expected a share from 0 to 1, found {self.worked_share:g}")

    def check(self, place: str) -> None:
        """Nothing has to be installed."""

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split.

        Raises:
            ConfigError: there are not so many different ones.
        """
        count = self.train if split == "train" else self.validation
        share, place = self.validation_share, "programs"
        found = distinct(self._drawn(), _key, split, count, seed=self.seed, validation_share=share, place=place)
        return [self._problem(number, specification) for number, specification in enumerate(found)]

    def _problem(self, number: int, asked: Specification) -> Problem:
        # By the specification alone, so that its example stays the same whatever else is drawn.
        worked = keyed_seed(self.seed, f"worked {asked}") % _PARTS < self.worked_share * _PARTS
        answer = WorkedTurn(text=f"<answer>\n```python\n{asked.program}\n```\n</answer>")
        call = ToolCall(name=self.tool, arguments={"code": asked.trial})
        trial = WorkedTurn(calls=(call,), results=(ToolResult(text=str(asked.constant), name=self.tool),))
        row = {"factor": asked.factor, "constant": asked.constant}
        turns = (trial, answer) if worked else (answer,)
        return Problem(prompt=str(asked), answer=self._cases(asked), id=number, turns=turns, row=row)

    def _cases(self, asked: Specification) -> str:
        generator = keyed_generator(self.seed, f"cases {asked}")
        others = [int(x) for x in generator.permutation(range(1, 1000)) if x != asked.x]
        return json.dumps([f"assert f({x}) == {asked.value(x)}" for x in (0, *others[: self.cases - 1])])

    def _drawn(self) -> Iterator[Specification]:
        """Specifications without end, from one stream for all splits."""
        generator = keyed_generator(self.seed, "programs")
        low = 10 ** (self.digits - 1)
        while True:
            numbers: list[list[int]] = generator.integers(low, 10 * low, size=(_DRAWS, 3)).tolist()
            for factor, constant, x in numbers:
                yield Specification(factor, constant, x)


def _key(asked: Specification) -> str:
    """What the example is of: nobody is asked it in both splits."""
    return f"{asked.factor} {asked.x}"
