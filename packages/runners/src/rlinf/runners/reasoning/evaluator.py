"""Runs an evaluation: the first problems of the validation split, each answered and scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf.core.errors import ConfigError
from rlinf.runners.reasoning.evaluation import reasoning_protocol, summarise
from rlinf.runners.reasoning.generation.admission import GroupReport
from rlinf.runners.reasoning.generation.jobs import GenerationJobs
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.schema import ReasoningConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The result of an evaluation."""

    scalars: dict[str, float]
    """`eval/…`."""
    reports: list[GroupReport]
    """Each problem with what was answered."""


class ReasoningEvaluator:
    """Evaluates the weights that the rollout workers hold.

    Args:
        cfg: the configuration of the run.
        jobs: the way to the workers.

    Raises:
        ConfigError: there are fewer validation problems than are asked for.
    """

    def __init__(self, cfg: ReasoningConfig, jobs: GenerationJobs) -> None:
        self._cfg, self._jobs = cfg, jobs
        self._runs = 0
        self._numbers: Sequence[int] | None = None
        available = len(cfg.data.task.problems("validation"))
        for name, asked in (("val_problems", cfg.data.val_problems), ("final_problems", cfg.data.final_problems)):
            if asked is not None and asked > available:
                problem = f"{asked} validation problems are asked for, and task '{cfg.data.type}' has {available}"
                raise ConfigError(f"data.{name}", problem, f"Use at most {available}.")

    def keep(self, numbers: Sequence[int]) -> None:
        """Asks only these problems from now on."""
        self._numbers = numbers

    def run(self, problems: int) -> Evaluated:
        """Has the first `problems` problems answered, of those that are kept."""
        self._runs += 1
        job = JobSpec(
            key=f"eval/{self._runs}",
            split="validation",
            prompt_groups=tuple(PromptGroup(group=number, problem=number) for number in self._asked(problems)),
            needed=problems,
            samples=self._cfg.eval.samples,
            sampling=self._cfg.eval_sampling,
            shown=problems,
        )
        reports = sorted(self._jobs.finish(self._jobs.start(job)).reports, key=_number)
        return Evaluated(scalars=summarise(reports, self._cfg.eval.pass_k), reports=reports)

    def protocol(self, problems: int) -> dict[str, Any]:
        """Everything that the accuracy of `run(problems)` depends on beside the weights; see `reasoning_protocol`."""
        return reasoning_protocol(self._cfg, self._asked(problems))

    def _asked(self, problems: int) -> Sequence[int]:
        return range(problems) if self._numbers is None else self._numbers[:problems]


def _number(report: GroupReport) -> int:
    return report.group
