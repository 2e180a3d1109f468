"""What env workers send to an actor, put in order: one part for each rollout epoch, also of iterations that are played ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

from rlinf.core.errors import RLinfError
from rlinf.core.protocols import Channel
from rlinf.core.trajectory import Trajectory
from rlinf.runners.embodied.rows import in_time
from rlinf.runners.training.tensors import to_torch


class Arrivals:
    """The trajectories of a run for one actor.

    Args:
        rank: that of the actor, the key of its queue.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._waiting: list[deque[Trajectory[Any]]] = []

    def next(self, trajectories: Channel, env_ranks: int) -> list[Trajectory[Tensor]]:
        """The next rollout epoch: what each env worker sent of it, in the order of their ranks; waits until all have.

        Args:
            trajectories: where `(env rank, Trajectory)` come from, those of each env worker in the order of rollout epochs.
            env_ranks: how many env workers send.

        Raises:
            RLinfError: there is nothing in it for this actor.
        """
        self._waiting = self._waiting or [deque() for _ in range(env_ranks)]
        # A fast worker may be epochs ahead, which are kept. By sender and not as they come, so that a run repeats exactly.
        while not all(self._waiting):
            env_rank, part = cast("tuple[int, Trajectory[Any]]", trajectories.get(key=self._rank))
            self._waiting[env_rank].append(part)
        parts = [part for part in (sent.popleft() for sent in self._waiting) if len(part)]
        if not parts:
            problem = "no trajectories for this rank: there are fewer groups of environments than actors"
            raise RLinfError(f"actor[{self._rank}]", problem, "Raise env.train.total_num_envs or place fewer actors.")
        return [part.map(to_torch) for part in parts]


def joined(epochs: Sequence[Trajectory[Tensor]], *, groups: int) -> Trajectory[Tensor]:
    """Shares of several rollout epochs as one, in the order in which `shares` gives the rows of all at once.

    Args:
        epochs: in the order of time, each of the same environment groups.
        groups: environment groups of the whole run.
    """
    if len(epochs) == 1:
        return epochs[0]
    rows = Trajectory.concat(epochs)
    return rows.rows(to_torch(in_time(rows, groups)))
