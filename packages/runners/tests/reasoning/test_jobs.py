"""What happens when a rollout worker dies, with workers that follow a script."""

from __future__ import annotations

from typing import Any

import pytest
from reasoning_toy import Call, fresh, job_of

from rlinf.core.errors import RLinfError, WorkerError
from rlinf.runners.reasoning.generation.jobs import GenerationJobs
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec
from rlinf.runners.reasoning.generation.worker_groups import WorkerGroups
from rlinf.runners.reasoning.topology import ReasoningTopology

TOPOLOGY = ReasoningTopology(actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=2, reward_ranks=1)
DEATH = WorkerError("rollout", 1, "sync_model_from_actor", "its process died (SIGKILL)")
JOB = job_of("k", fresh(4), 4)


class Stage:
    """The groups of a run with two rollout workers; `said` is what they were asked, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.restarts = [0, 0]
        self.taking: dict[int, list[Call]] = {0: [], 1: []}
        self.giving: list[Call] = []
        self.name, self.world_size = "rollout", 2

    def execute_on(self, rank: int) -> Any:
        stage = self

        class Rank:
            def sync_model_from_actor(self) -> Call:
                stage.said.append(f"take {rank}")
                return stage.taking[rank].pop(0)

            def init_worker(self, topology: ReasoningTopology) -> Call:
                stage.said.append(f"init {rank}")
                return Call("init", [None])

            def generate(self, job: JobSpec, channels: Any) -> Call:
                stage.said.append(f"write {rank}")
                return Call("generate", ["written"])

        return Rank()

    def compute_rewards(self, job: JobSpec, channels: Any) -> Call:
        return Call("score", [["report"]])

    def sync_model_to_rollout(self, ranks: Any = None) -> Call:
        self.said.append("give" if ranks is None else f"give {list(ranks)}")
        return self.giving.pop(0)

    def jobs(self) -> GenerationJobs:
        self.groups: Any = WorkerGroups(rollout=self, reward=self, actor=self)  # type: ignore[arg-type]
        jobs: Any = GenerationJobs(self.groups, TOPOLOGY, None, 5.0)  # type: ignore[arg-type]
        return jobs

    def dies(self) -> Call:
        """Rollout 1 dies in what it is asked, and is started again."""

        def known() -> bool:
            self.restarts[1] = 1
            return True

        return Call("rollout[1]", DEATH, known)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr("rlinf.runners.reasoning.generation.jobs.REST_S", 0.3)
    monkeypatch.setattr("rlinf.runners.reasoning.generation.jobs.LATE_S", 0.05)
    monkeypatch.setattr("rlinf.core.cluster.futures.AFTERMATH_S", 0.05)
    return Stage()


def test_all_are_given_the_same_weights_at_once(stage: Stage) -> None:
    stage.taking = {0: [Call("a", [7])], 1: [Call("b", [7])]}
    stage.giving = [Call("g", [7])]
    assert stage.jobs().sync_weights() == 7
    assert stage.said == ["take 0", "take 1", "give"]


def test_a_worker_that_is_back_in_time_takes_what_the_dead_one_was_to_take(stage: Stage) -> None:
    """The actor still waits for it."""
    stage.taking = {0: [Call("a", [7])], 1: [stage.dies(), Call("b", [7])]}
    stage.giving = [Call("g", [7], lambda: stage.said.count("take 1") == 2)]
    jobs = stage.jobs()
    jobs.start(JOB)
    stage.said.clear()
    assert jobs.sync_weights() == 7
    assert stage.said == ["take 0", "take 1", "give", "init 1", "take 1", "write 1"], "it writes with the new weights"
    assert jobs.restarted == 1
    assert not jobs.rebuild_restarted(), "it was taken in already"


def test_a_worker_that_is_back_too_late_is_given_weights_of_its_own(stage: Stage) -> None:
    stage.taking = {0: [Call("a", [7])], 1: [stage.dies(), Call("b", [7], lambda: "give [1]" in stage.said)]}
    stage.giving = [Call("g", [7]), Call("h", [7])]
    assert stage.jobs().sync_weights() == 7
    assert stage.said == ["take 0", "take 1", "give", "init 1", "take 1", "give [1]"]


def test_if_the_actor_does_not_outlive_it_the_death_is_what_is_raised(stage: Stage) -> None:
    stage.taking = {0: [Call("a", [7], lambda: False)], 1: [stage.dies(), Call("b", [7], lambda: False)]}
    stage.giving = [Call("actor[0].sync_model_to_rollout()", [7], lambda: False)]
    with pytest.raises(WorkerError, match=r"rollout\[1\] failed in sync_model_from_actor\(\): its process died") as caught:
        stage.jobs().sync_weights()
    assert any("actor[0].sync_model_to_rollout()" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("who", ["rollout", "actor"])
def test_an_error_that_is_no_death_is_raised_as_it_is(stage: Stage, who: str) -> None:
    stage.taking = {0: [Call("a", [7])], 1: [Call("b", WorkerError(who, 1, "x", "they differ"))]}
    stage.giving = [Call("g", [7])]
    with pytest.raises(WorkerError, match="they differ"):
        stage.jobs().sync_weights()
    assert "init 1" not in stage.said


def test_weights_of_another_version_are_noticed(stage: Stage) -> None:
    stage.taking = {0: [Call("a", [7])], 1: [Call("b", [5])]}
    stage.giving = [Call("g", [7])]
    with pytest.raises(RLinfError, match=r"rollout\[1\]: took version 5 of the weights where 7 was given"):
        stage.jobs().sync_weights()


def test_a_worker_that_died_between_two_jobs_is_taken_in_first(stage: Stage) -> None:
    stage.taking = {0: [Call("a", [7])], 1: [Call("b", [7]), Call("c", [7])]}
    stage.giving = [Call("g", [7]), Call("h", [7])]
    jobs = stage.jobs()
    stage.restarts[1] = 1
    assert jobs.sync_weights() == 7
    assert stage.said == ["init 1", "take 1", "give [1]", "take 0", "take 1", "give"]


def test_what_has_landed_is_not_written_again(stage: Stage) -> None:
    stage.taking = {0: [], 1: [Call("b", [7])]}
    stage.giving = [Call("g", [7])]
    jobs = stage.jobs()
    first, _ = jobs.start(JOB), jobs.start(JOB)
    results: Any = jobs.finish(first)
    assert (results.reports, results.generated) == (["report"], ["written", "written"])
    stage.said.clear()
    stage.restarts[1] = 1
    assert jobs.rebuild_restarted()
    assert stage.said == ["init 1", "take 1", "give [1]", "write 1"], "the job that is under way"
