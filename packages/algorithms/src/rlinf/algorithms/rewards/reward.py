"""What all rewards chosen by name have in common.

A *verifier* scores one pair of a completion and an answer. A *reward* scores a batch of pairs and says how that went.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rlinf.algorithms.rewards.pool import Task, VerifierPool, shared_pool
from rlinf.algorithms.rewards.scores import Outcome, Scores, expect_pairs, finite, tally
from rlinf.core.config import expect_range
from rlinf.core.errors import error_text

Pairs = Sequence[tuple[str, str]]
"""Completions, each with its answer."""


class Verifier(Protocol):
    """Scores one completion."""

    def __call__(self, completion: str, answer: str) -> float:
        """The score of `completion`, given the right `answer`."""
        ...


@dataclass(frozen=True, slots=True)
class RuleReward(ABC):
    """A reward by rule: a frozen dataclass of its hyper-parameters."""

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        """One score for each completion.

        Args:
            completions: what the policy wrote.
            answers: what it should have come to, one for each completion.

        Raises:
            ShapeError: there aren't as many answers as completions.
        """
        return self.scores(completions, answers).values

    def scores(
        self,
        completions: Sequence[str],
        answers: Sequence[str],
        *,
        timeout_s: float | None = None,
        pool: VerifierPool | None = None,
    ) -> Scores:
        """The scores of a batch and how scoring went.

        Args:
            completions: what the policy wrote.
            answers: one for each completion.
            timeout_s: seconds that one pair may take; None is what the reward says. No matter to rewards that need no process.
            pool: the processes to verify in; None is `shared_pool()`.

        Raises:
            ShapeError: there aren't as many answers as completions.
        """
        expect_pairs(type(self).__name__, completions, answers)
        return self.score_pairs(list(zip(completions, answers, strict=True)), timeout_s, pool)

    @abstractmethod
    def score_pairs(self, pairs: Pairs, timeout_s: float | None, pool: VerifierPool | None) -> Scores:
        """`scores`, of completions that have their answers."""


@dataclass(frozen=True, slots=True)
class PairReward(RuleReward):
    """A reward that looks at each pair alone, in time that grows no faster than its texts; so it needs no other process."""

    @property
    def failure_score(self) -> float:
        """The score of a pair that could not be verified."""
        return 0.0

    @abstractmethod
    def verify(self, completion: str, answer: str) -> float:
        """The score of one completion."""

    def score_pairs(self, pairs: Pairs, timeout_s: float | None, pool: VerifierPool | None) -> Scores:
        """The scores of a batch; a pair that can't be verified gets `failure_score` and is counted."""
        return tally([self._outcome(*pair) for pair in pairs], failure_score=self.failure_score)

    def _outcome(self, completion: str, answer: str) -> Outcome:
        try:
            return Outcome(finite(self.verify(completion, answer)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - no verifier stops a run
            return Outcome(None, error_text(error)[:500])


@dataclass(frozen=True, slots=True)
class IsolatedReward(PairReward):
    """A reward whose verifier may hang or crash: it runs in worker processes that can be ended."""

    timeout_s: float = field(default=10.0, kw_only=True)
    """Seconds that one pair may take."""
    memory_mb: int = field(default=2048, kw_only=True)
    """MiB that verifying one pair may add to its process, where the platform can tell."""

    def __post_init__(self) -> None:
        expect_range("timeout_s", self.timeout_s, 0.0, 86400.0, open_low=True)
        expect_range("memory_mb", self.memory_mb, 1, 2**30)

    def prepare(self) -> None:
        """Called once in each worker process, outside the time of any pair: imports what is slow to import."""

    def question(self, completion: str, answer: str) -> tuple[str, str]:
        """What the worker processes are sent of a pair, in place of all of it."""
        return completion, answer

    def task(self) -> Task:
        """What the worker processes do."""
        return Task(self.verify, self.prepare, self.timeout_s, self.memory_mb)

    def score_pairs(self, pairs: Pairs, timeout_s: float | None, pool: VerifierPool | None) -> Scores:
        """The scores of a batch; a pair whose verifier crashes or takes too long gets `failure_score` and is counted."""
        task = self.task() if timeout_s is None else replace(self.task(), timeout_s=timeout_s)
        outcomes = (pool or shared_pool()).run(task, [self.question(*pair) for pair in pairs], name=type(self).__name__)
        return tally(outcomes, failure_score=self.failure_score)
