"""Makes the experience of each iteration: sends problems ahead, draws more where groups are dropped, and says what to train on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf.core.errors import RLinfError
from rlinf.runners.reasoning.generation.admission import GroupReport, Versions, admit, wave_size
from rlinf.runners.reasoning.generation.jobs import Flight, Flights, Landed
from rlinf.runners.reasoning.generation.prompt_groups import Job, Order, ProblemSource
from rlinf.runners.reasoning.schema import ReasoningConfig


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
        flights: the way to the workers.
        source: where problems come from.
        versions: the weights that the rollout was given.
        actors: how many actor ranks want a group each, at least.
    """

    def __init__(self, cfg: ReasoningConfig, flights: Flights, source: ProblemSource, versions: Versions, actors: int) -> None:
        self._cfg, self._flights, self._source, self._versions, self._actors = cfg, flights, source, versions, actors
        self._ahead: dict[int, Flight] = {}
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
        needed, waves = config.data.rollout_batch_size, dynamic.max_waves if dynamic else 2
        landed = [self._land(self._ahead.pop(step))]
        while True:
            reports = [report for part in landed for report in part.reports]
            limit = config.rollout.admitted_lag
            chosen = admit(reports, self._versions, max_lag=limit, needed=needed, must_vary=dynamic is not None)
            if len(chosen.admitted) >= needed or len(landed) >= waves:
                break
            size = wave_size(needed, len(chosen.admitted), len(reports), batch=needed)
            landed.append(self._land(self._begin(step, len(landed), size)))
        admitted = self._enough(chosen.admitted, reports)
        scalars = {
            **self._described(reports),
            "rollout/groups_drawn": float(len(reports)),
            "rollout/groups_trained": float(len(admitted)),
            "rollout/groups_stale": float(chosen.stale),
            "rollout/groups_alike": float(chosen.alike),
            "rollout/groups_aborted": float(sum(len(g.aborted) for part in landed for g in part.generated)),
            "rollout/tokens": float(sum(g.tokens for part in landed for g in part.generated)),
            "rollout/resumed_tokens": float(sum(g.resumed for part in landed for g in part.generated)),
            "rollout/discarded_tokens": float(self._discarded),
            "rollout/restarts": float(self._flights.restarted),
        }
        self._discarded = 0
        return Experience(admitted=admitted, reports=reports, scalars=scalars)

    def state(self) -> dict[str, Any]:
        """Where the source of problems is, as if nothing had been sent ahead."""
        flights = [self._ahead[step] for step in sorted(self._ahead)]
        return self._source.state([order for flight in flights for order in flight.job.orders])

    def _begin(self, step: int, wave: int, needed: int, updates: int = 0) -> Flight:
        """Draws groups that are trained on after so many further updates, and has them written."""
        config = self._cfg
        drawn = self._source.draw(math.ceil(needed * config.rollout.oversample))
        orders = [self._fresh(order, updates) for order in drawn]
        job = Job(
            key=f"train/{step}/{wave}",
            split="train",
            orders=tuple(orders),
            needed=needed,
            samples=config.rollout.group_size,
            sampling=config.rollout.sampling_params,
            shown=config.runner.transcripts if wave == 0 else 0,
        )
        return self._flights.start(job)

    def _fresh(self, order: Order, updates: int) -> Order:
        """The order, begun anew if what was written of it would be too old to be trained on."""
        if order.oldest is None or self._versions.lag(order.oldest) + updates <= self._cfg.rollout.admitted_lag:
            return order
        self._discarded += order.written
        return order.anew()

    def _land(self, flight: Flight) -> Landed:
        landed = self._flights.land(flight)
        self._source.give_back([order for generated in landed.generated for order in generated.aborted])
        return landed

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
            "rollout/rewards": math.fsum(r.reward for r in responses) / count,
            "rollout/accuracy": sum(r.success for r in responses) / count,
            "rollout/response_length": sum(r.tokens for r in responses) / count,
            "rollout/truncated": sum(r.finish == "length" for r in responses) / count,
            "rollout/lag": sum(lags) / max(1, len(lags)),
            "rollout/lag_max": float(max(lags, default=0)),
        }
