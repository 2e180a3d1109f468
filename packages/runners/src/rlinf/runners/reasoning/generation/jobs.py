"""Jobs that run on the rollout workers, their weights, and what happens when a worker's process ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rlinf.core.cluster.futures import Future, gather
from rlinf.core.cluster.handover import HandoverPolicy
from rlinf.core.errors import DeadlineExceeded, RLinfError, WorkerError
from rlinf.runners.reasoning.generation.admission import GroupReport
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec
from rlinf.runners.reasoning.generation.running import GenerationJob, even_out
from rlinf.runners.reasoning.generation.worker_groups import WorkerGroups
from rlinf.runners.reasoning.topology import Channels, ReasoningTopology, queue_name
from rlinf.runners.reporting.phases import Phases, failed

if TYPE_CHECKING:
    from rlinf.runners.reasoning.generation.rollout import Generated

REST_S = 30.0
"""How long the rest of a synchronisation may take in which a rollout worker was restarted."""
LATE_S = 5.0
"""How long weights may take to arrive that were sent already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a job came to."""

    reports: list[GroupReport]
    """The groups that are finished."""
    generated: list[Generated]
    """What each rollout worker says, of its own share and of what it took over."""
    moved: int = 0
    """How many groups were handed over."""


class GenerationJobs:
    """Starts jobs, and waits for them.

    A rollout worker whose process was started again is built anew, gets the actor's weights, and its share of every job that is
    under way once more; groups that it had finished before are scored only once.

    Args:
        groups: initialised by the caller.
        topology: what they know of each other.
        channels: those between them.
        timeout_s: seconds that a phase may take.
        handover: who decides which groups go from a worker to another while they are written; None: they stay.
    """

    def __init__(
        self,
        groups: WorkerGroups,
        topology: ReasoningTopology,
        channels: Channels,
        timeout_s: float,
        handover: HandoverPolicy | None = None,
    ) -> None:
        self._handover = handover
        self._groups, self._topology, self._channels, self._timeout_s = groups, topology, channels, timeout_s
        self._phases = Phases(timeout_s)
        self._under_way: list[GenerationJob] = []
        self._restarts = self._counted()
        self.restarted = 0
        """How many processes of rollout workers were started again so far."""

    def start(self, job: JobSpec) -> GenerationJob:
        """Sends a job to all rollout workers."""
        ranks = range(self._groups.rollout.world_size)
        serving = self._serving(job)
        running = GenerationJob(job, [self._written(job, rank) for rank in ranks], serving)
        self._under_way.append(running)
        return running

    def finish(self, running: GenerationJob) -> JobResult:
        """Has a job scored as it is written, and waits for its end."""
        scoring = self._groups.reward.compute_rewards(running.job.for_worker(None, 1), self._channels)
        asking = self._asking(running.job)
        while True:
            try:
                if self._handover is not None:
                    even_out(running, self._handover, self._groups.rollout, self._channels, scoring, self._timeout_s)
                scored, *rest = self._phases.wait(scoring, *running.writing, *asking, beside=running.serving)
                break
            except WorkerError as error:
                # Where workers were rebuilt, `running.handles` holds new calls, which the next turn waits for.
                if error.group != self._groups.rollout.name or not self.rebuild_restarted():
                    raise
        self._stop_serving(running)
        self._under_way.remove(running)
        # A call on one rank returns a list of one.
        generated = [cast("Generated", found[0]) for found in rest[: len(running.writing)]]
        moved = sum(len(each.job.prompt_groups) for each in running.moved)
        return JobResult(reports=[report for reports in scored for report in reports], generated=generated, moved=moved)

    @property
    def scalars(self) -> dict[str, float]:
        """How many processes were started again so far: of rollout workers, and of tool workers if there are any."""
        tools: Any = self._groups.tools
        found = {} if tools is None else {"rollout/tool_restarts": float(sum(tools.restarts))}
        return {"rollout/restarts": float(self.restarted), **found}

    def sync_weights(self) -> int:
        """Gives all rollout workers the actor's weights, also those that are restarted meanwhile; returns their version.

        Raises:
            WorkerError: a worker failed, and the others could not finish the synchronisation.
            RLinfError: a rollout worker took other weights than were given.
        """
        # A worker that was started again since can't take weights before `init_worker`.
        self.rebuild_restarted()
        actor, rollout = self._groups.actor, self._groups.rollout
        if actor is None:
            raise RLinfError("sync_weights", "there is no actor that could give weights", "Load a checkpoint.")
        taking = [rollout.execute_on(rank).sync_model_from_actor() for rank in range(rollout.world_size)]
        giving, back = actor.sync_model_to_rollout(), set[int]()
        while True:
            try:
                given, *taken = self._phases.wait(giving, *taking)
                break
            except WorkerError as error:
                ranks = self._restarted() if error.group == rollout.name else []
                if not ranks:
                    raise
                back.update(ranks)
                late = self._take_again(ranks, giving, taking, error)
                # Only to those for whom the send was over; the others have the weights.
                giving = actor.sync_model_to_rollout(late) if late else giving
        for rank in back:
            self._write_again(rank)
        for rank, (version,) in enumerate(taken):
            if version != given[0]:
                problem = f"took version {version} of the weights where {given[0]} was given"
                raise RLinfError(f"{rollout.name}[{rank}]", problem, "Start the run again from its last checkpoint.")
        return given[0]

    def rebuild_restarted(self) -> bool:
        """Rebuilds the rollout workers that were restarted since the last call; says whether there were any.

        Without an actor nobody has weights for them.
        """
        ranks = self._restarted()
        if self._groups.actor is None:
            return False
        for rank in ranks:
            self._rebuild(rank)
            taking = self._groups.rollout.execute_on(rank).sync_model_from_actor()
            self._phases.wait(taking, self._groups.actor.sync_model_to_rollout([rank]))
            # After the weights: a generator that was just built does not have those of the actor.
            self._write_again(rank)
        return bool(ranks)

    def _take_again(self, ranks: Sequence[int], giving: Future[Any], taking: list[Future[Any]], error: WorkerError) -> list[int]:
        """Lets workers that are back take part in a synchronisation under way; returns those for which it was over.

        Raises:
            WorkerError: the failure, if the others can't go on after it.
        """
        for rank in ranks:
            self._rebuild(rank)
            taking[rank] = self._groups.rollout.execute_on(rank).sync_model_from_actor()
        try:
            gather(giving, timeout=REST_S)
        except RLinfError as consequence:
            error.add_note(f"In consequence: {consequence}")
            raise error from consequence
        return [rank for rank in ranks if not _ends(taking[rank])]

    def _rebuild(self, rank: int) -> None:
        self.restarted += 1
        for running in self._under_way:
            # Looked at, so that a failure that is made up for is not reported as unhandled.
            for handle in [running.handles[rank], *(moved.handle for moved in running.moved if moved.rank == rank)]:
                failed(handle)
        self._phases.wait(self._groups.rollout.execute_on(rank).init_worker(self._topology))

    def _write_again(self, rank: int) -> None:
        for running in self._under_way:
            # What it had handed over is written twice then, and scored once.
            running.handles[rank] = self._written(running.job, rank)
            for moved in running.moved:
                if moved.rank == rank:
                    moved.handle = self._groups.rollout.execute_on(rank).generate(moved.job, self._channels)

    def _restarted(self) -> list[int]:
        """The rollout workers that were started again since this was asked last."""
        now = self._counted()
        ranks = [rank for rank, (before, count) in enumerate(zip(self._restarts, now, strict=True)) if count != before]
        self._restarts = now
        return ranks

    def _written(self, job: JobSpec, rank: int) -> Future[list[Any]]:
        """The share of a job that one rollout worker writes."""
        rollout = self._groups.rollout
        return rollout.execute_on(rank).generate(job.for_worker(rank, rollout.world_size), self._channels)

    def _serving(self, job: JobSpec) -> Sequence[Future[list[Any]]]:
        tools, rollouts = self._groups.tools, self._groups.rollout.world_size
        if tools is None:
            return ()
        return [tools.execute_on(rank).serve(job.key, rollouts, self._channels) for rank in range(tools.world_size)]

    def _stop_serving(self, running: GenerationJob) -> None:
        """Ends the calls of tool workers, when nobody asks any more."""
        for rank in range(len(running.serving)):
            self._channels.tool_calls.put(None, key=queue_name(running.job.key, rank))
        self._phases.wait(*running.serving)

    def _asking(self, job: JobSpec) -> Sequence[Future[list[Any]]]:
        inference = self._groups.inference
        if inference is None or job.split != "train":
            return ()
        askers = [self._topology.inference_rank(rank) for rank in range(self._topology.reward_ranks)]
        ranks = range(inference.world_size)
        return [inference.execute_on(rank).compute_references(self._channels, askers.count(rank)) for rank in ranks]

    def _counted(self) -> tuple[int, ...]:
        group: Any = self._groups.rollout
        return tuple(group.restarts)


def _ends(handle: Future[Any]) -> bool:
    """Whether a call ends soon; the caller that waits for it learns how."""
    try:
        handle.wait(timeout=LATE_S)
    except DeadlineExceeded:
        return False
    except WorkerError:
        return True
    return True
