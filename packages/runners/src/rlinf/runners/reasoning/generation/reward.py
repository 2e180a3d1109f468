"""`LanguageRewardWorker`: decodes and scores what the rollout writes, keeps it, and delivers what was admitted to the actor.

completions ──► text ──► reward ──► report to the runner
     └──► rows ──► (reference log-probabilities from inference) ──► kept ──► deliver ──► actor
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import numpy as np

from rlinf.core.data import Trajectory
from rlinf.core.errors import RLinfError
from rlinf.core.language.problems import Tokenizer
from rlinf.core.protocols import Reward
from rlinf.core.registry import REWARDS
from rlinf.core.rewards import RewardSample
from rlinf.core.worker import Worker
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.scores import GroupScores, Scorer
from rlinf.runners.reasoning.language import Problems, build_tokenizer
from rlinf.runners.reasoning.schema import OverlongConfig, ReasoningConfig
from rlinf.runners.reasoning.topology import Channels, ReasoningTopology, ReferenceRequest, Written, WrittenGroup, queue_name


@dataclass(frozen=True, slots=True)
class Pending:
    """A group that is being scored."""

    written: WrittenGroup
    texts: Sequence[str]
    scores: Future[GroupScores]


@dataclass(frozen=True, slots=True)
class ScoringState:
    """What a worker scores with."""

    topology: ReasoningTopology
    tokenizer: Tokenizer
    problems: Problems
    penalty: Reward | None
    scorer: Scorer
    kept: dict[int, Trajectory[Any]] = field(default_factory=dict[int, Trajectory[Any]])


class LanguageRewardWorker(Worker, ABC):
    """Scores its share of the groups, whatever a member of a group is.

    Args:
        cfg: the configuration of the run.
    """

    def __init__(self, cfg: ReasoningConfig) -> None:
        self.cfg = cfg
        self._state: ScoringState | None = None

    @abstractmethod
    def scored_text(self, member: Written, stops: set[int]) -> str:
        """What the reward is given of a member.

        Args:
            member: one of a group.
            stops: the tokens that end a response, which are no part of what it says.
        """

    @abstractmethod
    def sample(self, member: Written, given: RewardSample) -> RewardSample:
        """What a reward is told of a member that looks at more than its text.

        Args:
            member: one of a group.
            given: what is known of the problem, and the text that is scored.
        """

    @abstractmethod
    def rewards(self, members: Sequence[Written], scores: Sequence[float]) -> list[float]:
        """What each member is worth, from what the run's reward says of it."""

    @abstractmethod
    def response(self, member: Written, reward: float, score: float, text: str | None) -> Response:
        """What is reported of a member; `score` says whether it is right, and without `text` its words are left out."""

    @abstractmethod
    def rows(self, prompt_group: PromptGroup, members: Sequence[Written], rewards: Sequence[float]) -> Trajectory[Any]:
        """What is trained on."""

    def init_worker(self, topology: ReasoningTopology) -> None:
        """Builds the tokenizer and the reward."""
        tokenizer = build_tokenizer(self.cfg.actor.model, self.cfg.data.task)
        penalty = _penalty(self.cfg.reward.overlong)
        scorer = Scorer(self.cfg.reward, f"reward[{self.rank}]")
        self._state = ScoringState(topology, tokenizer, Problems(self.cfg, tokenizer), penalty, scorer)

    def compute_rewards(self, job: JobSpec, channels: Channels) -> list[GroupReport]:
        """Scores this worker's share of a job as it is written; each group once, however often it arrives.

        Args:
            job: what the rollout workers were asked for.
            channels: where completions come from, and the way to inference.
        """
        state = self._ready()
        # Also of groups that are handed over, as they come to the reward worker of the share that they were of at first.
        expected = sum(job.share(rank, state.topology.rollout_ranks)[1] for rank in state.topology.scored_by(self.rank))
        asks = state.topology.inference_ranks > 0 and job.split == "train"
        reports: dict[int, GroupReport] = {}
        pending: dict[int, Pending] = {}
        while len(reports) + len(pending) < expected:
            with self.worker_timer("wait_for_completions"):
                written = cast("WrittenGroup", channels.completions.get(key=queue_name(job.key, self.rank)))
            # A rollout worker that was started again writes all of its share once more.
            if written.prompt_group.group in (*reports, *pending):
                continue
            with self.worker_timer("score"):
                pending[written.prompt_group.group] = self._begin(job, written)
            self._collect(job, pending, reports, channels if asks else None, wait=False)
        self._collect(job, pending, reports, channels if asks else None, wait=True)
        if asks:
            self._receive_references(channels, list(reports))
            channels.reference_requests.put(None, key=state.topology.inference_rank(self.rank))
        return list(reports.values())

    def deliver(self, assignment: Mapping[int, int], channels: Channels) -> None:
        """Sends the groups that were admitted to the actor ranks that train on them, and forgets all others.

        Args:
            assignment: the share of each admitted group.
            channels: `trajectories` takes one item for each actor rank.
        """
        state = self._ready()
        # One item for each rank, empty or not, as each waits for one of every reward worker.
        for actor in range(state.topology.actor_ranks):
            own = [state.kept[group] for group in sorted(state.kept) if assignment.get(group) == state.topology.share(actor)]
            channels.trajectories.put((self.rank, Trajectory.concat(own) if own else None), key=actor)
        state.kept.clear()

    def _collect(
        self, job: JobSpec, pending: dict[int, Pending], reports: dict[int, GroupReport], channels: Channels | None, *, wait: bool
    ) -> None:
        """Takes over the groups whose scores are there; all of them if it waits."""
        for group, item in [entry for entry in pending.items() if wait or entry[1].scores.done()]:
            with self.worker_timer("wait_for_scores"):
                scores = self._ready().scorer.result(item.scores, len(pending))
            rewards = self.rewards(item.written.completions, scores.values)
            # Groups are equal whatever was written of them before, so that one that has gone on is found.
            with_text = item.written.prompt_group in job.prompt_groups[: job.shown]
            reports[group] = self._report(job, item, scores, rewards, with_text=with_text)
            del pending[group]
            if job.split == "train":
                self._keep(job, item.written, rewards, channels)

    def _begin(self, job: JobSpec, written: WrittenGroup) -> Pending:
        state, number = self._ready(), written.prompt_group.problem
        problem = state.problems.get(job.split, number)
        stops = set(state.problems.stopped(job.sampling).stop_token_ids)
        texts = [self.scored_text(member, stops) for member in written.completions]

        def samples() -> Sequence[RewardSample]:
            prompt, tokens = state.problems.text(job.split, number), state.problems.prompt(job.split, number).tokens
            given = RewardSample(
                text="", answer=problem.answer, prompt=prompt, asked=problem.prompt, prompt_tokens=tokens, row=problem.row
            )
            pairs = zip(written.completions, texts, strict=True)
            return [self.sample(member, dataclasses.replace(given, text=text)) for member, text in pairs]

        where = state.problems.name(job.split, number)
        return Pending(written, texts, state.scorer.begin(texts, problem.answer, where, samples))

    def _report(
        self, job: JobSpec, item: Pending, scores: GroupScores, rewards: Sequence[float], *, with_text: bool
    ) -> GroupReport:
        state, written, prompt_group = self._ready(), item.written, item.written.prompt_group
        part = self.cfg.reward.success_part
        decisive = scores.values if part is None else scores.parts[part]
        scored = zip(rewards, decisive, written.completions, item.texts, strict=True)
        responses = [
            self.response(member, reward, score, text if with_text else None)
            for reward, score, member, text in islice(scored, job.samples)
        ]
        return GroupReport(
            group=prompt_group.group,
            problem=prompt_group.problem,
            responses=tuple(
                response if response.failure else dataclasses.replace(response, parts=scores.of(row))
                for row, response in enumerate(responses)
            ),
            oldest=min((c.oldest for c in written.completions[: job.samples] if c.oldest is not None), default=None),
            prompt=state.problems.text(job.split, prompt_group.problem) if with_text else None,
            answer=state.problems.get(job.split, prompt_group.problem).answer if with_text else "",
            baseline=rewards[-1] if job.baseline else None,
        )

    def shaped(self, scores: Sequence[float], members: Sequence[Written]) -> list[float]:
        """Scores with the penalty of length, if there is one."""
        overlong, penalty = self.cfg.reward.overlong, self._ready().penalty
        if overlong is None or penalty is None:
            return [float(score) for score in scores]
        taken = penalty(["t " * len(member) for member in members], [""] * len(members))
        return [score + overlong.weight * minus for score, minus in zip(scores, taken, strict=True)]

    def _keep(self, job: JobSpec, written: WrittenGroup, rewards: Sequence[float], channels: Channels | None) -> None:
        state = self._ready()
        prompt_group = written.prompt_group
        rows = self.rows(prompt_group, written.completions[: job.samples], rewards[: job.samples])
        if job.baseline:
            rows = dataclasses.replace(rows, baseline=np.full(len(rows), rewards[-1], np.float32))
        state.kept[prompt_group.group] = rows
        if channels is not None:
            request = ReferenceRequest(reward_rank=self.rank, trajectory=rows)
            channels.reference_requests.put(request, key=state.topology.inference_rank(self.rank))

    def _receive_references(self, channels: Channels, groups: Sequence[int]) -> None:
        """Takes the answers of inference to the questions about these groups."""
        state = self._ready()
        for _ in groups:
            with self.worker_timer("wait_for_references"):
                group, reference = cast("tuple[int, Any]", channels.references.get(key=self.rank))
            state.kept[group] = dataclasses.replace(state.kept[group], reference=reference)

    @property
    def state(self) -> ScoringState:
        """What it scores with; there is one after `init_worker`."""
        return self._ready()

    def _ready(self) -> ScoringState:
        if self._state is None:
            raise RLinfError(f"reward[{self.rank}]", "is not ready yet", "Call init_worker(topology) first.")
        return self._state


def _penalty(overlong: OverlongConfig | None) -> Reward | None:
    """The registered penalty of length, for texts in which a word stands for a token."""
    if overlong is None:
        return None
    params = {"max_length": overlong.max_length, "cache": overlong.cache, "unit": "words"}
    return REWARDS.build("overlong", params, place="reward.overlong")
