"""Penalties for completions that are too long, or that say the same again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlinf.algorithms.checks import expect_choice, expect_finite
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.rewards.reward import PairReward
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def overlong_penalty(length: Tensor, *, max_length: int, cache: int) -> Tensor:
    """Soft overlong punishment.

    R(y) = 0 if |y| ≤ L_max − L_cache,   ((L_max − L_cache) − |y|) / L_cache if |y| ≤ L_max,   −1 beyond

    Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (2025), eq. 13, arXiv:2503.14476.

    Args:
        length: any shape, the length of each completion, in tokens.
        max_length: L_max, the length from where on the whole penalty is due.
        cache: L_cache in [1, L_max], over how many of the last tokens the penalty grows.

    Returns:
        The penalty in [−1, 0], of the same shape; float64 for float64 lengths, else float32.

    Raises:
        ConfigError: `cache` is outside [1, `max_length`].
    """
    _check(max_length, cache)
    # In float64: lengths beyond 2²⁴ are not exact in float32.
    exact = length.to(torch.float64)
    over = exact - (max_length - cache)
    return (-over / cache).clamp(-1.0, 0.0).to(torch.float64 if length.dtype == torch.float64 else torch.float32)


def _check(max_length: int, cache: int) -> None:
    expect_range("max_length", max_length, 1, float("inf"))
    if not 1 <= cache <= max_length:
        raise ConfigError("cache", f"expected a value in [1, max_length = {max_length}], found {cache}")


@dataclass(frozen=True, slots=True)
class Overlong(PairReward):
    """Soft overlong punishment of texts, by name: `overlong`. The answer is not looked at.

    Who holds tokens calls `overlong_penalty` with their number.
    """

    max_length: int
    """From where on the whole penalty is due, in `unit`."""
    cache: int
    """Over how much of the last length the penalty grows, in `unit`."""
    unit: Literal["characters", "words"] = "words"
    """What length counts; words are what white space parts."""

    def __post_init__(self) -> None:
        _check(self.max_length, self.cache)
        expect_choice("unit", self.unit, ("characters", "words"))

    def verify(self, completion: str, answer: str) -> float:
        """The penalty in [−1, 0]."""
        length = len(completion) if self.unit == "characters" else len(completion.split())
        # As `overlong_penalty`, without torch, which a process that verifies need not load.
        return max(-1.0, min(0.0, (self.max_length - self.cache - length) / self.cache))


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
    """n, how many words in a row count as one piece that may be repeated."""
    max_penalty: float = -1.0
    """The penalty ≤ 0 that a text of nothing but repetition comes near."""

    def __post_init__(self) -> None:
        expect_range("ngram", self.ngram, 1, float("inf"))
        expect_range("max_penalty", self.max_penalty, float("-inf"), 0.0)
        expect_finite(max_penalty=self.max_penalty)

    def verify(self, completion: str, answer: str) -> float:
        """The penalty, between `max_penalty` and 0."""
        return self.max_penalty * repetition(completion, ngram=self.ngram)
