"""Env workers whose processes were started again: they are built anew, and play what they had not finished."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf.core.cluster.futures import MOST_S, Future, gather
from rlinf.core.errors import WorkerError
from rlinf.core.protocols import WorkerGroup
from rlinf.runners.embodied.schema import PlayedConfig
from rlinf.runners.embodied.topology import Attempt, Channels, Request, Topology, request_queue
from rlinf.runners.reporting.phases import Phases, failed

if TYPE_CHECKING:
    from rlinf.runners.embodied.env_worker import EnvWorker
    from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker


class Parts:
    """Calls that together are one, of which some may be made again. Satisfies `Future`.

    Args:
        parts: each returns a list.
    """

    def __init__(self, *parts: Future[list[Any]]) -> None:
        self.parts = list(parts)

    @property
    def label(self) -> str:
        return self.parts[0].label

    def wait(self, timeout: float | None = None) -> list[Any]:
        """What all return, as one list."""
        return [one for found in gather(*self.parts, timeout=MOST_S if timeout is None else timeout) for one in found]

    def done(self) -> bool:
        """Whether all have ended, or one has failed."""
        ended = [part for part in self.parts if part.done()]
        # A failure ends the wait for all, whatever the others are doing.
        return len(ended) == len(self.parts) or any(map(failed, ended))

    def consume_durations(self) -> dict[str, float]:
        """Seconds by tag, of the slowest."""
        slowest: dict[str, float] = {}
        parts: list[Any] = self.parts
        for part in parts:
            for tag, seconds in part.consume_durations().items():
                slowest[tag] = max(seconds, slowest.get(tag, 0.0))
        return slowest


@dataclass(frozen=True, slots=True)
class Iteration:
    """One that is being played, or was and is not trained on yet."""

    env: Any
    """What `interact` returns, of each env worker; `Parts` of as many calls."""
    rollout: Any
    """What `generate` returns: `Parts` of the call of all, and of those that serve a share that is played once more."""
    again: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    """By env rank, which share is played once more."""

    @property
    def handles(self) -> list[Future[Any]]:
        """Both."""
        return [self.env, self.rollout]


class EnvRestarts:
    """Builds env workers anew whose processes were started again, and begins their shares of iterations once more.

    Args:
        cfg: the configuration of the run.
        rollout: the group that decides.
        env: the group that simulates.
        channels: those between them and the actor.
    """

    def __init__(
        self,
        cfg: PlayedConfig,
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
        channels: Channels,
    ) -> None:
        self._cfg, self._rollout, self._env, self._channels = cfg, rollout, env, channels
        # Not those of the run, whose waits end in a rebuilding themselves.
        self._phases = Phases(cfg.runner.timeout_s)
        self._topology: Topology | None = None
        # Those before the workers are built: one that dies once it was, while others still are, is seen.
        self._built = self._counted()
        """By env rank, how many restarts it has been built anew after."""
        self.dropped_episodes = 0
        """Episodes that were under way in environments when their process died, so far."""

    def connect(self, topology: Topology) -> None:
        """Says who the workers are, which have just been built."""
        self._topology = topology

    @property
    def count(self) -> int:
        """How many processes were started again since the workers were built."""
        return sum(self._built)

    def rebuild(self, iterations: Mapping[int, Iteration]) -> bool:
        """Rebuilds all that were started again since the last call; says whether there were any.

        Args:
            iterations: by number, those that have been begun and not handed over.

        Raises:
            WorkerError: one failed, and may not be started again.
        """
        some = False
        while self._topology is not None and (ranks := self._restarted()):
            for rank, restarts in ranks.items():
                try:
                    self._rebuild(self._topology, rank, restarts, iterations)
                except WorkerError:
                    # It may have died once more: then it is tried again.
                    if self._restarted().get(rank, restarts) == restarts:
                        raise
            some = True
        return some

    def _rebuild(self, topology: Topology, rank: int, restarts: int, iterations: Mapping[int, Iteration]) -> None:
        one: Any = self._env.execute_on(rank)
        self._build(one.init_worker(topology.slots["train"]), iterations)
        self._build(one.connect(topology, restarts), iterations)
        # Not before: one that dies while it is built counts as not built, and is built once more.
        self._built[rank] = restarts
        # What it had played to the end before it died is not played again.
        lost = {step: each for step, each in iterations.items() if failed(each.env.parts[rank])}
        for step, iteration in sorted(lost.items()):
            self._play_again(topology, step, iteration, Attempt(rank, restarts))
        dropped = 0
        if lost or self._cfg.env.train.auto_reset:
            # Each environment was in one, or about to begin one.
            dropped = sum(slot.num_envs for slot in topology.of_env(rank))
        self.dropped_episodes += dropped
        sys.stderr.write(f"{self._env.name}[{rank}] was built anew; {_what_follows(lost)}, and {dropped} episodes are dropped\n")

    def _build(self, call: Future[Any], iterations: Mapping[int, Iteration]) -> None:
        """Waits while a worker is built anew. Another one that dies meanwhile is next; unseen, its failure would end the run."""
        while True:
            playing = [part for each in iterations.values() for part in each.env.parts if not failed(part)]
            try:
                self._phases.wait(call, beside=playing)
            except WorkerError:
                if failed(call):
                    raise
            else:
                return

    def _play_again(self, topology: Topology, step: int, iteration: Iteration, attempt: Attempt) -> None:
        requests, answers, trajectories = self._channels.requests, self._channels.answers, self._channels.trajectories
        slots, before = topology.of_env(attempt.env_rank), iteration.again.get(attempt.env_rank)
        for slot in slots:
            # In place of the process that would have said so: rollout workers go on without it.
            done = Request(slot=slot.index, env_rank=slot.env_rank, key=(), obs=None)
            requests.put(done, key=request_queue(topology.rollout_rank(slot, "train"), step, before))
        iteration.again[attempt.env_rank] = attempt
        for rank in topology.serving(slots):
            serving = self._rollout.execute_on(rank).generate(step, requests, answers, again=attempt)
            iteration.rollout.parts.append(serving)
        playing = self._env.execute_on(attempt.env_rank).interact(step, requests, answers, trajectories, again=attempt)
        iteration.env.parts[attempt.env_rank] = playing

    def _restarted(self) -> dict[int, int]:
        """By rank, how often those were started again so far that have not been built anew since."""
        now = self._counted()
        return {rank: count for rank, (count, built) in enumerate(zip(now, self._built, strict=True)) if count != built}

    def _counted(self) -> list[int]:
        group: Any = self._env
        return list(group.restarts)


def _what_follows(lost: Iterable[int]) -> str:
    """What becomes of the iterations that a process has not played to the end."""
    numbers = " and ".join(str(step + 1) for step in sorted(lost))
    return f"it plays its share of iteration {numbers} once more" if numbers else "it had played all that was begun"
