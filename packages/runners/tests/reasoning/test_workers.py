"""Rollout and reward workers without a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from reasoning_toy import TOPOLOGY, channels, job, written

from rlinf.core.data import Completion, Weights
from rlinf.core.errors import ConfigError, NonFiniteError, RLinfError
from rlinf.core.language.generation import SamplingConfig
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.language import Problems, build_policy, build_tokenizer
from rlinf.runners.reasoning.reward_worker import RewardWorker
from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.topology import Channels, WrittenGroup


def groups_of(between: Channels) -> list[int]:
    channel: Any = between.completions
    return [item.prompt_group.group for item in channel.items["train/0/0/0"]]


def test_what_is_written_depends_on_the_group_and_not_on_its_company(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    texts: list[dict[int, list[list[int]]]] = []
    for groups in ((0, 1, 2, 3), (3, 1)):
        between = channels(new_queue)
        written(reasoning_data, job(*groups), between)
        channel: Any = between.completions
        items = channel.items["train/0/0/0"]
        texts.append({item.prompt_group.group: [c.tokens.tolist() for c in item.completions] for item in items})
    assert texts[1] == {group: texts[0][group] for group in (3, 1)}
    assert len({str(text) for text in texts[0].values()}) == 4


def test_the_shortest_groups_end_first_and_the_rest_is_aborted(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    whole, between = channels(new_queue), channels(new_queue)
    written(reasoning_data, job(0, 1, 2, 3, 4, 5), whole)
    by_end = groups_of(whole)
    found, worker = written(reasoning_data, job(0, 1, 2, 3, 4, 5, needed=4), between)
    assert groups_of(between) == by_end[:4]
    assert [prompt_group.group for prompt_group in found.aborted] == sorted(by_end[4:])
    generator: Any = worker._engine.generator  # type: ignore[union-attr]
    assert {f"train/0/0/{g}/{m}" for g in by_end[4:] for m in (0, 1)} <= generator.aborted


def test_a_group_is_aborted_once_at_most(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    whole, between = channels(new_queue), channels(new_queue)
    written(reasoning_data, job(0, 1, 2, 3, 4, 5), whole)
    *_, last = groups_of(whole)
    found, _ = written(reasoning_data, job(0, 1, 2, 3, 4, 5, needed=3, again=(last,)), between)
    assert last in groups_of(between)
    assert len(groups_of(between)) == len(found.aborted) == 3


def test_the_rollout_has_a_precision_of_its_own(reasoning_data: dict[str, Any]) -> None:
    """What it holds decides to what weights are cast; null leaves the model and the sync as they are."""
    same: Any = read_reasoning(reasoning_data)
    assert same.rollout_model == same.actor.model
    reasoning_data["rollout"]["precision"] = "bf16"
    with pytest.raises(ConfigError, match=r"rollout\.precision: the weight syncer 'toy_sync' casts no weights"):
        read_reasoning(reasoning_data)
    reasoning_data["actor"]["weight_syncer"]["type"] = "toy_casting_sync"
    cfg: Any = read_reasoning(reasoning_data)
    assert (cfg.actor.weight_syncer.sync.cast, cfg.weight_sync.cast) == (False, True)
    worker = ReasoningRolloutWorker(cfg)
    worker.init_worker(TOPOLOGY)
    assert {tensor.dtype for tensor in worker._held.tensors.values()} == {torch.bfloat16}  # type: ignore[union-attr]
    assert {parameter.dtype for parameter in build_policy(cfg, starting_weights=True).parameters()} == {torch.float32}


def test_a_response_ends_with_any_token_that_the_model_names(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    """The one that ended it is no part of what is scored."""
    reasoning_data["actor"]["model"]["ends"] = [5, 1, 6]
    cfg = read_reasoning(reasoning_data)
    problems = Problems(cfg, build_tokenizer(cfg.actor.model, cfg.data.task))
    own = SamplingConfig(max_new_tokens=3, stop_token_ids=(7,))
    assert problems.stopped(cfg.rollout.sampling_params).stop_token_ids == (1, 5, 6)
    assert problems.stopped(own) == own
    completion = Completion(tokens=np.array([4, 5]), logprob=np.zeros(2, np.float32), version=np.zeros(2, int), finish="stop")
    between = channels(new_queue)
    prompt_group = PromptGroup(group=0, problem=0)
    between.completions.put(WrittenGroup(prompt_group=prompt_group, completions=(completion,) * 2), key="train/0/0/0")
    (report,), _ = scored(reasoning_data, job(0), between)
    assert [response.text for response in report.responses] == ["c", "c"]


def scored(data: dict[str, Any], task: JobSpec, between: Channels) -> tuple[list[Any], RewardWorker]:
    worker = RewardWorker(read_reasoning(data))
    worker.init_worker(TOPOLOGY)
    return worker.compute_rewards(task, between), worker


def test_a_group_that_arrives_twice_is_scored_once(
    reasoning_data: dict[str, Any], new_queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = channels(new_queue)
    written(reasoning_data, job(0, 1), between)
    written(reasoning_data, job(0, 1, 2), between)
    seen: list[int] = []
    original = RewardWorker._begin

    def counting(self: RewardWorker, task: JobSpec, item: Any) -> Any:
        seen.append(item.prompt_group.group)
        return original(self, task, item)

    monkeypatch.setattr(RewardWorker, "_begin", counting)
    reports, worker = scored(reasoning_data, job(0, 1, 2), between)
    assert sorted(report.group for report in reports) == sorted(seen) == [0, 1, 2]
    worker.deliver({0: 0, 2: 1}, between)
    channel: Any = between.trajectories
    shares = {actor: channel.items[actor][0][1] for actor in (0, 1)}
    assert [shares[actor].group.tolist() for actor in (0, 1)] == [[0, 0], [2, 2]]
    worker.deliver({1: 0}, between)
    assert channel.items[0][1] == (0, None), "what was not admitted is forgotten"


def test_rewards_reports_and_rows_agree(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    reasoning_data["reward"]["success"] = 1.0
    between = channels(new_queue)
    written(reasoning_data, job(0, 1, 2), between)
    reports, worker = scored(reasoning_data, job(0, 1, 2, shown=1), between)
    worker.deliver(dict.fromkeys((0, 1, 2), 0), between)
    channel: Any = between.trajectories
    rows = channel.items[0][0][1]
    by_group = {report.group: report for report in reports}
    for group in (0, 1, 2):
        found = rows.reward[rows.group == group].sum(1).tolist()
        assert found == [response.reward for response in by_group[group].responses]
        for response in by_group[group].responses:
            assert response.reward == 0.5 * (response.tokens - 1), "the token that ends a response is no text"
            assert response.success == (response.reward >= 1.0)
    assert [report.prompt for report in sorted(reports, key=lambda r: r.group)] == ["a", None, None]


@pytest.mark.parametrize(
    ("scores", "error", "message"),
    [
        (
            [1.0, float("nan")],
            NonFiniteError,
            r"reward 'toy_reward' for problem 1 of 'train', found nan; the response",
        ),
        ([0.0, float("-inf")], NonFiniteError, r"found -inf; the response"),
        ([1.0, None], RLinfError, r"for each of 2 responses to problem 1 of 'train', found None\. Return numbers"),
        (["1.0", 1.0], RLinfError, r"found '1\.0'\. Return numbers"),
        (torch.zeros(2, 2), RLinfError, r"found tensor\(\[0\., 0\.\]\)\. Return numbers"),
        (torch.zeros(2, device="meta"), RLinfError, r"found tensor\(.*device='meta'.*\. Return numbers"),
        (0.5, RLinfError, r"found 0\.5\. Return a list"),
        ("12", RLinfError, r"found '12'\. Return a list"),
        ([1.0], RLinfError, r"expected one score of reward 'toy_reward' for each of 2 responses to problem 1 .* found 1"),
    ],
)
def test_a_reward_that_is_no_number_is_refused_with_its_problem(
    reasoning_data: dict[str, Any], new_queue: Any, scores: Any, error: type[Exception], message: str
) -> None:
    between = channels(new_queue)
    written(reasoning_data, job(1), between)
    cfg = read_reasoning(reasoning_data)
    broken = replace(cfg.reward, reward=lambda completions, answers: scores)
    worker: Any = RewardWorker(replace(cfg, reward=broken))
    worker.init_worker(TOPOLOGY)
    with pytest.raises(error, match=message):
        worker.compute_rewards(job(1), between)


def test_a_policy_that_scores_at_another_temperature_is_refused(reasoning_data: dict[str, Any]) -> None:
    reasoning_data["actor"]["model"]["temperature"] = 0.7
    with pytest.raises(ConfigError, match=r"actor\.model\.temperature: expected 1 as in rollout\.sampling_params, found 0\.7"):
        ReasoningRolloutWorker(read_reasoning(reasoning_data)).init_worker(TOPOLOGY)


def test_a_worker_that_knows_nobody_says_so(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    with pytest.raises(RLinfError, match=r"Call init_worker\(topology\) first"):
        asyncio.run(ReasoningRolloutWorker(read_reasoning(reasoning_data)).generate(job(0), channels(new_queue)))


@pytest.mark.parametrize("copied", [True, False])
def test_weights_that_came_are_not_kept_beside_the_copy_of_a_generator(reasoning_data: dict[str, Any], copied: bool) -> None:
    """A generator in this process has copied them into its policy; of an engine elsewhere only what came is known."""
    worker = ReasoningRolloutWorker(read_reasoning(reasoning_data))
    worker.init_worker(TOPOLOGY)
    came = Weights(tensors={name: tensor + 1 for name, tensor in worker._policy.weights().tensors.items()}, version=3)

    async def load(weights: Weights[Any]) -> None:
        if copied:
            worker._policy.load(weights)

    worker.engine.generator.load = load  # type: ignore[method-assign]
    asyncio.run(worker._take(came))
    held = worker._policy.weights() if copied else came
    assert worker._held is not None
    assert worker._held.version == 3
    for name, tensor in worker._held.tensors.items():
        assert tensor.data_ptr() == held.tensors[name].data_ptr()
