"""What env and rollout workers play: the iteration that is trained on, and `rollout.max_lag` ones ahead of it.

    iteration          0        1        2        3             max_lag: 1
    env ‖ rollout   ███████ ███████ ███████ ███████
    actor                   ▒▒▒▒▒▒▒ ▒▒▒▒▒▒▒ ▒▒▒▒▒▒▒ ▒▒▒▒▒▒▒
    weights         W₀      ·   W₁ →    W₂ →    W₃ →            taken between two decisions, as soon as they are there

Iteration n is begun when the weights that iteration n − max_lag is trained from have been given out, and not before: that is the
whole bound, whoever is slower. With `max_lag: 0` nothing is played ahead, and each waits for the other.

An env worker whose process dies is started again, built anew, and plays its share of the iterations under way once more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlinf.core.cluster.futures import Future
from rlinf.core.errors import RLinfError, WorkerError
from rlinf.core.evaluation import EpisodeResult
from rlinf.core.protocols import WorkerGroup
from rlinf.runners.embodied.playing.restarts import EnvRestarts, Iteration, Parts
from rlinf.runners.embodied.schema import PlayedConfig
from rlinf.runners.embodied.topology import Channels, Interaction, NewWeights, Topology, request_queue
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.training.versions import Versions, lag_scalars

if TYPE_CHECKING:
    from rlinf.runners.embodied.env_worker import EnvWorker
    from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker

_PLAYED: Final = "played_ahead.json"


@dataclass(frozen=True, slots=True)
class _Known:
    """The handle of a call that ended before the run was resumed."""

    result: Any
    label: str = "resumed"

    def wait(self, timeout: float | None = None) -> Any:
        return self.result

    def done(self) -> bool:
        return True

    def consume_durations(self) -> dict[str, float]:
        return {}


class Collection:
    """Begins iterations, gives out weights while they are played, and hands them over in order.

    Args:
        cfg: the configuration of the run.
        rollout: the group that decides.
        env: the group that simulates.
        channels: those between them and the actor.
        phases: by which the run waits.
    """

    def __init__(
        self,
        cfg: PlayedConfig,
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
        channels: Channels,
        phases: Phases,
    ) -> None:
        self._cfg, self._rollout, self._env, self._phases = cfg, rollout, env, phases
        self._channels = channels
        self._restarts = EnvRestarts(cfg, rollout, env, channels)
        self._iterations: dict[int, Iteration] = {}
        self._publications = 0
        self._taking: list[Future[Any]] = []
        """Calls that take weights in case that nobody was serving when they were announced."""
        self.versions = Versions()
        self.times: dict[str, float] = {}
        """`time/<group>/<timer>` of the iteration handed over last, the seconds of the slowest rank."""

    @property
    def ahead(self) -> list[Future[Any]]:
        """The calls that are under way beside what is waited for; a failure of theirs ends the run."""
        handles = [handle for iteration in self._iterations.values() for handle in iteration.handles]
        return [*handles, *self._taking]

    def connect(self, topology: Topology) -> None:
        """Says who the workers are, once they are built."""
        self._restarts.connect(topology)

    def recovered(self, error: WorkerError) -> bool:
        """Whether an env worker failed that has been started again; it is built anew then, and plays once more."""
        return error.group == self._env.name and self._restarts.rebuild(self._iterations)

    def lost(self) -> dict[str, float]:
        """What processes of env workers that were started again have cost so far; nothing of a run in which there were none."""
        if not self._restarts.count:
            return {}
        return {"env/restarts": float(self._restarts.count), "env/dropped_episodes": float(self._restarts.dropped_episodes)}

    def give_weights(self, actor: WorkerGroup[Any]) -> None:
        """Gives the rollout workers the actor's weights, between two decisions where they are serving."""
        self._publications += 1
        playing = {step: each.again for step, each in self._iterations.items() if not each.rollout.done()}
        # Lined up behind what is being played: whatever is begun later has these weights.
        taking = self._rollout.sync_model_from_actor(self._publications)
        sending = actor.sync_model_to_rollout()
        for step, again in playing.items():
            # A worker may be serving any of these queues. Where it reads of the same weights twice, their number tells.
            for rank, attempt in product(range(self._rollout.world_size), (None, *again.values())):
                self._channels.requests.put(NewWeights(number=self._publications), key=request_queue(rank, step, attempt))
        self._taking = [handle for handle in self._taking if not handle.done()]
        versions, *_ = self._phases.wait(sending, *([] if playing else [taking]), beside=self.ahead)
        if playing:
            self._taking.append(taking)
        self.versions.publish(versions[0])

    def run_ahead(self, step: int) -> None:
        """Begins iteration `step`, and those that may be played with the weights from which it is trained."""
        self._restarts.rebuild(self._iterations)
        requests, answers, trajectories = self._channels.requests, self._channels.answers, self._channels.trajectories
        ranks = range(self._env.world_size)
        for later in range(step, min(step + self._cfg.max_lag, self._cfg.runner.max_steps - 1) + 1):
            if later not in self._iterations:
                playing = [self._env.execute_on(rank).interact(later, requests, answers, trajectories) for rank in ranks]
                self._iterations[later] = Iteration(Parts(*playing), Parts(self._rollout.generate(later, requests, answers)))

    def finish(self, step: int, received: Future[list[int]]) -> list[Interaction]:
        """Waits until an iteration has been played and received.

        Args:
            step: the iteration, which was begun.
            received: the actor's call that receives it; returns the number of decisions of each rank.

        Returns:
            What each env worker played.

        Raises:
            RLinfError: decisions were lost or came twice, or are older than they may be.
        """
        # Among those under way until then: a process may die, and its share is begun once more.
        iteration = self._iterations[step]
        played, _, counts = self._phases.timed("generate_rollouts", *iteration.handles, received, beside=self.ahead)
        del self._iterations[step]
        self.times = {**_times(self._env.name, iteration.env), **_times(self._rollout.name, iteration.rollout)}
        sent = sum(count for part in played for count in part.decisions.values())
        if sent != sum(counts):
            problem = f"env workers sent {sent:,} decisions of iteration {step}, and the actor received {sum(counts):,}"
            raise RLinfError("generate_rollouts", problem, "A channel lost some, or gave some twice: please report it.")
        return played

    def lag(self, played: list[Interaction]) -> dict[str, float]:
        """How old the decisions of an iteration are, now that it is trained on; nothing of a synchronous run, where all are new.

        Raises:
            RLinfError: some are older than they may be.
        """
        if not self._cfg.max_lag:
            return {}
        lags = self.versions.lags(sum((Counter(part.decisions) for part in played), Counter[int]()))
        if max(lags, default=0) > self._cfg.max_lag:
            problem = f"expected decisions at most {self._cfg.max_lag} weight updates old (rollout.max_lag), found {max(lags)}"
            raise RLinfError("generate_rollouts", problem, "An iteration was begun too early: please report it.")
        return lag_scalars(lags)

    def drain(self) -> list[list[Interaction]]:
        """Waits until all that was begun has been played, so that workers are free for something else.

        Returns:
            What each env worker played in the iterations that are not trained on yet, in order.
        """
        self._phases.wait(*self.ahead)
        self._restarts.rebuild(self._iterations)
        return [self._iterations[step].env.wait() for step in sorted(self._iterations)]

    def restore(self, step: int, played: Sequence[list[Interaction]]) -> None:
        """Goes on from what `drain` returned after iteration `step`, whose trajectories the actor has."""
        for later, interactions in enumerate(played, start=step):
            # A call on one worker returns a list of one.
            self._iterations[later] = Iteration(Parts(*[_Known([each]) for each in interactions]), Parts(_Known([])))


def _times(group: str, handle: Any) -> dict[str, float]:
    """What the timers of the workers say of one call: they can't be asked while they play on."""
    seconds: dict[str, float] = handle.consume_durations()
    # The time of the whole call is among them, under the name of its method.
    return {f"time/{group}/{timer}": taken for timer, taken in seconds.items() if not handle.label.endswith(f".{timer}()")}


def write_played(folder: Path, played: Sequence[list[Interaction]]) -> None:
    """Writes what `Collection.drain` returned beside the trajectories."""
    (folder / _PLAYED).write_text(json.dumps([[asdict(part) for part in parts] for parts in played]) + "\n")


def read_played(folder: Path) -> list[list[Interaction]]:
    """What `write_played` wrote; nothing if it did not."""
    if not (folder / _PLAYED).exists():
        return []
    return [[_interaction(part) for part in parts] for parts in json.loads((folder / _PLAYED).read_text())]


def _interaction(part: Mapping[str, Any]) -> Interaction:
    return Interaction(
        episodes=[EpisodeResult(**episode) for episode in part["episodes"]],
        env_steps=part["env_steps"],
        decisions={int(version): count for version, count in part["decisions"].items()},
        counts=part["counts"],
    )
