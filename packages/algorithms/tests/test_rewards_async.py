"""Scoring without processes of its own: rules that fail, and verifiers that wait."""

import asyncio
import contextlib
import sys
from dataclasses import dataclass

import pytest

from rlinf.algorithms.rewards.composite import Composite, Part
from rlinf.algorithms.rewards.reward import PairReward
from rlinf.algorithms.rewards.scoring import score, score_async
from rlinf.core.errors import ConfigError
from rlinf.core.metrics import Metric, merge
from rlinf.core.rewards import RewardSample, WeightedScores


@dataclass(frozen=True, slots=True)
class Fragile(PairReward):
    def verify(self, completion, answer):
        if completion == "exit":
            sys.exit(1)
        return 1.0 / len(completion) if completion != "nan" else float("nan")


def test_a_reward_without_processes_does_not_stop_a_run_either(caplog):
    scores = score(Fragile(), ["ab", "", "exit", "nan"], [""] * 4)
    assert scores.values == [0.5, 0.0, 0.0, 0.0]
    assert scores.metrics["verifier_error"] == Metric(3.0, 4.0)
    assert "Fragile: 3 of 4 pairs could not be verified; the first is pair 1: ZeroDivisionError" in caplog.text
    assert Fragile()(["ab", ""], ["", ""]) == [0.5, 0.0]


def test_metrics_of_parts_of_a_batch_add_up():
    whole = score(Fragile(), ["ab", "", "abcd"], [""] * 3)
    parts = [score(Fragile(), ["ab"], [""]), score(Fragile(), ["", "abcd"], ["", ""])]
    assert merge(part.metrics for part in parts) == whole.metrics


async def waiting(completion, answer):
    if completion == "sleep":
        await asyncio.sleep(3600)
    if completion == "cancel":
        raise asyncio.CancelledError
    if completion == "stubborn":
        for _ in range(30):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)
    if completion == "raise":
        raise ConnectionError("no judge")
    if completion == "exit":
        sys.exit(1)
    await asyncio.sleep(0)
    return float("nan") if completion == "nan" else float(completion == answer)


def test_async_calls_are_bounded_and_counted():
    completions = ["a", "sleep", "raise", "nan", "exit", "cancel", "stubborn", "b"]
    scores = asyncio.run(score_async(waiting, completions, ["a"] * 7 + ["b"], timeout_s=1.0, failure_score=-1.0))
    assert scores.values == [1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 1.0]
    assert scores.metrics["verifier_timeout"] == Metric(2.0, 8.0)
    assert scores.metrics["verifier_error"] == Metric(4.0, 8.0)
    assert scores.failures[2] == "ConnectionError: no judge"
    assert scores.failures[1] == "no answer within 1 s"


def test_async_calls_wait_together_but_only_so_many():
    running, most = 0, 0

    async def count(completion, answer):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 1.0

    scores = asyncio.run(score_async(count, ["a"] * 20, ["a"] * 20, timeout_s=10.0, concurrency=4))
    assert scores.values == [1.0] * 20
    assert most == 4


@dataclass(frozen=True)
class Judge:
    """Asks how long a response is in tokens, when all others have been asked, too."""

    barrier: asyncio.Barrier

    async def score_samples(self, samples):
        await self.barrier.wait()
        return [float(len(sample.tokens)) for sample in samples]


def test_parts_of_a_composite_are_asked_at_the_same_time_and_told_what_they_look_at():
    """Two judges that wait for each other, and a rule that knows texts alone."""

    async def scored():
        barrier = asyncio.Barrier(2)
        reward = Composite(
            parts={
                "first": Part(Judge(barrier), weight=0.5),
                "second": Part(Judge(barrier)),
                "right": Part("exact_match", weight=2.0),
                "both": Part(Composite(parts={"a": Part("exact_match"), "b": Part("exact_match", weight=-0.25)})),
            }
        )
        samples = [RewardSample(text="7", answer="7", tokens=(1, 2)), RewardSample(text="8", answer="7", tokens=(1,))]
        return await asyncio.wait_for(reward.score_samples(samples), 60)

    assert asyncio.run(scored()) == {
        "first": WeightedScores(values=[2.0, 1.0], weight=0.5),
        "second": WeightedScores(values=[2.0, 1.0]),
        "right": WeightedScores(values=[1.0, 0.0], weight=2.0),
        "both": WeightedScores(values=[0.75, 0.0]),
    }


def test_texts_alone_are_not_enough_for_a_part_that_looks_at_whole_responses():
    reward = Composite(parts={"judge": Part(Judge(asyncio.Barrier(1)))})
    with pytest.raises(ConfigError, match=r"parts\.judge: looks at whole responses, found texts alone"):
        reward(["a"], ["a"])
