"""Jobs that are under way on the rollout workers, and what happens when one of those dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from rlinf.core.errors import DeadlineExceeded, WorkerError
from rlinf.core.futures import Future, gather
from rlinf.runners.reasoning.admission import GroupReport
from rlinf.runners.reasoning.crew import Crew
from rlinf.runners.reasoning.orders import Job
from rlinf.runners.reasoning.rollout_worker import Generated
from rlinf.runners.reasoning.wiring import Lines, ReasoningWiring


@dataclass(frozen=True, slots=True)
class Flight:
    """A job on its way."""

    job: Job
    handles: list[Future[list[Any]]]
    """One for each rollout worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """What a job came to."""

    reports: list[GroupReport]
    """The groups that are finished."""
    generated: list[Generated]
    """What each rollout worker says."""


class Flights:
    """Starts jobs, and waits for them.

    A rollout worker whose process was started again is built anew, gets the actor's weights, and its share of every job that is
    under way once more; groups that it had finished before are scored only once.

    Args:
        crew: initialised by the caller.
        wiring: what they know of each other.
        lines: their channels.
        timeout_s: seconds that a phase may take.
    """

    def __init__(self, crew: Crew, wiring: ReasoningWiring, lines: Lines, timeout_s: float) -> None:
        self._crew, self._wiring, self._lines, self._timeout_s = crew, wiring, lines, timeout_s
        self._under_way: list[Flight] = []
        self._restarts = self._counted()
        self.restarted = 0
        """How many processes were started again so far."""

    def start(self, job: Job) -> Flight:
        """Sends a job to all rollout workers."""
        ranks = range(self._crew.rollout.world_size)
        flight = Flight(job, [self._written(job, rank) for rank in ranks])
        self._under_way.append(flight)
        return flight

    def land(self, flight: Flight) -> Landed:
        """Has a job scored as it is written, and waits for its end."""
        scoring = self._crew.reward.compute_rewards(flight.job.told_to(None, 1), self._lines)
        asking = self._asking(flight.job)
        while True:
            try:
                scored, *rest = gather(scoring, *flight.handles, *asking, timeout=self._timeout_s)
                break
            except WorkerError as error:
                if error.group != self._crew.rollout.name or not self.revive():
                    raise
        self._under_way.remove(flight)
        generated = [cast("Generated", found[0]) for found in rest[: len(flight.handles)]]
        return Landed(reports=[report for reports in scored for report in reports], generated=generated)

    def revive(self) -> bool:
        """Takes in the rollout workers that were started again since the last look; says whether there were any.

        Without an actor nobody has weights for them.
        """
        now = self._counted()
        ranks = [rank for rank, (before, count) in enumerate(zip(self._restarts, now, strict=True)) if count != before]
        self._restarts = now
        if self._crew.actor is None:
            return False
        for rank in ranks:
            self.restarted += 1
            worker = self._crew.rollout.execute_on(rank)
            self._wait(worker.init_worker(self._wiring))
            self._wait(worker.sync_model_from_actor(), self._crew.actor.sync_model_to_rollout([rank]))
            for flight in self._under_way:
                _settle(flight.handles[rank])
                flight.handles[rank] = self._written(flight.job, rank)
        return bool(ranks)

    def _written(self, job: Job, rank: int) -> Future[list[Any]]:
        """The share of a job that one rollout worker writes."""
        rollout = self._crew.rollout
        return rollout.execute_on(rank).generate(job.told_to(rank, rollout.world_size), self._lines)

    def _asking(self, job: Job) -> Sequence[Future[list[Any]]]:
        inference = self._crew.inference
        if inference is None or job.split != "train":
            return ()
        askers = [self._wiring.inference_rank(rank) for rank in range(self._wiring.reward_ranks)]
        ranks = range(inference.world_size)
        return [inference.execute_on(rank).compute_references(self._lines, askers.count(rank)) for rank in ranks]

    def _counted(self) -> tuple[int, ...]:
        group: Any = self._crew.rollout
        return tuple(group.restarts)

    def _wait(self, *handles: Future[Any]) -> list[Any]:
        return gather(*handles, timeout=self._timeout_s)


def _settle(handle: Future[Any]) -> None:
    """Hears what became of a call that a dead process can't answer, so that nobody else is told of it."""
    try:
        handle.wait(timeout=0.0)
    except (WorkerError, DeadlineExceeded):
        return
