"""Runs an evaluation: the first problems of the validation split, each answered and scored."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.core.errors import ConfigError
from rlinf.runners.reasoning.admission import GroupReport
from rlinf.runners.reasoning.evaluation import summarise
from rlinf.runners.reasoning.flights import Flights
from rlinf.runners.reasoning.orders import Job, Order
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
        flights: the way to the workers.

    Raises:
        ConfigError: there are fewer validation problems than are asked for.
    """

    def __init__(self, cfg: ReasoningConfig, flights: Flights) -> None:
        self._cfg, self._flights = cfg, flights
        self._runs = 0
        available = len(cfg.data.task.problems("validation"))
        for name, asked in (("val_problems", cfg.data.val_problems), ("final_problems", cfg.data.final_problems)):
            if asked is not None and asked > available:
                problem = f"{asked} validation problems are asked for, and task '{cfg.data.type}' has {available}"
                raise ConfigError(f"data.{name}", problem, f"Use at most {available}.")

    def run(self, problems: int) -> Evaluated:
        """Has the first `problems` problems answered."""
        self._runs += 1
        job = Job(
            key=f"eval/{self._runs}",
            split="validation",
            orders=tuple(Order(group=number, problem=number) for number in range(problems)),
            needed=problems,
            samples=self._cfg.eval.samples,
            sampling=self._cfg.eval_sampling,
            shown=problems,
        )
        reports = sorted(self._flights.land(self._flights.start(job)).reports, key=_number)
        return Evaluated(scalars=summarise(reports, self._cfg.eval.pass_k), reports=reports)


def _number(report: GroupReport) -> int:
    return report.group
