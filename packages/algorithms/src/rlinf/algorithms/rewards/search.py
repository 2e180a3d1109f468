"""Short answers to questions, as agents that search give them: exact match, F1 and containment after SQuAD's normal form."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from rlinf.algorithms.rewards.reward import PairReward
from rlinf.algorithms.rewards.text import last_tag, squad_normal
from rlinf.algorithms.shapes import expect_choice, expect_finite, expect_range

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
        """0 or 1."""
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
    """The score of a right answer."""
    format_score: float = 0.0
    """The score of a wrong answer in the right tags."""
    max_tags: int = 10
    """So many opening, or closing, answer tags are all right."""
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
