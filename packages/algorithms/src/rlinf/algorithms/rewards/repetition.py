"""A penalty for saying the same again."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.algorithms.rewards.reward import PairReward
from rlinf.algorithms.shapes import expect_finite, expect_range


def repetition(text: str, *, ngram: int) -> float:
    """The share of n-grams of words that were there before.

    ρ = 1 − |set of n-grams| / |list of n-grams|

    Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs" (2025), appendix C, arXiv:2502.03373. Words are what white
    space parts, in lower case.

    Args:
        text: what the policy wrote.
        ngram: n ≥ 1.

    Returns:
        A number in [0, 1); 0 for a text of fewer than n words.

    Raises:
        ConfigError: n is less than 1.
    """
    expect_range("repetition(ngram)", ngram, 1, float("inf"))
    words = text.lower().split()
    grams = list(zip(*(words[start:] for start in range(ngram)), strict=False))
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


@dataclass(frozen=True, slots=True)
class Repetition(PairReward):
    """A penalty for repeated n-grams, by name: `repetition`. The answer is not looked at."""

    ngram: int = 3
    """n, in words."""
    max_penalty: float = -1.0
    """The penalty ≤ 0 that a text of nothing but repetition comes near."""

    def __post_init__(self) -> None:
        expect_range("ngram", self.ngram, 1, float("inf"))
        expect_range("max_penalty", self.max_penalty, float("-inf"), 0.0)
        expect_finite(max_penalty=self.max_penalty)

    def verify(self, completion: str, answer: str) -> float:
        """The penalty, between `max_penalty` and 0."""
        return self.max_penalty * repetition(completion, ngram=self.ngram)
