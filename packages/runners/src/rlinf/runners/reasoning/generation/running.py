"""A job that is running, and how workers that have drained get work of those that have not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf.core.cluster.futures import Future
from rlinf.core.cluster.handover import Handover, HandoverPolicy, Load
from rlinf.core.errors import DeadlineExceeded, WorkerError
from rlinf.core.protocols import WorkerGroup
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec
from rlinf.runners.reasoning.topology import Channels

if TYPE_CHECKING:
    from rlinf.runners.reasoning.generation.rollout import LanguageRolloutWorker

LOOK_S = 0.05
"""How often it is looked whether a worker has drained."""


@dataclass(slots=True)
class Moved:
    """Groups that one rollout worker has handed over to another."""

    rank: int
    """Who writes them now."""
    job: JobSpec
    handle: Future[list[Any]]


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """A job that is running."""

    job: JobSpec
    """What was asked."""
    handles: list[Future[list[Any]]]
    """One for each rollout worker."""
    serving: Sequence[Future[list[Any]]] = ()
    """One for each tool worker."""
    moved: list[Moved] = field(default_factory=list[Moved])
    """What was handed over to rollout workers that had drained."""

    def tail(self, rank: int) -> Future[list[Any]]:
        """The last call of a rollout worker."""
        return next((moved.handle for moved in reversed(self.moved) if moved.rank == rank), self.handles[rank])

    @property
    def writing(self) -> list[Future[list[Any]]]:
        """All calls."""
        return [*self.handles, *(moved.handle for moved in self.moved)]


def even_out(
    running: GenerationJob,
    policy: HandoverPolicy,
    rollout: WorkerGroup[LanguageRolloutWorker],
    channels: Channels,
    scoring: Future[Any],
    timeout_s: float,
) -> None:
    """Until all of a job is written, lets workers that have drained take over groups of others, as a policy says.

    Returns early where something has failed, or takes too long: whoever waits for the job next learns of it.

    Args:
        running: the job.
        policy: who decides.
        rollout: its workers.
        channels: those of the job.
        scoring: the call that scores it.
        timeout_s: seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not scoring.done() and time.monotonic() < deadline:
        left = [call for call in running.writing if not call.done()]
        if not left:
            return
        try:
            if any(running.tail(rank).done() for rank in range(rollout.world_size)):
                _hand_over(running, policy, rollout, channels)
            with suppress(DeadlineExceeded):
                # Any of them will do, as it is only waited for until the next look.
                left[0].wait(timeout=LOOK_S)
        except WorkerError:
            return


def _hand_over(
    running: GenerationJob, policy: HandoverPolicy, rollout: WorkerGroup[LanguageRolloutWorker], channels: Channels
) -> None:
    move = policy.next_handover([_load(running, rollout, rank) for rank in range(rollout.world_size)])
    if move is None:
        return
    began, (groups,) = time.monotonic(), rollout.execute_on(move.giver).hand_over(running.job.key, move.items).wait()
    policy.took(time.monotonic() - began)
    if groups:
        job = running.job.handed_over(groups, _origin(running, move))
        running.moved.append(Moved(rank=move.taker, job=job, handle=rollout.execute_on(move.taker).generate(job, channels)))


def _load(running: GenerationJob, rollout: WorkerGroup[LanguageRolloutWorker], rank: int) -> Load:
    call = running.tail(rank)
    if call.done():
        call.wait()  # raises what it failed with
        return Load(rank=rank, items=0)
    ((items, seconds),) = rollout.execute_on(rank).under_way(running.job.key).wait()
    # A worker that is busy with what can't move has not drained.
    return Load(rank=rank, items=max(1, items), since_s=seconds)


def _origin(running: GenerationJob, move: Handover) -> int:
    """Whose share the groups were at first, so that the reward worker that expects them gets them."""
    taken = [moved for moved in running.moved if moved.rank == move.giver]
    origin = taken[-1].job.origin if taken else None
    return move.giver if origin is None else origin
