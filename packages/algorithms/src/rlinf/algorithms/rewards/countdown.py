"""Whether an expression makes a number of given numbers; expressions are read by a parser of four operations, never executed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, cast

from rlinf.algorithms.checks import expect_finite
from rlinf.algorithms.rewards.reward import PairReward
from rlinf.algorithms.rewards.text import after_last, last_tag
from rlinf.core.config import expect_at_least

_TOKEN: Final = re.compile(r"\s*(?:(\d+)|([-+*/()]))")
_SIGNS: Final = str.maketrans({"×": "*", "÷": "/", "−": "-"})


@dataclass(frozen=True, slots=True)
class Countdown(PairReward):
    """Whether a completion's expression uses each number exactly once and comes to the target, by name: `countdown`.

    As in Pan et al., "TinyZero" (2025). The answer is JSON: `{"numbers": [3, 7, 5], "target": 20}`. Of an expression with a sign
    of equality the part before it counts, so that `(7-3)*5=20` is read as `(7-3)*5`.
    """

    tag: str = ""
    """The expression stands in the last `<tag>…</tag>`; "" where the whole completion is one."""
    after: str = ""
    """Only what follows the last of these counts, such as `</think>`; "" for no such mark."""
    correct: float = 1.0
    """The score of an expression that comes to the target."""
    other_value: float = 0.0
    """The score of one that uses the numbers as it should and comes to something else."""
    incorrect: float = 0.0
    """The score of anything else: no expression, or one that uses other numbers."""
    longest: int = 200
    """Characters beyond which an expression is not read."""

    def __post_init__(self) -> None:
        expect_at_least("longest", self.longest, 1)
        expect_finite(correct=self.correct, other_value=self.other_value, incorrect=self.incorrect)

    @property
    def failure_score(self) -> float:
        """That of anything that is no expression."""
        return self.incorrect

    def verify(self, completion: str, answer: str) -> float:
        """`correct`, `other_value` or `incorrect`.

        Raises:
            ValueError: the answer is not what it should be.
        """
        numbers, target = _puzzle(answer)
        text = after_last(completion, self.after)
        found = last_tag(text, self.tag) if self.tag else text
        read = None if found is None else evaluate(found.partition("=")[0], longest=self.longest)
        if read is None or sorted(read[1]) != sorted(numbers):
            return self.incorrect
        return self.correct if read[0] == target else self.other_value


def evaluate(text: str, *, longest: int = 200) -> tuple[Fraction, list[int]] | None:
    """The exact value of an expression of whole numbers, `+ - * / ( )`, and the numbers that it uses.

    Returns:
        None if it is longer than `longest` characters, something else stands in it, or a divisor is 0.
    """
    # Exact fractions grow with every operation, and the parser recurs: both are bounded by the length.
    tokens = _tokens(text) if len(text) <= longest else None
    if not tokens:
        return None
    try:
        value, rest = _sum(tokens)
    except (_Malformed, ZeroDivisionError):
        return None
    return None if rest else (value, [int(token) for token in tokens if token.isdigit()])


class _Malformed(Exception):
    """What stands here is no expression."""


def _tokens(text: str) -> list[str] | None:
    text, found, at = text.translate(_SIGNS).strip(), list[str](), 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        # `\d` takes digits of other scripts, too.
        if token is None or not token[0].isascii():
            return None
        found.append(token[1] or token[2])
        at = token.end()
    return found


def _sum(tokens: Sequence[str]) -> tuple[Fraction, Sequence[str]]:
    value, tokens = _product(tokens)
    while tokens and tokens[0] in "+-":
        operation = tokens[0]
        other, tokens = _product(tokens[1:])
        value = value + other if operation == "+" else value - other
    return value, tokens


def _product(tokens: Sequence[str]) -> tuple[Fraction, Sequence[str]]:
    value, tokens = _factor(tokens)
    while tokens and tokens[0] in "*/":
        operation = tokens[0]
        other, tokens = _factor(tokens[1:])
        value = value * other if operation == "*" else value / other
    return value, tokens


def _factor(tokens: Sequence[str]) -> tuple[Fraction, Sequence[str]]:
    if tokens and tokens[0].isdigit():
        return Fraction(int(tokens[0])), tokens[1:]
    if not tokens or tokens[0] != "(":
        raise _Malformed
    value, rest = _sum(tokens[1:])
    if not rest or rest[0] != ")":
        raise _Malformed
    return value, rest[1:]


def _puzzle(answer: str) -> tuple[list[int], int]:
    """Numbers and target of an answer."""
    read: object = json.loads(answer)
    if isinstance(read, dict):
        puzzle = cast("dict[str, Any]", read)
        numbers, target = puzzle.get("numbers"), puzzle.get("target")
        found: list[Any] = [*cast("list[Any]", numbers), target] if isinstance(numbers, list) else [None]
        if all(map(_whole, found)):
            return [int(number) for number in found[:-1]], int(found[-1])
    raise ValueError(f"expected JSON of 'numbers' and 'target', whole numbers, found {answer!r}")


def _whole(value: object) -> bool:
    """Whether JSON calls it an integer, which `3.0` is and `true` is not."""
    return type(value) is int or (isinstance(value, float) and value.is_integer())
