"""What an aborted group had written: who keeps it, who goes on with it, and when it is too old."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from reasoning_toy import channels, fresh
from reasoning_toy import job_of as job

from rlinf.core.data import Completion, Weights
from rlinf.core.errors import ConfigError
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.generation.experience import Generation
from rlinf.runners.reasoning.generation.jobs import JobResult
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, ProblemSource, PromptGroup
from rlinf.runners.reasoning.generation.rollout import Generated
from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.topology import ReasoningTopology
from rlinf.runners.training.versions import Versions

TOPOLOGY = ReasoningTopology(actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=1, reward_ranks=1)


def piece(*tokens: int, version: int = 0, finish: Any = "abort") -> Completion[Any]:
    count = len(tokens)
    logprob = np.linspace(-0.1, -1 / 3, count, dtype=np.float32)
    return Completion(tokens=np.array(tokens, np.int64), logprob=logprob, version=np.full(count, version), finish=finish)


def same(one: Completion[Any], other: Completion[Any]) -> bool:
    pairs = ((one.tokens, other.tokens), (one.logprob, other.logprob), (one.version, other.version))
    return one.finish == other.finish and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


class Harness:
    """A rollout worker that does one job after the other."""

    def __init__(self, data: dict[str, Any], new_queue: Any) -> None:
        self.channels = channels(new_queue)
        self.worker = ReasoningRolloutWorker(read_reasoning(data))
        self.worker.init_worker(TOPOLOGY)
        self.engine: Any = self.worker._engine.generator  # type: ignore[union-attr]

    def write(self, task: JobSpec) -> tuple[Generated, dict[int, tuple[Completion[Any], ...]]]:
        found = asyncio.run(asyncio.wait_for(self.worker.generate(task, self.channels), 60))
        channel: Any = self.channels.completions
        return found, {item.prompt_group.group: item.completions for item in channel.items.get(f"{task.key}/0", [])}


@pytest.fixture
def harness(reasoning_data: dict[str, Any], new_queue: Any) -> Harness:
    return Harness(reasoning_data, new_queue)


def test_a_group_that_goes_on_is_the_one_that_was_never_aborted(harness: Harness) -> None:
    prompt_groups = fresh(6)
    _, whole = harness.write(job("whole", prompt_groups, 6))
    first, early = harness.write(job("first", prompt_groups, 3))
    assert all(not prompt_group.again for prompt_group in first.aborted), "the source says so when it takes them back"
    held = sum(prompt_group.written for prompt_group in first.aborted)
    assert held > 0
    second, late = harness.write(job("second", list(first.aborted), 3))
    assert (second.resumed, second.aborted) == (held, ())
    for group, completions in (early | late).items():
        assert all(map(same, completions, whole[group])), group
    for prompt_group in first.aborted:
        for member, part in enumerate(prompt_group.partial):
            request = f"second/{prompt_group.group}/{member}"
            assert harness.engine.written.get(request) == (len(part) if part.finish == "abort" else None)


def test_tokens_keep_the_version_that_wrote_them(harness: Harness) -> None:
    prompt_groups = fresh(6)
    first, _ = harness.write(job("first", prompt_groups, 2, longest=40))
    asyncio.run(harness.engine.load(Weights(tensors={}, version=7)))
    _, late = harness.write(job("second", list(first.aborted), 4, longest=40))
    mixed = 0
    for prompt_group in first.aborted:
        for part, whole in zip(prompt_group.partial, late[prompt_group.group], strict=True):
            assert whole.version.tolist() == [0] * len(part) + [7] * (len(whole) - len(part))
            mixed += 0 < len(part) < len(whole)
    assert mixed


def test_what_is_written_already_is_not_asked_for_again_and_can_end_a_job_at_once(harness: Harness) -> None:
    ended = PromptGroup(group=1, problem=1, again=True, partial=(piece(2, 1, finish="stop"), piece(*[3] * 8, finish="length")))
    found, written = harness.write(job("k", [ended, PromptGroup(group=2, problem=2)], 1))
    assert set(harness.engine.written) <= {"k/2/0", "k/2/1"}
    assert all(map(same, written[1], ended.partial))
    assert found == Generated(tokens=10, resumed=10, aborted=(PromptGroup(group=2, problem=2),))
    assert found.aborted[0].written < 16


def test_a_worker_of_which_nothing_is_needed_keeps_what_others_wrote(harness: Harness) -> None:
    prompt_group = PromptGroup(group=4, problem=4, again=True, partial=(piece(5, 6), piece(7)))
    found, written = harness.write(job("k", [prompt_group], 0))
    assert written == {}
    assert found.aborted[0].partial is prompt_group.partial


def test_a_group_that_ended_unneeded_is_kept_as_a_whole(harness: Harness) -> None:
    prompt_groups = fresh(6)
    _, whole = harness.write(job("whole", prompt_groups, 6))
    longest = max(whole, key=lambda group: max(map(len, whole[group])))
    again = [PromptGroup(group=g, problem=g, again=g == longest) for g in range(6)]
    found, written = harness.write(job("again", again, 1))
    assert list(written) == [longest]
    for prompt_group in found.aborted:
        assert all(map(same, prompt_group.partial, whole[prompt_group.group]))


def test_an_engine_that_does_not_abort_is_not_waited_for_without_an_end(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forever(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("rlinf.runners.reasoning.generation.rollout.ABORT_S", 0.05)
    monkeypatch.setattr(harness.engine, "generate", forever)
    ended = PromptGroup(group=1, problem=1, partial=(piece(2, 1, finish="stop"),) * 2)
    found, _ = harness.write(job("k", [PromptGroup(group=2, problem=2, partial=(piece(3), piece())), ended], 1))
    (late,) = found.aborted
    assert (late.group, late.written) == (2, 1), "what an earlier job had written stays"


def test_a_checkpoint_holds_it_to_the_bit() -> None:
    source = ProblemSource(5, seed=3, shuffle=True)
    first = source.draw(3)
    partial = (piece(4, 5, 6, version=3), piece(), piece(7, 1, finish="stop", version=4))
    source.give_back([PromptGroup(group=first[0].group, problem=first[0].problem, partial=partial)])
    flying = PromptGroup(group=9, problem=2, again=True, partial=(piece(8),) * 3)
    state = json.loads(json.dumps(source.state([flying])))
    again = ProblemSource(5, seed=3, shuffle=True)
    again.restore(state)
    one, two, three = again.draw(3)
    assert [one, two] == [flying, PromptGroup(group=0, problem=first[0].problem, again=True)]
    assert all(map(same, one.partial, flying.partial))
    assert all(map(same, two.partial, partial))
    assert (two.oldest, two.written, three.partial) == (3, 5, ())


def test_only_who_goes_on_with_it_is_sent_what_was_written() -> None:
    prompt_groups = [PromptGroup(group=g, problem=g, partial=(piece(g),) * 2) for g in range(5)]
    task = job("k", prompt_groups, 3)
    for rank in range(2):
        told = task.for_worker(rank, 2)
        assert [bool(prompt_group.partial) for prompt_group in told.prompt_groups] == [g % 2 == rank for g in range(5)]
        own, needed = told.share(rank, 2)
        assert all(prompt_group.partial for prompt_group in own)
        assert (own, needed) == task.share(rank, 2)
    assert not any(prompt_group.partial for prompt_group in task.for_worker(None, 2).prompt_groups)


class Recorded:
    """Workers that write a token with the weights of a job's beginning, and abort what isn't needed."""

    scalars: ClassVar = {"rollout/restarts": 0.0}

    def __init__(self, published: list[int]) -> None:
        self.published = published

    def start(self, task: JobSpec) -> tuple[JobSpec, int]:
        return task, self.published[-1]

    def finish(self, running: tuple[JobSpec, int]) -> JobResult:
        task, then = running
        done, rest = task.prompt_groups[: task.needed], task.prompt_groups[task.needed :]
        response = Response(reward=1.0, success=True, tokens=1, finish="stop")
        oldest = [then if prompt_group.oldest is None else prompt_group.oldest for prompt_group in done]
        reports = [
            GroupReport(group=prompt_group.group, problem=prompt_group.problem, responses=(response,) * 2, oldest=old)
            for prompt_group, old in zip(done, oldest, strict=True)
        ]
        aborted = tuple(replace(prompt_group, partial=(piece(3, version=then),) * 2) for prompt_group in rest)
        resumed = sum(prompt_group.written for prompt_group in done)
        return JobResult(reports=reports, generated=[Generated(tokens=2 * len(done), resumed=resumed, aborted=aborted)])


@pytest.mark.parametrize(("max_lag", "partial_lag", "resumed"), [(0, 0, 0), (0, 1, 4), (1, 0, 0), (1, 1, 0), (1, 2, 4)])
def test_what_would_be_too_old_when_it_is_trained_on_begins_anew_and_is_counted(
    reasoning_data: dict[str, Any], max_lag: int, partial_lag: int, resumed: int
) -> None:
    reasoning_data["rollout"] |= {"max_lag": max_lag, "partial_lag": partial_lag, "oversample": 1.5}
    reasoning_data["runner"]["max_steps"] = 9
    published = [0]
    versions, jobs = Versions(), Recorded(published)
    versions.publish(0)
    source = ProblemSource(6, seed=1, shuffle=False)
    made: Any = Generation(read_reasoning(reasoning_data), jobs, source, versions, 1)  # type: ignore[arg-type]
    rows = []
    for step in range(4):
        if step:
            published.append(step)
            versions.publish(step)
        made.run_ahead(step)
        rows.append(made.collect(step).scalars)
    last = rows[-1]
    assert last["rollout/resumed_tokens"] == resumed
    assert last["rollout/discarded_tokens"] == 4 - resumed
    assert all(row["rollout/groups_stale"] == 0 for row in rows)
    assert max(row["rollout/lag_max"] for row in rows) <= max_lag + partial_lag


def test_a_negative_allowance_is_refused(reasoning_data: dict[str, Any]) -> None:
    reasoning_data["rollout"]["partial_lag"] = -1
    with pytest.raises(ConfigError, match=r"rollout\.partial_lag: expected at least 0, found -1"):
        read_reasoning(reasoning_data)
