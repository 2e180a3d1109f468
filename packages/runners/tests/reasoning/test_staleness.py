"""Independent of the code that it tests: a simulator that knows the birth of every token, against what is admitted.

A run of random lags, lengths, aborted groups, dropped groups and checkpoints; after each iteration everything is counted by hand.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlinf.core.data import Completion
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.generation.experience import Generation
from rlinf.runners.reasoning.generation.jobs import JobResult
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, ProblemSource, PromptGroup
from rlinf.runners.reasoning.generation.rollout import Generated
from rlinf.runners.reasoning.generation.running import GenerationJob
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.training.versions import Versions


class World:
    """Rollout and reward workers that write one token a tick; an update may come between two ticks, at the end of a job at most."""

    scalars: ClassVar = {"rollout/restarts": 0.0}

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.updates = [0]
        self.finished: dict[int, list[int]] = {}
        self.born: dict[int, set[int]] = {}

    def start(self, job: JobSpec) -> GenerationJob:
        began: Any = len(self.updates) - 1
        return GenerationJob(job, began)

    def finish(self, running: GenerationJob) -> JobResult:
        """Each token is written with one of the versions that there were since the job began, never with an older one again."""
        job = running.job
        began: Any = running.handles
        ranked = sorted(job.prompt_groups, key=lambda prompt_group: (not prompt_group.again, self.random.random()))
        done, cut = ranked[: job.needed], ranked[job.needed :]
        reports, resumed, tokens = [], 0, 0
        for prompt_group in done:
            versions = [list(map(int, part.version)) for part in prompt_group.partial] or [[], []]
            versions = [[*old, *self._since(began, 3)] for old in versions]
            assert prompt_group.group not in self.finished, "a group was finished twice"
            self.finished[prompt_group.group] = [version for row in versions for version in row]
            resumed, tokens = resumed + prompt_group.written, tokens + sum(map(len, versions))
            reports.append(self._report(prompt_group, versions))
        aborted = tuple(replace(prompt_group, partial=tuple(self._more(prompt_group, began))) for prompt_group in cut)
        return JobResult(reports=reports, generated=[Generated(tokens=tokens, resumed=resumed, aborted=aborted)])

    def _since(self, began: int, count: int) -> list[int]:
        return [self.updates[i] for i in sorted(self.random.integers(began, len(self.updates), count))]

    def _more(self, prompt_group: PromptGroup, began: int) -> list[Completion[Any]]:
        found = []
        for member in range(2):
            old = list(map(int, prompt_group.partial[member].version)) if prompt_group.partial else []
            version = np.array([*old, *self._since(began, int(self.random.integers(0, 3)))], np.int64)
            zeros = np.zeros(len(version))
            found.append(
                Completion(tokens=zeros.astype(np.int64), logprob=zeros.astype(np.float32), version=version, finish="abort")
            )
        return found

    def _report(self, prompt_group: PromptGroup, versions: list[list[int]]) -> GroupReport:
        alike = self.random.random() < 0.4
        responses = tuple(
            Response(reward=0.0 if alike else float(member), success=bool(member), tokens=len(row), finish="stop")
            for member, row in enumerate(versions)
        )
        return GroupReport(
            group=prompt_group.group, problem=prompt_group.problem, responses=responses, oldest=min(min(row) for row in versions)
        )


def config(data: dict[str, Any], draw: dict[str, Any], steps: int) -> Any:
    # Without surplus groups none goes on later.
    partial_lag = draw["partial_lag"] if draw["oversample"] > 1 else 0
    data["rollout"] |= {"max_lag": draw["max_lag"], "partial_lag": partial_lag, "oversample": draw["oversample"]}
    data["algorithm"]["dynamic_sampling"] = {"max_waves": 3} if draw["dynamic"] else None
    data["runner"]["max_steps"] = steps
    return read_reasoning(data)


DRAWS = st.fixed_dictionaries(
    {
        "max_lag": st.integers(0, 3),
        "partial_lag": st.integers(0, 4),
        "oversample": st.sampled_from([1.0, 1.25, 1.5, 2.0]),
        "dynamic": st.booleans(),
        "seed": st.integers(0, 10**6),
        "resumed_at": st.integers(1, 7),
    }
)


@given(draw=DRAWS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_lost_trained_on_twice_or_too_old(reasoning_data: dict[str, Any], draw: dict[str, Any]) -> None:
    steps, needed = 8, 4
    cfg = config(deepcopy(reasoning_data), draw, steps)
    world, versions = World(draw["seed"]), Versions()
    versions.publish(0)
    source = ProblemSource(6, seed=1, shuffle=True)
    made: Any = Generation(cfg, world, source, versions, 1)  # type: ignore[arg-type]
    trained: set[int] = set()
    for step in range(steps):
        if step == draw["resumed_at"]:
            state = json.loads(json.dumps(made.state()))
            source = ProblemSource(6, seed=1, shuffle=True)
            source.restore(state)
            kept, versions = versions.state(cfg.rollout.admitted_lag + 2), Versions()
            versions.publish(*kept)
            made = Generation(cfg, world, source, versions, 1)  # type: ignore[arg-type]
        made.run_ahead(step)
        experience = made.collect(step)
        ages = {g: age(world, g) for g in experience.admitted}
        assert max(ages.values()) <= draw["max_lag"] + draw["partial_lag"]
        assert not trained & set(experience.admitted), "a group is trained on twice"
        assert len(experience.admitted) <= needed
        assert len(experience.admitted) == needed or draw["dynamic"]
        trained |= set(experience.admitted)
        if not draw["dynamic"]:
            assert experience.scalars["rollout/groups_stale"] == 0, "it was known before it was written"
        world.updates.append(world.updates[-1] + int(world.random.integers(1, 4)))
        versions.publish(world.updates[-1])
    state = made.state()
    waiting = [prompt_group["group"] for prompt_group in state["returned"]]
    assert len(set(waiting)) == len(waiting)
    assert not set(waiting) & set(world.finished)
    assert set(waiting) | set(world.finished) == set(range(state["position"])), "a group was lost"


def age(world: World, group: int) -> int:
    """How many updates there were since the oldest token of a group."""
    return len(world.updates) - 1 - world.updates.index(min(world.finished[group]))


def test_what_an_iteration_says_of_its_responses(reasoning_data: dict[str, Any]) -> None:
    """Counted by hand over two groups, one of them an update old."""
    reasoning_data["rollout"]["oversample"] = 1.5
    cfg = read_reasoning(reasoning_data)
    source, versions = ProblemSource(6, seed=1, shuffle=True), Versions()
    versions.publish(0, 1)
    made: Any = Generation(cfg, World(0), source, versions, 1)  # type: ignore[arg-type]
    ends = [(1.0, True, 3, "stop"), (0.5, False, 9, "length"), (0.0, False, 2, "stop"), (0.5, True, 6, "length")]
    responses = [Response(reward=reward, success=success, tokens=n, finish=finish) for reward, success, n, finish in ends]
    groups = [
        GroupReport(group=group, problem=group, responses=tuple(responses[2 * group :][:2]), oldest=1 - group) for group in (0, 1)
    ]
    assert made._described(groups) == {
        "rollout/rewards": 0.5,
        "rollout/rewards_std": 0.125**0.5,
        "rollout/accuracy": 0.5,
        "rollout/response_length": 5.0,
        "rollout/truncated": 0.5,
        "rollout/lag": 0.5,
        "rollout/lag_max": 1.0,
    }
    assert made._described([])["rollout/lag_max"] == 0
    job = made._begin(0, 0, needed=5).job
    assert (job.needed, len(job.prompt_groups), job.shown) == (5, 8, cfg.runner.transcripts), "5 × 1.5, rounded up"
    assert made._begin(0, 1, needed=5).job.shown == 0
