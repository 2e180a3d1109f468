"""Scores batches with anybody's reward: each call bounded in time, no failure stops a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rlinf.algorithms.checks import expect_finite
from rlinf.algorithms.rewards.pool import Task, VerifierPool
from rlinf.algorithms.rewards.reward import IsolatedReward, RuleReward, Verifier
from rlinf.algorithms.rewards.scores import Outcome, Scores, checked_scores, expect_pairs, finite, only, tally
from rlinf.core.config import expect_range
from rlinf.core.errors import error_text
from rlinf.core.protocols import Reward

_log = logging.getLogger(__name__)
CANCEL_S: Final = 1.0


def score(
    reward: Reward,
    completions: Sequence[str],
    answers: Sequence[str],
    *,
    timeout_s: float | None = None,
    max_workers: int | None = None,
    pool: VerifierPool | None = None,
) -> Scores:
    """Scores a batch and says how that went.

    A reward that is not a `RuleReward` is asked for one pair at a time, in worker processes, so that it can be stopped.

    Args:
        reward: any reward; a plain verifier of one pair becomes one by `Verified(verifier)`.
        completions: what the policy wrote.
        answers: what it should have come to, one for each completion.
        timeout_s: seconds that one pair may take; None is what the reward says.
        max_workers: starts that many processes at most for this batch, and ends them; None uses `pool`.
        pool: the processes to verify in; None is the pool of this process.

    Returns:
        A score for each pair; one that crashed or took too long has the reward's lowest, as a rule 0, and counts in
        `verifier_error` or `verifier_timeout`.

    Raises:
        ShapeError: there aren't as many answers as completions, or a reward of its own kind returned more or fewer scores.
        NonFiniteError: a reward of its own kind returned a score that is infinite or not a number.
        ConfigError: the reward can't be sent to a worker process; the message says how to define it.
    """
    expect_range("timeout_s", timeout_s, 0.0, 86400.0, open_low=True)
    rule = reward if isinstance(reward, RuleReward) else OneByOne(reward)
    if max_workers is None:
        scores = rule.scores(completions, answers, timeout_s=timeout_s, pool=pool)
    else:
        with VerifierPool(max_workers) as own:
            scores = rule.scores(completions, answers, timeout_s=timeout_s, pool=own)
    name = type(reward).__name__
    return _reported(checked_scores(scores, name, len(completions)), name)


async def score_async(
    verify: Callable[[str, str], Awaitable[float]],
    completions: Sequence[str],
    answers: Sequence[str],
    *,
    timeout_s: float,
    concurrency: int = 64,
    failure_score: float = 0.0,
) -> Scores:
    """Scores a batch with a verifier that waits, such as a judge behind a network.

    A call that doesn't end when it is cancelled is left to itself. A verifier that computes without ever awaiting can't be
    stopped here; make it a reward with `Verified` instead.

    Args:
        verify: an async function that scores one pair.
        completions: what the policy wrote.
        answers: one for each completion.
        timeout_s: seconds that one pair may take, from when its turn comes.
        concurrency: how many calls are on their way at once, at most.
        failure_score: the score of a pair whose call failed.

    Returns:
        As `score`.

    Raises:
        ShapeError: there aren't as many answers as completions.
    """
    expect_pairs("score_async", completions, answers)
    expect_range("timeout_s", timeout_s, 0.0, 86400.0, open_low=True)
    expect_range("concurrency", concurrency, 1, float("inf"))
    expect_finite(failure_score=failure_score)
    turn = asyncio.Semaphore(concurrency)

    async def one(completion: str, answer: str) -> Outcome:
        async with turn:
            return await _awaited(verify, completion, answer, timeout_s)

    outcomes = await asyncio.gather(*(one(*pair) for pair in zip(completions, answers, strict=True)))
    return _reported(tally(outcomes, failure_score=failure_score), getattr(verify, "__name__", type(verify).__name__))


async def _awaited(verify: Callable[[str, str], Awaitable[float]], completion: str, answer: str, timeout_s: float) -> Outcome:
    async def call() -> Outcome:
        try:
            return Outcome(finite(await verify(completion, answer)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - no verifier stops a run
            return Outcome(None, error_text(error)[:500])

    task = asyncio.ensure_future(call())
    try:
        # Not `wait_for`, which would wait for a call that suppresses its cancellation.
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            # A verifier may suppress its cancellation; it gets a moment, and is then left to itself.
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_S)
            return Outcome(None, f"no answer within {timeout_s:g} s", timed_out=True)
        return Outcome(None, "it cancelled itself") if task.cancelled() else task.result()
    finally:
        task.cancel()


def _reported(scores: Scores, name: str) -> Scores:
    if scores.failures:
        index, problem = next(iter(scores.failures.items()))
        message = "%s: %d of %d pairs could not be verified; the first is pair %d: %s"
        _log.warning(message, name, len(scores.failures), len(scores.values), index, problem)
    return scores


@dataclass(frozen=True, slots=True)
class Verified(IsolatedReward):
    """A reward made of any verifier of one pair, which must be importable by name: it runs in worker processes."""

    verifier: Verifier
    """A function at the top of a module, or a frozen dataclass that can be called."""
    lowest: float = 0.0
    """The score of a pair that could not be verified."""

    def __post_init__(self) -> None:
        IsolatedReward.__post_init__(self)
        expect_finite(lowest=self.lowest)

    @property
    def failure_score(self) -> float:
        return self.lowest

    def verify(self, completion: str, answer: str) -> float:
        return self.verifier(completion, answer)

    def task(self) -> Task:
        """The verifier alone, so that its processes import nothing of ours."""
        return Task(self.verifier, None, self.timeout_s, self.memory_mb)


@dataclass(frozen=True, slots=True)
class OneByOne(IsolatedReward):
    """Anybody's batched reward, asked for one pair at a time in worker processes."""

    reward: Reward
    """A function at the top of a module, or an instance of a class at the top of a module."""

    def verify(self, completion: str, answer: str) -> float:
        """What the reward says of a batch of one."""
        return only(self.reward([completion], [answer]))

    def task(self) -> Task:
        """The reward alone, so that its processes import nothing of ours."""
        return Task(self.reward, None, self.timeout_s, self.memory_mb, batched=True)
