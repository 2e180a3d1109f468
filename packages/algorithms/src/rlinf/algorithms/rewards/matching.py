"""Answers that are right when they read the same: exactly, by containment, by shared words, or by the items of a table."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from rlinf.algorithms.checks import expect_choice, expect_finite
from rlinf.algorithms.rewards.reward import PairReward
from rlinf.algorithms.rewards.text import after_last, last_boxed, last_number, last_tag, number_of, squad_normal
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError

Extraction = Literal["all", "boxed", "tag", "hashes", "number"]
_NUMBERS: Final = ("hashes", "number")
"""Extractions that find numbers alone."""
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_RULE: Final = re.compile(r"[-:\s]*")
"""What the cells of the line below a head of a Markdown table hold."""


@dataclass(frozen=True, slots=True)
class ExactMatch(PairReward):
    """Whether what a completion answers reads the same as the right answer, by name: `exact_match`.

    Both sides are stripped and normalised alike; only the completion is searched for its answer. Where that is a number, so is the
    right answer: `4.0` is `4`, and `1,000` is `1000`.
    """

    extraction: Extraction = "all"
    r"""What of a completion is its answer: all of it, the last `\boxed{…}`, the last `<tag>…</tag>`, what follows the last `####`
    on its line (GSM8K; commas between digits go), or the last number."""
    tag: str = "answer"
    """The name of the tag that encloses the answer where `extraction` is "tag"; not looked at otherwise."""
    after: str = ""
    """Only what follows the last of these counts, such as `</think>`; "" for no such mark."""
    ignore_case: bool = False
    """Whether upper and lower case are the same."""
    ignore_punctuation: bool = False
    """Whether ASCII punctuation is left out."""
    ignore_whitespace: bool = True
    """Whether any run of white space is the same as one space."""
    correct: float = 1.0
    """The score of a completion whose answer is the right one."""
    incorrect: float = 0.0
    """The score of a wrong answer, or of none."""

    def __post_init__(self) -> None:
        expect_choice("extraction", self.extraction, get_args(Extraction))
        expect_finite(correct=self.correct, incorrect=self.incorrect)

    @property
    def failure_score(self) -> float:
        """That of a wrong answer."""
        return self.incorrect

    def verify(self, completion: str, answer: str) -> float:
        found = self._extracted(after_last(completion, self.after))
        if found is None:
            return self.incorrect
        right = number_of(answer) if self.extraction in _NUMBERS else None
        same = self._normal(found) == self._normal(answer) if right is None else number_of(found) == right
        return self.correct if same else self.incorrect

    def _extracted(self, text: str) -> str | None:
        if self.extraction == "boxed":
            return last_boxed(text)
        if self.extraction == "tag":
            return last_tag(text, self.tag)
        if self.extraction == "hashes":
            # GSM8K puts the answer behind the last mark, on the same line.
            _, mark, tail = text.rpartition("####")
            return last_number(tail.partition("\n")[0]) if mark else None
        return last_number(text) if self.extraction == "number" else text

    def _normal(self, text: str) -> str:
        text = text.casefold() if self.ignore_case else text
        text = text.translate(_PUNCTUATION) if self.ignore_punctuation else text
        return " ".join(text.split()) if self.ignore_whitespace else text.strip()


Answers = Literal["text", "json"]


def exact_match_score(prediction: str, answers: Sequence[str]) -> float:
    """Exact match.

    EM = 1 if norm(prediction) = norm(answer) for any answer, else 0

    Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), §6.1, arXiv:1606.05250.

    Args:
        prediction: a short answer.
        answers: the right answers, of which one is enough.

    Returns:
        0 or 1; 0 without any answers.
    """
    found = squad_normal(prediction)
    return float(any(found == squad_normal(answer) for answer in answers))


def substring_match_score(prediction: str, answers: Sequence[str]) -> float:
    """Containment: 1 if any normalised answer that isn't empty is part of the normalised prediction, else 0.

    Args:
        prediction: an answer, perhaps in a sentence.
        answers: the right answers, of which one is enough.

    Returns:
        0 or 1; 0 without any answers.
    """
    found = squad_normal(prediction)
    return float(any(right in found for answer in answers if (right := squad_normal(answer))))


def f1_score(prediction: str, answers: Sequence[str]) -> float:
    """The F1 of words, of the best answer.

    F1 = 2 P R / (P + R),   P = shared / words of the prediction,   R = shared / words of the answer

    where `shared` counts a word as often as both have it. Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine
    Comprehension of Text" (2016), §6.1, arXiv:1606.05250. Where a text has no words left, both must have none: then it is 1.

    Args:
        prediction: a short answer.
        answers: the right answers, of which the best counts.

    Returns:
        A number in [0, 1]; 0 without any answers.
    """
    return max((_f1(squad_normal(prediction).split(), squad_normal(answer).split()) for answer in answers), default=0.0)


def _f1(found: list[str], right: list[str]) -> float:
    if not found or not right:
        return float(found == right)
    shared = sum((Counter(found) & Counter(right)).values())
    return 2 * shared / (len(found) + len(right))


@dataclass(frozen=True, slots=True)
class _Search(PairReward):
    tag: str = "answer"
    """The last `<tag>…</tag>` of a completion is its answer; "" takes the whole completion."""
    answers: Answers = "text"
    """Whether the right answer is the text itself, or a JSON list of texts of which one is enough."""

    def __post_init__(self) -> None:
        expect_choice("answers", self.answers, get_args(Answers))

    def prediction(self, completion: str) -> str | None:
        """The answer that a completion gives; None if it gives none."""
        return last_tag(completion, self.tag) if self.tag else completion

    def right(self, answer: str) -> list[str]:
        """The right answers."""
        if self.answers == "text":
            return [answer]
        found: Any = json.loads(answer)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in cast("list[Any]", found)):
            raise ValueError(f"expected a JSON list of texts, found {answer:.100}")
        return cast("list[str]", found)


@dataclass(frozen=True, slots=True)
class SearchEM(_Search):
    """Exact match of the last answer, by name: `search_em`. A completion without an answer has 0."""

    substring: bool = False
    """Whether it is enough that the prediction contains the right answer."""

    def verify(self, completion: str, answer: str) -> float:
        right, found = self.right(answer), self.prediction(completion)
        if found is None:
            return 0.0
        return substring_match_score(found, right) if self.substring else exact_match_score(found, right)


@dataclass(frozen=True, slots=True)
class SearchF1(_Search):
    """The F1 of the words of the last answer, by name: `search_f1`. A completion without an answer has 0."""

    def verify(self, completion: str, answer: str) -> float:
        """A number in [0, 1]."""
        right, found = self.right(answer), self.prediction(completion)
        return 0.0 if found is None else f1_score(found, right)


@dataclass(frozen=True, slots=True)
class SearchR1(_Search):
    """Exact match that discourages a shower of answers, by name: `searchr1`.

    Jin et al., "Search-R1: Training LLMs to Reason and Leverage Search Engines with Reinforcement Learning" (2025), eq. 4,
    arXiv:2503.09516; a completion with more than `max_tags` opening or closing answer tags has its score divided.
    """

    correct: float = 1.0
    """The score of a completion whose answer is the right one."""
    format_score: float = 0.0
    """The score of a wrong answer in the right tags."""
    max_tags: int = 10
    """How many opening, or closing, answer tags are allowed."""
    divisor: float = 4.0
    """What a right answer is divided by where there are more."""
    substring: bool = False
    """Whether it is enough that the prediction contains the right answer."""

    def __post_init__(self) -> None:
        _Search.__post_init__(self)
        expect_range("max_tags", self.max_tags, 1, float("inf"))
        expect_finite(correct=self.correct, format_score=self.format_score)
        expect_range("divisor", self.divisor, 1.0, float("inf"))

    def verify(self, completion: str, answer: str) -> float:
        """0 without an answer, `format_score` if it is wrong, else `correct`, divided where there are too many tags."""
        right, found = self.right(answer), self.prediction(completion)
        if found is None:
            return 0.0
        matched = substring_match_score(found, right) if self.substring else exact_match_score(found, right)
        if not matched:
            return self.format_score
        tags = max(completion.count(f"<{self.tag}>"), completion.count(f"</{self.tag}>"))
        return self.correct / self.divisor if tags > self.max_tags else self.correct


Item = tuple[str, int, str]


def item_f1(prediction: str, answer: str, *, separator: str = ",") -> float:
    """The F1 of the items of a table.

    F1 = 2 |P ∩ A| / (|P| + |A|)

    An item is a cell with the name of its row and the number of its column. The first cell of a line is the row's name, which is no
    item of its own; rows may come in any order. A line that comes twice has its items twice, so that saying everything that could
    be right earns nothing. Item-F1 of Wong et al., "WideSearch: Benchmarking Agentic Broad Info-Seeking" (2025), arXiv:2508.07999,
    where a language model judges whether two cells say the same; here they are compared in lower case without outer spaces.

    Args:
        prediction: one row in each line.
        answer: the right table, laid out likewise.
        separator: between the cells of a line; "|" reads Markdown, too.

    Returns:
        A number in [0, 1]; 0 where one of the two tables has no item, 1 where neither has.
    """
    found, right = (Counter(_items(text, separator)) for text in (prediction, answer))
    if not found or not right:
        return float(found == right)
    return 2 * (found & right).total() / (found.total() + right.total())


def _items(text: str, separator: str) -> Iterator[Item]:
    for line in text.splitlines():
        row = line.strip()
        if separator == "|":
            row = row.removeprefix("|").removesuffix("|")
        name, *cells = (cell.strip().casefold() for cell in row.split(separator))
        if separator == "|" and all(_RULE.fullmatch(cell) for cell in (name, *cells)):
            continue
        yield from ((name, column, cell) for column, cell in enumerate(cells))


@dataclass(frozen=True, slots=True)
class ItemF1(PairReward):
    """The F1 of the items of a table, by name: `item_f1`. See the function `item_f1`."""

    separator: str = ","
    """Between the cells of a line; "|" reads Markdown, too."""
    after: str = ""
    """Only what follows the last of these counts, such as `</think>`; "" for no such mark."""

    def __post_init__(self) -> None:
        if not self.separator.strip():
            raise ConfigError("separator", f"expected a text between cells, found {self.separator!r}", "Use ',' or '|'.")

    def verify(self, completion: str, answer: str) -> float:
        """A number in [0, 1]."""
        return item_f1(after_last(completion, self.after), answer, separator=self.separator)
