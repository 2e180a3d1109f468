"""`LanguageRewardWorker`: decodes and scores what the rollout writes, keeps it, and delivers what was admitted to the actor.

completions ──► text ──► reward ──► report to the runner
     └──► rows ──► (reference log-probabilities from inference) ──► kept ──► deliver ──► actor
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, SupportsFloat, cast

from rlinf.core.errors import NonFiniteError, RLinfError
from rlinf.core.problems import Split, Tokenizer
from rlinf.core.protocols import Reward
from rlinf.core.registry import REWARDS
from rlinf.core.trajectory import Trajectory
from rlinf.core.worker import Worker
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.language import Problems, build_tokenizer
from rlinf.runners.reasoning.schema import OverlongConfig, ReasoningConfig
from rlinf.runners.reasoning.topology import Channels, ReasoningTopology, ReferenceRequest, Written, WrittenGroup, queue_name


@dataclass(frozen=True, slots=True)
class ScoringState:
    """What a worker scores with."""

    topology: ReasoningTopology
    tokenizer: Tokenizer
    problems: Problems
    penalty: Reward | None
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
    def rewards(self, members: Sequence[Written], scores: Sequence[float]) -> list[float]:
        """What each member is worth, from what the run's reward says of it."""

    @abstractmethod
    def response(self, member: Written, reward: float, score: float, text: str | None) -> Response:
        """What is reported of a member; without `text` its words are left out."""

    @abstractmethod
    def rows(self, prompt_group: PromptGroup, members: Sequence[Written], rewards: Sequence[float]) -> Trajectory[Any]:
        """What is trained on."""

    def init_worker(self, topology: ReasoningTopology) -> None:
        """Builds the tokenizer and the reward."""
        tokenizer = build_tokenizer(self.cfg)
        penalty = _penalty(self.cfg.reward.overlong)
        self._state = ScoringState(topology, tokenizer, Problems(self.cfg, tokenizer), penalty)

    def compute_rewards(self, job: JobSpec, channels: Channels) -> list[GroupReport]:
        """Scores this worker's share of a job as it is written; each group once, however often it arrives.

        Args:
            job: what the rollout workers were asked for.
            channels: where completions come from, and the way to inference.
        """
        state = self._ready()
        expected = sum(job.share(rank, state.topology.rollout_ranks)[1] for rank in state.topology.scored_by(self.rank))
        asks = state.topology.inference_ranks > 0 and job.split == "train"
        reports: dict[int, GroupReport] = {}
        while len(reports) < expected:
            with self.worker_timer("wait_for_completions"):
                written = cast("WrittenGroup", channels.completions.get(key=queue_name(job.key, self.rank)))
            # A rollout worker that was started again writes all of its share once more.
            if written.prompt_group.group in reports:
                continue
            with self.worker_timer("score"):
                report = self._score(job, written, with_text=written.prompt_group in job.prompt_groups[: job.shown])
            reports[report.group] = report
            if job.split == "train":
                self._keep(written, report, channels if asks else None)
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

    def _score(self, job: JobSpec, written: WrittenGroup, *, with_text: bool) -> GroupReport:
        state, prompt_group = self._ready(), written.prompt_group
        problem = state.problems.get(job.split, prompt_group.problem)
        stops = set(state.problems.stopped(job.sampling).stop_token_ids)
        texts = [self.scored_text(member, stops) for member in written.completions]
        scores = self._given(self.cfg.reward.reward(texts, [problem.answer] * len(texts)), texts, job.split, prompt_group.problem)
        rewards = self.rewards(written.completions, scores)
        return GroupReport(
            group=prompt_group.group,
            problem=prompt_group.problem,
            responses=tuple(
                self.response(member, reward, score, text if with_text else None)
                for reward, score, member, text in zip(rewards, scores, written.completions, texts, strict=True)
            ),
            oldest=min((c.oldest for c in written.completions if c.oldest is not None), default=None),
            prompt=state.problems.text(job.split, prompt_group.problem) if with_text else None,
            answer=problem.answer if with_text else "",
        )

    def _given(self, scores: object, texts: Sequence[str], split: Split, problem: int) -> Sequence[float]:
        """The scores, if there is a number for each response."""
        place, name = f"reward[{self.rank}]", self.cfg.reward.reward_type
        where = self._ready().problems.name(split, problem)
        wanted = f"expected one score of reward '{name}' for each of {len(texts)} responses to {where}"
        if isinstance(scores, str) or not isinstance(scores, Sized) or not isinstance(scores, Iterable):
            raise RLinfError(place, f"{wanted}, found {scores!r:.80}", "Return a list as long as the list of completions.")
        if len(scores) != len(texts):
            raise RLinfError(place, f"{wanted}, found {len(scores)}", "Return a list as long as the list of completions.")
        given: list[float] = []
        for score, text in zip(cast("Iterable[Any]", scores), texts, strict=True):
            if not isinstance(score, SupportsFloat):
                raise RLinfError(place, f"{wanted}, found {score!r:.80}", "Return numbers.")
            given.append(float(score))
            if not math.isfinite(given[-1]):
                found = f"expected a finite score of reward '{name}' for {where}, found {score}; the response is {text[:80]!r}"
                raise NonFiniteError(place, found, "Mend the reward: no number can be trained on.")
        return given

    def shaped(self, scores: Sequence[float], members: Sequence[Written]) -> list[float]:
        """Scores with the penalty of length, if there is one."""
        overlong, penalty = self.cfg.reward.overlong, self._ready().penalty
        if overlong is None or penalty is None:
            return [float(score) for score in scores]
        taken = penalty(["t " * len(member) for member in members], [""] * len(members))
        return [score + overlong.weight * minus for score, minus in zip(scores, taken, strict=True)]

    def _keep(self, written: WrittenGroup, report: GroupReport, channels: Channels | None) -> None:
        state = self._ready()
        prompt_group = written.prompt_group
        rewards = [response.reward for response in report.responses]
        rows = self.rows(prompt_group, written.completions, rewards)
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
