"""Makes the experience of each iteration: sends problems ahead, draws more where groups are dropped, and says what to train on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf.core.errors import RLinfError
from rlinf.runners.reasoning.generation.admission import GroupReport, Response, admit, wave_size
from rlinf.runners.reasoning.generation.jobs import GenerationJobs, JobResult
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, ProblemSource, PromptGroup
from rlinf.runners.reasoning.generation.running import GenerationJob
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.training.versions import Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What an iteration trains on."""

    admitted: tuple[int, ...]
    """The groups, ascending."""
    reports: list[GroupReport]
    """All groups that were finished, those that were dropped too."""
    scalars: dict[str, float]
    """`rollout/…`."""

    @property
    def tokens(self) -> dict[int, int]:
        """How many each group that is trained on has."""
        return {report.group: report.tokens for report in self.reports if report.group in self.admitted}


class Generation:
    """Runs at most `max_lag` iterations ahead of training.

    Args:
        cfg: the configuration of the run.
        jobs: the way to the workers.
        source: where problems come from.
        versions: the weights that the rollout was given.
        actors: how many actor ranks want a group each, at least.
    """

    def __init__(self, cfg: ReasoningConfig, jobs: GenerationJobs, source: ProblemSource, versions: Versions, actors: int) -> None:
        self._cfg, self._jobs, self._source, self._versions, self._actors = cfg, jobs, source, versions, actors
        self._ahead: dict[int, GenerationJob] = {}
        self._discarded = 0

    def run_ahead(self, step: int) -> None:
        """Begins what iteration `step` trains on, and the next `max_lag` ones, as far as they are not under way."""
        last = min(step + self._cfg.rollout.max_lag, self._cfg.runner.max_steps - 1)
        for later in range(step, last + 1):
            if later not in self._ahead:
                self._ahead[later] = self._begin(later, 0, self._cfg.data.rollout_batch_size, updates=later - step)

    def collect(self, step: int) -> Experience:
        """Waits for what iteration `step` trains on; draws again where groups were dropped.

        Raises:
            RLinfError: nothing can be trained on.
        """
        config, dynamic = self._cfg, self._cfg.algorithm.dynamic_sampling
        # Without dynamic sampling only stale groups are refused, and a second wave is written with the newest weights.
        needed, waves = config.data.rollout_batch_size, dynamic.max_waves if dynamic else 2
        results = [self._finish(self._ahead.pop(step))]
        while True:
            reports = [report for part in results for report in part.reports]
            limit = config.rollout.admitted_lag
            chosen = admit(reports, self._versions, max_lag=limit, needed=needed, must_vary=dynamic is not None)
            if len(chosen.admitted) >= needed or len(results) >= waves:
                break
            size = wave_size(needed, len(chosen.admitted), len(reports), batch=needed)
            results.append(self._finish(self._begin(step, len(results), size)))
        admitted = self._enough(chosen.admitted, reports)
        scalars = {
            **self._described(reports),
            "rollout/groups_drawn": float(len(reports)),
            "rollout/groups_trained": float(len(admitted)),
            "rollout/groups_stale": float(chosen.stale),
            "rollout/groups_alike": float(chosen.alike),
            "rollout/groups_aborted": float(sum(len(g.aborted) for part in results for g in part.generated)),
            "rollout/groups_moved": float(sum(part.moved for part in results)),
            "rollout/tokens": float(sum(g.tokens for part in results for g in part.generated)),
            "rollout/resumed_tokens": float(sum(g.resumed for part in results for g in part.generated)),
            "rollout/discarded_tokens": float(self._discarded),
            **self._jobs.scalars,
        }
        self._discarded = 0
        return Experience(admitted=admitted, reports=reports, scalars=scalars)

    def state(self) -> dict[str, Any]:
        """Where the source of problems is, as if nothing had been sent ahead."""
        jobs = [self._ahead[step] for step in sorted(self._ahead)]
        return self._source.state([prompt_group for running in jobs for prompt_group in running.job.prompt_groups])

    def _begin(self, step: int, wave: int, needed: int, updates: int = 0) -> GenerationJob:
        """Draws groups that are trained on after so many further updates, and has them written."""
        config = self._cfg
        drawn = self._source.draw(math.ceil(needed * config.rollout.oversample))
        prompt_groups = [self._fresh(prompt_group, updates) for prompt_group in drawn]
        job = JobSpec(
            key=f"train/{step}/{wave}",
            split="train",
            prompt_groups=tuple(prompt_groups),
            needed=needed,
            samples=config.rollout.group_size,
            sampling=config.rollout.sampling_params,
            # `runner.transcripts` counts problems of an iteration, not of a wave.
            shown=config.runner.transcripts if wave == 0 else 0,
            baseline=config.compares_with_greedy,
        )
        return self._jobs.start(job)

    def _fresh(self, prompt_group: PromptGroup, updates: int) -> PromptGroup:
        """The group, begun anew if what was written of it would be too old to be trained on.

        Or is of another number of members: a run that goes on may have another advantage, or larger groups.
        """
        rollout, oldest = self._cfg.rollout, prompt_group.oldest
        fits = len(prompt_group.partial) in (0, rollout.group_size + self._cfg.compares_with_greedy)
        if fits and (oldest is None or self._versions.lag(oldest) + updates <= rollout.admitted_lag):
            return prompt_group
        self._discarded += prompt_group.written
        return prompt_group.anew()

    def _finish(self, running: GenerationJob) -> JobResult:
        results = self._jobs.finish(running)
        self._source.give_back([prompt_group for generated in results.generated for prompt_group in generated.aborted])
        self._discarded += sum(generated.lost for generated in results.generated)
        return results

    def _enough(self, admitted: tuple[int, ...], reports: Sequence[GroupReport]) -> tuple[int, ...]:
        """The admitted groups, and so many without a difference that every actor rank has one: their advantages are 0."""
        limit = self._cfg.rollout.admitted_lag
        rest = sorted(r.group for r in reports if r.group not in admitted and self._versions.lag(r.oldest) <= limit)
        found = tuple(sorted([*admitted, *rest[: max(0, self._actors - len(admitted))]]))
        if len(found) < self._actors:
            problem = f"{len(found)} groups can be trained on, of {len(reports)} that were written, by {self._actors} actors"
            raise RLinfError("generate_rollouts", problem, "Raise rollout.max_lag or data.rollout_batch_size.")
        return found

    def _described(self, reports: Sequence[GroupReport]) -> dict[str, float]:
        responses = [response for report in reports for response in report.responses]
        count = max(1, len(responses))
        lags = [self._versions.lag(report.oldest) for report in reports]
        return {
            # An exact sum does not depend on the order in which groups arrive.
            **_spread("rollout/rewards", [r.reward for r in responses]),
            "rollout/accuracy": sum(r.success for r in responses) / count,
            "rollout/response_length": sum(r.tokens for r in responses) / count,
            "rollout/truncated": sum(r.finish == "length" for r in responses) / count,
            "rollout/lag": sum(lags) / max(1, len(lags)),
            "rollout/lag_max": float(max(lags, default=0)),
            **{f"rollout/{name}": math.fsum(r.measured[name] for r in responses) / count for name in _measured(responses)},
            **_parts(responses),
            **_baseline(reports),
        }


def _measured(responses: Sequence[Response]) -> Sequence[str]:
    """What is known of all of them, by name."""
    first = next(iter(responses), None)
    names = () if first is None else first.measured
    return sorted(name for name in names if all(name in response.measured for response in responses))


def _parts(responses: Sequence[Response]) -> Mapping[str, float]:
    """Each part of the reward, over the responses that it was asked about."""
    found: dict[str, float] = {}
    for name in sorted({name for response in responses for name in response.parts}):
        found |= _spread(f"rollout/reward/{name}", [r.parts[name] for r in responses if name in r.parts])
    return found


def _baseline(reports: Sequence[GroupReport]) -> Mapping[str, float]:
    """The mean of what groups are compared with, where they are compared with a response of their own."""
    found = [report.baseline for report in reports if report.baseline is not None]
    return {"rollout/baseline": math.fsum(found) / len(found)} if found else {}


def _spread(name: str, values: Sequence[float]) -> Mapping[str, float]:
    """Mean and standard deviation of the population; sums are exact, as above."""
    count = max(1, len(values))
    mean = math.fsum(values) / count
    return {name: mean, f"{name}_std": math.sqrt(math.fsum((value - mean) ** 2 for value in values) / count)}
