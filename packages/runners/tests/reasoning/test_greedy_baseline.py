"""An advantage that compares with the likeliest response has one written and scored for each problem, and trains on the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from reasoning_toy import TOPOLOGY, channels, job, written

from rlinf.core.data import Completion
from rlinf.core.registry import ADVANTAGES
from rlinf.runners.reasoning.generation.experience import Generation
from rlinf.runners.reasoning.generation.prompt_groups import ProblemSource, PromptGroup
from rlinf.runners.reasoning.reward_worker import RewardWorker
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.training.versions import Versions

LONGEST, SCALE = 8, 0.5


@ADVANTAGES.register("toy_compared")
@dataclass(frozen=True)
class Compared:
    needs: ClassVar = {"baseline": ""}


def test_the_likeliest_response_is_compared_with_and_not_trained_on(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    between, task = channels(new_queue), replace(job(0, 1), baseline=True)
    written(reasoning_data, task, between)
    groups: Any = between.completions
    lengths = {item.prompt_group.group: [len(c) for c in item.completions] for item in groups.items["train/0/0/0"]}
    assert {group: last for group, (_, _, last) in lengths.items()} == {0: LONGEST, 1: LONGEST}, "at temperature 0"
    worker = RewardWorker(read_reasoning(reasoning_data))
    worker.init_worker(TOPOLOGY)
    reports = worker.compute_rewards(task, between)
    for report in reports:
        assert [response.tokens for response in report.responses] == lengths[report.group][:2]
        assert report.baseline == SCALE * (LONGEST - 1), "the token that ends a response is no text"
    worker.deliver({0: 0, 1: 0}, between)
    delivered: Any = between.trajectories
    _, rows = delivered.items[0][0]
    assert rows.mask.sum(1).tolist() == [*lengths[0][:2], *lengths[1][:2]]
    np.testing.assert_array_equal(rows.baseline, np.full(4, SCALE * (LONGEST - 1), np.float32))


def test_one_that_was_aborted_goes_on_as_the_others_do(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    between, task = channels(new_queue), replace(job(0, 1, 2, needed=2), baseline=True)
    found, _ = written(reasoning_data, task, between)
    (aborted,) = found.aborted
    assert len(aborted.partial) == 3
    later = replace(task, prompt_groups=(aborted,), needed=1)
    found, worker = written(reasoning_data, later, between)
    generator: Any = worker.engine.generator
    assert found.resumed == sum(map(len, aborted.partial))
    assert generator.written.get(f"train/0/0/{aborted.group}/2", LONGEST) == len(aborted.partial[2])


@pytest.mark.parametrize(("adv_type", "asked"), [("toy_advantage", False), ("toy_compared", True)])
def test_the_advantage_decides_whether_one_is_written(reasoning_data: dict[str, Any], adv_type: str, asked: bool) -> None:
    reasoning_data["algorithm"]["adv_type"] = adv_type
    cfg, jobs, source = read_reasoning(reasoning_data), [], ProblemSource(6, seed=1, shuffle=False)
    # As after a resume with another advantage: two were written, and none of them is the likeliest.
    part = Completion(tokens=np.array([2]), logprob=np.zeros(1, np.float32), version=np.zeros(1, int), finish="abort")
    source.give_back([PromptGroup(group=9, problem=0, partial=(part, part))])

    class Jobs:
        start = staticmethod(jobs.append)

    generation: Any = Generation(cfg, Jobs(), source, Versions(), 1)  # type: ignore[arg-type]
    generation.run_ahead(0)
    assert [each.baseline for each in jobs] == [asked] * len(jobs)
    assert len(jobs[0].prompt_groups[0].partial) == (0 if asked else 2)
