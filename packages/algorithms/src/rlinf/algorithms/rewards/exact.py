"""The answer is right when it reads the same."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final, Literal, get_args

from rlinf.algorithms.rewards.reward import PairReward
from rlinf.algorithms.rewards.text import after_last, last_boxed, last_number, last_tag
from rlinf.algorithms.shapes import expect_choice, expect_finite

Extraction = Literal["all", "boxed", "tag", "hashes", "number"]
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class ExactMatch(PairReward):
    """Whether what a completion answers reads the same as the right answer, by name: `exact_match`.

    Both sides are stripped and normalised alike; only the completion is searched for its answer.
    """

    extraction: Extraction = "all"
    r"""What of a completion is its answer: all of it, the last `\boxed{…}`, the last `<tag>…</tag>`, what follows the last `####`
    on its line (GSM8K; commas between digits go), or the last number."""
    tag: str = "answer"
    """The tag of "tag"."""
    after: str = ""
    """Only what follows the last of these counts, such as `</think>`; "" for no such mark."""
    ignore_case: bool = False
    """Whether upper and lower case are the same."""
    ignore_punctuation: bool = False
    """Whether ASCII punctuation is left out."""
    ignore_whitespace: bool = True
    """Whether any run of white space is the same as one space."""
    correct: float = 1.0
    """The score of a right answer."""
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
        """`correct` or `incorrect`."""
        found = self._extracted(after_last(completion, self.after))
        if found is None:
            return self.incorrect
        return self.correct if self._normal(found) == self._normal(answer) else self.incorrect

    def _extracted(self, text: str) -> str | None:
        if self.extraction == "boxed":
            return last_boxed(text)
        if self.extraction == "tag":
            return last_tag(text, self.tag)
        if self.extraction == "hashes":
            _, mark, tail = text.rpartition("####")
            return last_number(tail.partition("\n")[0]) if mark else None
        return last_number(text) if self.extraction == "number" else text

    def _normal(self, text: str) -> str:
        text = text.casefold() if self.ignore_case else text
        text = text.translate(_PUNCTUATION) if self.ignore_punctuation else text
        return " ".join(text.split()) if self.ignore_whitespace else text.strip()
