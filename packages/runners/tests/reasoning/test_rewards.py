"""Rewards that are told of whole responses, wait, or have parts."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from reasoning_toy import TOPOLOGY, channels, job, written

from rlinf.core.errors import DeadlineExceeded, NonFiniteError, RLinfError
from rlinf.core.rewards import RewardSample, Scored, WeightedScores, sample_reward
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.generation.experience import _parts, _spread
from rlinf.runners.reasoning.reward_worker import RewardWorker
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.topology import Channels


def scored(data: dict[str, Any], reward: Any, between: Channels, *groups: int, **section: Any) -> list[GroupReport]:
    cfg = read_reasoning(data)
    worker = RewardWorker(replace(cfg, reward=replace(cfg.reward, reward=reward, **section)))
    worker.init_worker(TOPOLOGY)
    return sorted(worker.compute_rewards(job(*groups), between), key=lambda report: report.group)


def asked(data: dict[str, Any], new_queue: Any, *groups: int) -> Channels:
    between = channels(new_queue)
    written(data, job(*groups), between)
    return between


def test_a_reward_is_told_all_that_is_known(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    seen: list[RewardSample] = []

    @sample_reward
    def lengths(samples: Sequence[RewardSample]) -> list[float]:
        seen.extend(samples)
        return [float(len(sample.tokens)) for sample in samples]

    reports = scored(reasoning_data, lengths, asked(reasoning_data, new_queue, 0, 1), 0, 1)
    assert [sample.prompt for sample in seen] == ["a", "a", "b", "b"]
    assert [sample.answer for sample in seen] == ["a", "a", "b", "b"]
    assert [sample.prompt_tokens for sample in seen] == [(2,), (2,), (3,), (3,)]
    given = [response.reward for report in reports for response in report.responses]
    assert given == [float(response.tokens) for report in reports for response in report.responses]
    assert all(len(sample.text) == len(sample.tokens) - 1 for sample in seen), "the token that ends a response is no text"


def test_groups_are_scored_at_the_same_time(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    """Nobody is answered before all have asked: one at a time would never end."""
    together = asyncio.Barrier(3)

    @sample_reward
    async def judge(samples: Sequence[RewardSample]) -> list[float]:
        await together.wait()
        return [0.5] * len(samples)

    reports = scored(reasoning_data, judge, asked(reasoning_data, new_queue, 0, 1, 2), 0, 1, 2, group_timeout_s=60.0)
    assert [response.reward for report in reports for response in report.responses] == [0.5] * 6


def test_as_many_groups_as_allowed_are_scored_at_a_time(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    under_way, most, lock = 0, 0, threading.Lock()

    @sample_reward
    async def judge(samples: Sequence[RewardSample]) -> list[float]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        under_way -= 1
        return [0.0] * len(samples)

    scored(reasoning_data, judge, asked(reasoning_data, new_queue, 0, 1, 2, 3, 4), 0, 1, 2, 3, 4, max_concurrent=2)
    assert 1 <= most <= 2


def test_one_that_says_nothing_is_named_with_its_problem(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    @sample_reward
    async def silent(samples: Sequence[RewardSample]) -> list[float]:
        await asyncio.Event().wait()
        return []

    message = r"reward 'toy_reward' said nothing of problem 1 of 'train' within reward\.group_timeout_s = 0\.05 s"
    with pytest.raises(DeadlineExceeded, match=message):
        scored(reasoning_data, silent, asked(reasoning_data, new_queue, 1), 1, group_timeout_s=0.05)


def test_one_that_blocks_is_bounded_where_workers_share_a_process(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    over, threads = threading.Event(), list[threading.Thread]()

    def blocking(completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        threads.append(threading.current_thread())
        over.wait(60.0)
        return [0.5] * len(completions)

    def failing(completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        raise ValueError("down")

    def score(reward: Any, **section: Any) -> list[GroupReport]:
        return scored(reasoning_data, reward, asked(reasoning_data, new_queue, 1), 1, **section)

    message = r"reward 'toy_reward' said nothing of problem 1 of 'train' within reward\.group_timeout_s = 0\.05 s"
    with ThreadPoolExecutor(1) as elsewhere:
        try:
            with pytest.raises(DeadlineExceeded, match=message):
                elsewhere.submit(score, blocking, group_timeout_s=0.05).result(60.0)
        finally:
            over.set()
        assert elsewhere.submit(score, blocking).result(60.0)[0].responses[0].reward == 0.5
        with pytest.raises(ValueError, match="down"):
            elsewhere.submit(score, failing).result(60.0)
    score(blocking)
    assert threads[-1] is threading.main_thread(), "a process of its own: the reward may use signals"


class Retries:
    """A reward that waits for a service, and passes over whatever goes wrong."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        for _ in range(20):
            try:
                self._wait()
            except Exception:  # noqa: BLE001 - what users write
                continue
        return [0.0] * len(completions)


def computes() -> None:
    ends = time.monotonic() + 60.0
    while time.monotonic() < ends:
        pass


def hangs(samples: Sequence[RewardSample]) -> list[float]:
    time.sleep(60.0)
    return []


@pytest.mark.parametrize(
    "reward",
    [Retries(lambda: time.sleep(60.0)), Retries(lambda: threading.Event().wait(60.0)), Retries(computes), sample_reward(hangs)],
)
def test_one_that_blocks_is_bounded_in_a_process_of_its_own(reasoning_data: dict[str, Any], new_queue: Any, reward: Any) -> None:
    """Whatever it does meanwhile; and the signals of the process are as before."""
    before = signal.getsignal(signal.SIGUSR2)
    message = r"reward 'toy_reward' said nothing of problem 1 of 'train' within reward\.group_timeout_s = 0\.05 s"
    with pytest.raises(DeadlineExceeded, match=message):
        scored(reasoning_data, reward, asked(reasoning_data, new_queue, 1), 1, group_timeout_s=0.05)
    assert signal.getsignal(signal.SIGUSR2) is before


def test_a_function_that_is_not_async_is_bounded_where_workers_share_a_process(
    reasoning_data: dict[str, Any], new_queue: Any
) -> None:
    over = threading.Event()

    @sample_reward
    def blocking(samples: Sequence[RewardSample]) -> list[float]:
        over.wait(60.0)
        return [0.5] * len(samples)

    def score() -> list[GroupReport]:
        return scored(reasoning_data, blocking, asked(reasoning_data, new_queue, 1), 1, group_timeout_s=0.05)

    with ThreadPoolExecutor(1) as elsewhere:
        try:
            with pytest.raises(DeadlineExceeded, match=r"within reward\.group_timeout_s = 0\.05 s"):
                elsewhere.submit(score).result(60.0)
        finally:
            over.set()


def test_one_that_holds_up_all_others_is_named(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    """A coroutine that blocks lets no clock of its own loop ring."""
    over = threading.Event()

    @sample_reward
    async def blocking(samples: Sequence[RewardSample]) -> list[float]:
        over.wait(60.0)
        return []

    message = r"reward 'toy_reward' .* 0\.1 s.*await"
    try:
        with pytest.raises(DeadlineExceeded, match=message):
            scored(reasoning_data, blocking, asked(reasoning_data, new_queue, 1), 1, group_timeout_s=0.05)
    finally:
        over.set()


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ([0.0, float("nan")], NonFiniteError, r"finite score of part 'shape' of reward 'toy_reward' for problem 1 .* found nan"),
        ([0.0], RLinfError, r"one score of part 'shape' of reward 'toy_reward' for each of 2 responses to problem 1 .* found 1"),
    ],
)
def test_a_part_that_is_no_number_is_named_with_its_problem(
    reasoning_data: dict[str, Any], new_queue: Any, shape: list[float], error: type[Exception], message: str
) -> None:
    @sample_reward
    async def parts(samples: Sequence[RewardSample]) -> Scored:
        return {"right": WeightedScores(values=[1.0, 0.0]), "shape": WeightedScores(values=shape)}

    with pytest.raises(error, match=message):
        scored(reasoning_data, parts, asked(reasoning_data, new_queue, 1), 1)


def test_parts_are_added_by_weight_and_logged_with_their_spread(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    @sample_reward
    def parts(samples: Sequence[RewardSample]) -> Mapping[str, WeightedScores]:
        return {"right": WeightedScores(values=[1.0, 0.0]), "shape": WeightedScores(values=[3.0, 1.0], weight=-0.25)}

    (report,) = scored(reasoning_data, parts, asked(reasoning_data, new_queue, 1), 1)
    assert [response.reward for response in report.responses] == [0.25, -0.25]
    logged = _parts(report.responses)
    assert logged == {
        "rollout/reward/right": 0.5,
        "rollout/reward/right_std": 0.5,
        "rollout/reward/shape": 2.0,
        "rollout/reward/shape_std": 1.0,
    }
    assert _parts([Response(reward=0.0, success=False, tokens=0, finish="error"), *report.responses]) == logged
    assert _spread("x", []) == {"x": 0.0, "x_std": 0.0}


def test_one_part_alone_may_say_what_is_right(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    @sample_reward
    def parts(samples: Sequence[RewardSample]) -> Mapping[str, WeightedScores]:
        return {"right": WeightedScores(values=[1.0, 0.0], weight=0.0), "liked": WeightedScores(values=[-1.0, 3.0])}

    between = asked(reasoning_data, new_queue, 1)
    (report,) = scored(reasoning_data, parts, between, 1, success_part="right")
    assert [(response.reward, response.success) for response in report.responses] == [(-1.0, True), (3.0, False)]
    written(reasoning_data, job(1), between)
    (report,) = scored(reasoning_data, parts, between, 1)
    assert [response.success for response in report.responses] == [False, True]
