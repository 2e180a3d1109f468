"""What every worker of an embodied run must know of the others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import Decision, EnvSpec
from rlinf.core.data.tree import Tree
from rlinf.core.evaluation import EpisodeResult
from rlinf.core.protocols import Channel, Mode, WorkerGroup
from rlinf.runners.embodied.playing.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Derived once from the configuration and the groups' sizes; the same object goes to all workers."""

    spec: EnvSpec
    """What the policy sees and does."""
    actor: str
    """The name of the actor group."""
    actor_ranks: int
    """The size of the actor group."""
    rollout: str
    """The name of the rollout group."""
    rollout_ranks: int
    """The size of the rollout group."""
    slots: Mapping[Mode, tuple[Slot, ...]]
    """The slots of "train" and of "eval"."""

    @classmethod
    def of(
        cls,
        spec: EnvSpec,
        slots: Mapping[Mode, tuple[Slot, ...]],
        *,
        actor: WorkerGroup[Any] | None = None,
        rollout: WorkerGroup[Any],
    ) -> Topology:
        """That of groups; of an evaluation without an actor."""
        name, ranks = ("", 0) if actor is None else (actor.name, actor.world_size)
        return cls(spec=spec, actor=name, actor_ranks=ranks, rollout=rollout.name, rollout_ranks=rollout.world_size, slots=slots)

    def rollout_rank(self, slot: Slot, mode: Mode) -> int:
        """Which rollout worker serves a slot: neighbours go to the same one, so that it has all stages of its env workers."""
        return slot.index * self.rollout_ranks // len(self.slots[mode])

    def serving(self, slots: Sequence[Slot]) -> list[int]:
        """The rollout workers that serve slots of training, each once."""
        return sorted({self.rollout_rank(slot, "train") for slot in slots})

    def of_env(self, rank: int) -> list[Slot]:
        """The slots of training of an env worker."""
        return [slot for slot in self.slots["train"] if slot.env_rank == rank]

    def served_by(self, rank: int, mode: Mode) -> tuple[Slot, ...]:
        """The slots that a rollout worker serves; their numbers differ by at most one between workers."""
        return tuple(slot for slot in self.slots[mode] if self.rollout_rank(slot, mode) == rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a run."""

    requests: Channel
    """From env to rollout: `Request`, and `NewWeights` from the runner, by `request_queue`."""
    answers: Channel
    """From rollout to env: `Reply`, by `answer_queue`."""
    trajectories: Channel
    """From env to actor: `(env rank, Trajectory, number of the rollout epoch)`, keyed by actor rank."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The share of one env worker that is played once more, because its process was started again under it."""

    env_rank: int
    number: int
    """How often that process was started again so far."""


def request_queue(rollout_rank: int, iteration: int | None = None, again: Attempt | None = None) -> Hashable:
    """The key of the requests to a rollout worker.

    Iterations have a queue each: an env worker may begin the next one while another plays on, what a policy does may follow the
    iteration, and nothing that a process left behind when it died is read as a request of a later one.

    Args:
        rollout_rank: who is asked.
        iteration: of training; None: an evaluation.
        again: the share that is played once more, which has a queue of its own; None: the iteration as it was begun.
    """
    if iteration is None:
        return rollout_rank
    return (rollout_rank, iteration) if again is None else (rollout_rank, iteration, again.env_rank, again.number)


def answer_queue(env_rank: int, restarts: int) -> Hashable:
    """The key of the answers to an env worker whose process was started again so often: it reads none to the one before."""
    return (env_rank, restarts) if restarts else env_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWeights:
    """Goes among requests to a rollout worker that is serving: the actor is sending weights, which it takes before it goes on."""

    number: int
    """Of the publication, counted from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What a policy with a memory said of the episodes that observations belong to, when it decided for them last."""

    memory: Tree[Any]
    """What `RecurrentPolicy.next_state` gave, each leaf `[n, *]`."""
    begins: NDArray[np.bool_]
    """`[n]`, the episodes that begin, of which `memory` says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksInExecution:
    """What is executed while the policy decides; see `rlinf.core.evaluation.RealTimeChunking`."""

    rest: NDArray[np.float32]
    """`[n, k, A]`, the steps that are left, the first of them the next to be executed."""
    delay: int
    """How many of them will have been executed when the answer is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an env worker asks a rollout worker: an action for each observation, and the value of each."""

    slot: int
    """The slot that asks."""
    env_rank: int
    """The env worker that holds it."""
    key: tuple[int, ...]
    """What makes the random numbers of the answer its own: iteration, epoch, step."""
    obs: Tree[Any] | None
    """Observations, each leaf `[n, *]`; None says that the slot is done."""
    remembered: Remembered | None = None
    """What goes with the observations; None where every episode begins, or the policy has no memory."""
    restarts: int = 0
    """How often the process of the env worker was started again; see `answer_queue`."""
    chunks: ChunksInExecution | None = None
    """What the answer is to go on from; None where it is decided by the observations alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a rollout worker answers to a request."""

    slot: int
    """The slot that asked."""
    decision: Decision[Any]
    """For each observation."""
    memory: Tree[Any] | None = None
    """What the policy wants to see with the observations that follow, each leaf `[n, *]`; None if it has no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """What a worker's environments played in one iteration."""

    episodes: list[EpisodeResult]
    """The episodes that ended."""
    env_steps: int
    """Control steps that were executed."""
    decisions: Mapping[int, int]
    """How many decisions were sent to the actor, by the version of the weights that made them."""
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    """By name, what the environments counted beside, such as `robot/watchdog`; see `HasCounts`."""
