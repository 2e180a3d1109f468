"""Multiple choice: the letter that a completion settles on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rlinf.algorithms.checks import expect_finite
from rlinf.algorithms.rewards.composite import weighted
from rlinf.algorithms.rewards.format import AnswerFormat, ThinkFormat
from rlinf.algorithms.rewards.pool import VerifierPool
from rlinf.algorithms.rewards.reward import PairReward, Pairs, RuleReward
from rlinf.algorithms.rewards.scores import Scores
from rlinf.algorithms.rewards.text import last_boxed, last_tag
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError

LETTERS: Final = "ABCDEFGHIJ"
_WRAPPED: Final = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}")


def chosen_letter(completion: str, *, letters: str = LETTERS, tag: str = "answer") -> str | None:
    r"""The letter that a completion settles on, in upper case; None if it settles on none.

    Looked for in this order: the last `<tag>…</tag>`; the last `\boxed{…}`; the last "answer is X" or "answer: X"; the whole
    text. In the first, second and last a letter counts if it is all there is, or if it begins what is there and one of `. ) : ,`
    follows it ("B. Paris"); the last letter in parentheses or in bold does too.

    Args:
        completion: what the policy wrote.
        letters: the letters of the choices.
        tag: the tag of the answer; "" for none.
    """
    inner = last_tag(completion, tag) if tag else None
    if inner is not None:
        return _letter(inner, letters)
    boxed = last_boxed(completion)
    if boxed is not None:
        return _letter(_WRAPPED.sub(r"\1", boxed), letters)
    said = _patterns(letters)[0].findall(completion)
    return said[-1].upper() if said else _letter(completion, letters)


def _letter(text: str, letters: str) -> str | None:
    said, leading, marked = _patterns(letters)
    text = text.strip()
    found = leading.match(text)
    if found:
        return (found.group(1) or found.group(2)).upper()
    spoken = said.findall(text)
    if spoken:
        return spoken[-1].upper()
    marks: Sequence[tuple[str, str]] = marked.findall(text)
    return "".join(marks[-1]).upper() if marks else None


@lru_cache(maxsize=16)
def _patterns(letters: str) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    one = f"[{re.escape(letters.upper())}]"
    any_case = f"[{re.escape(letters.upper() + letters.lower())}]"
    # In a sentence only upper case counts, as "a" is a word; where the letter stands alone lower case does, too.
    said = re.compile(rf"(?i:\b(?:answer|choice|option)(?: is|:| is:)) {{0,3}}[*(\[]{{0,3}}({one})(?![A-Za-z0-9'])")
    alone = rf"[*(\[\"']{{0,3}}({any_case})[*)\]\"'.:]{{0,3}}\Z"
    leading = re.compile(rf"(?:{alone}|[*(\[]{{0,3}}({one})[*)\]]{{0,3}}[.):,\]](?:\s|\Z))")
    marked = re.compile(rf"\(({one})\)|\*\*({one})[.):]?\*\*")
    return said, leading, marked


@dataclass(frozen=True, slots=True)
class MultipleChoice(PairReward):
    """Whether a completion settles on the right letter, by name: `multiple_choice`."""

    letters: str = LETTERS
    """The letters that can be chosen; a completion that settles on any other has no answer."""
    tag: str = "answer"
    """The tag of the answer; "" for none."""
    correct: float = 1.0
    """The score of a completion that settles on the right letter."""
    incorrect: float = 0.0
    """The score of one that settles on another letter, or on none."""

    def __post_init__(self) -> None:
        if not self.letters.isalnum() or len(set(self.letters.upper())) < len(self.letters):
            raise ConfigError("letters", f"expected different letters or digits, found '{self.letters}'")
        expect_finite(correct=self.correct, incorrect=self.incorrect)

    @property
    def failure_score(self) -> float:
        """That of a wrong letter."""
        return self.incorrect

    def verify(self, completion: str, answer: str) -> float:
        """`correct` or `incorrect`.

        Raises:
            ValueError: there is no letter in `answer`.
        """
        right = chosen_letter(answer, letters=self.letters, tag=self.tag)
        if right is None:
            raise ValueError(f"no choice among {self.letters} in the answer '{answer:.100}'")
        return self.correct if chosen_letter(completion, letters=self.letters, tag=self.tag) == right else self.incorrect


@dataclass(frozen=True, slots=True)
class VQA(RuleReward):
    """Multiple choice about an image: the letter and the shape of the completion, by name: `vqa`. Each field is a weight."""

    qa_accuracy: float = 1.0
    """Of the right letter; see `MultipleChoice`."""
    think_format: float = 0.0
    """Of thoughts in tags; see `ThinkFormat`."""
    answer_format: float = 0.0
    """Of one answer in tags; see `AnswerFormat`."""

    def __post_init__(self) -> None:
        for name in ("qa_accuracy", "think_format", "answer_format"):
            expect_range(name, getattr(self, name), 0.0, float("inf"))
            expect_finite(**{name: getattr(self, name)})

    def score_pairs(self, pairs: Pairs, timeout_s: float | None, pool: VerifierPool | None) -> Scores:
        """The weighted sum of the three parts; each part's mean is a metric."""
        parts = {
            "qa_accuracy": (self.qa_accuracy, MultipleChoice()),
            "think_format": (self.think_format, ThinkFormat()),
            "answer_format": (self.answer_format, AnswerFormat()),
        }
        found = {name: (weight, part.score_pairs(pairs, timeout_s, pool)) for name, (weight, part) in parts.items()}
        return weighted(found)
