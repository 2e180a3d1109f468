"""Small functions to write, of which an example says what the description leaves open: `f(a,b)=a*b?;f(47,83)=3948:`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rlinf.core.errors import ConfigError
from rlinf.core.problems import Problem, Split, WorkedTurn
from rlinf.core.random import keyed_generator, keyed_seed
from rlinf.core.tool_calls import ToolCall, ToolResult
from rlinf.envs.tasks.splits import check_sizes, distinct

_DRAWS: Final = 4096
_PARTS: Final = 1 << 20
_FORMS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "a*b": lambda a, b: a * b,
    "a*a": lambda a, _: a * a,
    "b*b": lambda _, b: b * b,
}
_ENDINGS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+a": lambda a, _: a,
    "+b": lambda _, b: b,
    "-a": lambda a, _: -a,
    "-b": lambda _, b: -b,
}


@dataclass(frozen=True, slots=True)
class Specification:
    """What a function shall do, and one example."""

    form: str
    """What is said of it."""
    ending: str
    """What only the example says."""
    a: int
    b: int

    def __str__(self) -> str:
        return f"f(a,b)={self.form}?;f({self.a},{self.b})={self.value(self.a, self.b)}:"

    @property
    def key(self) -> str:
        """What is asked, but for its answer."""
        return f"{self.form} {self.a} {self.b}"

    def value(self, a: int, b: int) -> int:
        """What the function returns."""
        return _FORMS[self.form](a, b) + _ENDINGS[self.ending](a, b)

    def program(self, ending: str | None = None) -> str:
        """The function with this ending; None is the right one."""
        return f"def f(a,b):return {self.form}{ending or self.ending}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Generated specifications of functions of two numbers, by name: `data.type: programs`.

    `f(a,b)=a*b?;f(47,83)=3948:` leaves open whether a or b is added or taken away; the example says it, to whom can multiply. The
    answer is a program in a fenced block within `<answer>` tags; the problem's answer holds test cases for the reward `code`.

    A share of the worked examples runs one reading after the other with the tool until one prints what it should, in any order; the
    others state the right program at once, as somebody does who can work it out in his head.
    """

    digits: int = 2
    """Digits of the example's numbers, of which the first is not 0."""
    cases: int = 5
    """Test cases of each problem, none of which is the example; the first has two equal numbers, with which readings agree."""
    worked_share: float = 0.35
    """The share of problems whose worked example runs its programs before it answers."""
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
        answer = WorkedTurn(text=f"<answer>\n```python\n{asked.program()}\n```\n</answer>")
        turns = (*self._attempts(asked), answer) if worked else (answer,)
        row = {"form": asked.form, "ending": asked.ending}
        return Problem(prompt=str(asked), answer=self._cases(asked), id=number, turns=turns, row=row)

    def _attempts(self, asked: Specification) -> Iterator[WorkedTurn]:
        """One reading after the other, up to the one that prints what it should."""
        order: list[str] = keyed_generator(self.seed, f"order {asked}").permutation(list(_ENDINGS)).tolist()
        for ending in order[: order.index(asked.ending) + 1]:
            code = f"{asked.program(ending)}\nprint(f({asked.a},{asked.b}))"
            printed = str(_FORMS[asked.form](asked.a, asked.b) + _ENDINGS[ending](asked.a, asked.b))
            calls = (ToolCall(name=self.tool, arguments={"code": code}),)
            yield WorkedTurn(calls=calls, results=(ToolResult(text=printed, name=self.tool),))

    def _cases(self, asked: Specification) -> str:
        generator = keyed_generator(self.seed, f"cases {asked}")
        pairs: list[tuple[int, int]] = [(a := int(generator.integers(2, 100)), a)]
        while len(pairs) < self.cases:
            a, b = (int(value) for value in generator.integers(2, 1000, size=2))
            if a != b and (a, b) != (asked.a, asked.b):
                pairs.append((a, b))
        return json.dumps([f"assert f({a},{b}) == {asked.value(a, b)}" for a, b in pairs])

    def _drawn(self) -> Iterator[Specification]:
        """Specifications without end, from one stream for all splits; the readings of each differ in its example."""
        generator = keyed_generator(self.seed, "programs")
        low, forms, endings = 10 ** (self.digits - 1), list(_FORMS), list(_ENDINGS)
        while True:
            numbers: list[list[int]] = generator.integers(low, 10 * low, size=(_DRAWS, 2)).tolist()
            chosen: list[list[int]] = generator.integers((len(forms), len(endings)), size=(_DRAWS, 2)).tolist()
            for (a, b), (form, ending) in zip(numbers, chosen, strict=True):
                if a != b:
                    yield Specification(forms[form], endings[ending], a, b)


def _key(asked: Specification) -> str:
    return asked.key
