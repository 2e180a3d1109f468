"""`RewardWorker`: decodes and scores what the rollout writes, keeps it, and delivers what was admitted to the actor.

completions ──► text ──► reward ──► report to the runner
     └──► rows ──► (reference log-probabilities from inference) ──► kept ──► deliver ──► actor
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, SupportsFloat, cast

from rlinf.core.data import Completion
from rlinf.core.errors import NonFiniteError, RLinfError
from rlinf.core.problems import Split, Tokenizer
from rlinf.core.protocols import Reward
from rlinf.core.registry import REWARDS
from rlinf.core.trajectory import Trajectory
from rlinf.core.worker import Worker
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.generation.prompt_groups import Job
from rlinf.runners.reasoning.language import Problems, build_tokenizer
from rlinf.runners.reasoning.rows import group_rows
from rlinf.runners.reasoning.schema import OverlongConfig, ReasoningConfig
from rlinf.runners.reasoning.topology import Lines, Question, ReasoningWiring, Written, line


@dataclass(frozen=True, slots=True)
class _Desk:
    wiring: ReasoningWiring
    tokenizer: Tokenizer
    problems: Problems
    penalty: Reward | None
    kept: dict[int, Trajectory[Any]] = field(default_factory=dict[int, Trajectory[Any]])


class RewardWorker(Worker):
    """Scores its share of the groups."""

    def __init__(self, cfg: ReasoningConfig) -> None:
        self.cfg = cfg
        self._desk: _Desk | None = None

    def init_worker(self, wiring: ReasoningWiring) -> None:
        """Builds the tokenizer and the reward."""
        tokenizer = build_tokenizer(self.cfg)
        penalty = _penalty(self.cfg.reward.overlong)
        self._desk = _Desk(wiring, tokenizer, Problems(self.cfg, tokenizer), penalty)

    def compute_rewards(self, job: Job, lines: Lines) -> list[GroupReport]:
        """Scores this worker's share of a job as it is written; each group once, however often it arrives.

        Args:
            job: what the rollout workers were asked for.
            lines: where completions come from, and the way to inference.
        """
        desk = self._ready()
        expected = sum(job.share(rank, desk.wiring.rollout_ranks)[1] for rank in desk.wiring.scored_by(self.rank))
        asks = desk.wiring.inference_ranks > 0 and job.split == "train"
        reports: dict[int, GroupReport] = {}
        while len(reports) < expected:
            with self.worker_timer("wait_for_completions"):
                written = cast("Written", lines.completions.get(key=line(job.key, self.rank)))
            if written.order.group in reports:
                continue
            with self.worker_timer("score"):
                report = self._score(job, written, with_text=written.order in job.orders[: job.shown])
            reports[report.group] = report
            if job.split == "train":
                self._keep(written, report, lines if asks else None)
        if asks:
            self._hear(lines, list(reports))
            lines.questions.put(None, key=desk.wiring.inference_rank(self.rank))
        return list(reports.values())

    def deliver(self, assignment: Mapping[int, int], lines: Lines) -> None:
        """Sends the groups that were admitted to the actor ranks that train on them, and forgets all others.

        Args:
            assignment: the share of each admitted group.
            lines: `trajectories` takes one item for each actor rank.
        """
        desk = self._ready()
        for actor in range(desk.wiring.actor_ranks):
            own = [desk.kept[group] for group in sorted(desk.kept) if assignment.get(group) == desk.wiring.share(actor)]
            lines.trajectories.put((self.rank, Trajectory.concat(own) if own else None), key=actor)
        desk.kept.clear()

    def _score(self, job: Job, written: Written, *, with_text: bool) -> GroupReport:
        desk, order = self._ready(), written.order
        problem = desk.problems.get(job.split, order.problem)
        stops = set(desk.problems.stopped(job.sampling).stop_token_ids)
        texts = [desk.tokenizer.decode(_said(c, stops), skip_special_tokens=True) for c in written.completions]
        scores = self._given(self.cfg.reward.reward(texts, [problem.answer] * len(texts)), texts, job.split, order.problem)
        rewards = self._shaped(scores, written.completions)
        return GroupReport(
            group=order.group,
            problem=order.problem,
            responses=tuple(
                Response(
                    reward=reward,
                    success=score >= self.cfg.reward.success,
                    tokens=len(completion),
                    finish=completion.finish,
                    text=text if with_text else None,
                )
                for reward, score, completion, text in zip(rewards, scores, written.completions, texts, strict=True)
            ),
            oldest=min((c.oldest for c in written.completions if c.oldest is not None), default=None),
            prompt=desk.problems.text(job.split, order.problem) if with_text else None,
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

    def _shaped(self, scores: Sequence[float], completions: Sequence[Completion[Any]]) -> list[float]:
        """Scores with the penalty of length, if there is one."""
        overlong, penalty = self.cfg.reward.overlong, self._ready().penalty
        if overlong is None or penalty is None:
            return [float(score) for score in scores]
        taken = penalty(["t " * len(completion) for completion in completions], [""] * len(completions))
        return [score + overlong.weight * minus for score, minus in zip(scores, taken, strict=True)]

    def _keep(self, written: Written, report: GroupReport, lines: Lines | None) -> None:
        desk = self._ready()
        order = written.order
        rewards = [response.reward for response in report.responses]
        prompt = desk.problems.prompt("train", order.problem)
        pad = desk.tokenizer.pad_token_id
        rows = group_rows(prompt, written.completions, rewards, group=order.group, pad_id=pad)
        desk.kept[order.group] = rows
        if lines is not None:
            question = Question(reward_rank=self.rank, trajectory=rows)
            lines.questions.put(question, key=desk.wiring.inference_rank(self.rank))

    def _hear(self, lines: Lines, groups: Sequence[int]) -> None:
        """Takes the answers of inference to the questions about these groups."""
        desk = self._ready()
        for _ in groups:
            with self.worker_timer("wait_for_references"):
                group, reference = cast("tuple[int, Any]", lines.references.get(key=self.rank))
            desk.kept[group] = dataclasses.replace(desk.kept[group], reference=reference)

    def _ready(self) -> _Desk:
        if self._desk is None:
            raise RLinfError(f"reward[{self.rank}]", "is not ready yet", "Call init_worker(wiring) first.")
        return self._desk


def _penalty(overlong: OverlongConfig | None) -> Reward | None:
    """The registered penalty of length, for texts in which a word stands for a token."""
    if overlong is None:
        return None
    params = {"max_length": overlong.max_length, "cache": overlong.cache, "unit": "words"}
    return REWARDS.build("overlong", params, place="reward.overlong")


def _said(completion: Completion[Any], stops: set[int]) -> list[int]:
    """The tokens of a response without the one that ended it."""
    tokens = [int(token) for token in completion.tokens]
    return tokens[:-1] if tokens and tokens[-1] in stops else tokens
