"""What env workers send to an actor, put in order: one part for each rollout epoch, also of iterations that are played ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlinf.core.data import Trajectory
from rlinf.core.errors import RLinfError
from rlinf.core.protocols import Channel
from rlinf.runners.embodied.playing.rows import in_time
from rlinf.runners.embodied.playing.tree_files import read_tree, write_tree
from rlinf.runners.training.tensors import to_torch

if TYPE_CHECKING:
    from torch import Tensor


class Arrivals:
    """The trajectories of a run for one actor.

    Args:
        rank: that of the actor, the key of its queue.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._waiting: list[deque[Trajectory[Any]]] = []
        self._expected: dict[int, int] = {}
        """By env rank, the number of the rollout epoch that it sends next."""

    def next(self, trajectories: Channel, env_ranks: int) -> list[Trajectory[Tensor]]:
        """The next rollout epoch: what each env worker sent of it, in the order of their ranks; waits until all have.

        Args:
            trajectories: where `(env rank, Trajectory, number)` come from, those of each env worker in the order of rollout
                epochs, which are numbered over the whole run.
            env_ranks: how many env workers send.

        Raises:
            RLinfError: there is nothing in it for this actor, or a rollout epoch is missing.
        """
        # By sender and not as they come, so that a run repeats exactly.
        self.wait_for(1, trajectories, env_ranks)
        parts = [part for part in (sent.popleft() for sent in self._waiting) if len(part)]
        if not parts:
            problem = "no trajectories for this rank: there are fewer groups of environments than actors"
            raise RLinfError(f"actor[{self._rank}]", problem, "Raise env.train.total_num_envs or place fewer actors.")
        return [part.map(to_torch) for part in parts]

    def wait_for(self, epochs: int, trajectories: Channel, env_ranks: int) -> None:
        """Waits until so many rollout epochs are there; further ones of a worker that is faster are kept, too.

        One that came before is dropped: an env worker that was started again plays its iteration from the start.
        """
        self._waiting = self._waiting or [deque() for _ in range(env_ranks)]
        while any(len(sent) < epochs for sent in self._waiting):
            env_rank, part, number = cast("tuple[int, Trajectory[Any], int]", trajectories.get(key=self._rank))
            # The first number of a worker is taken as it is: a run that resumes does not begin at 0.
            expected = self._expected.get(env_rank, number)
            if number > expected:
                problem = f"expected rollout epoch {expected} of env[{env_rank}], found {number}"
                raise RLinfError(f"actor[{self._rank}]", problem, "A channel lost some: please report it.")
            if number == expected:
                self._expected[env_rank] = number + 1
                self._waiting[env_rank].append(part)

    def save(self, folder: Path) -> None:
        """Writes what has come and was not asked for yet; nothing if there is nothing.

        Raises:
            CheckpointError: the disk is full, or the system refuses to write.
        """
        senders: dict[str, dict[str, Any]] = {}
        for env_rank, sent in enumerate(self._waiting):
            for number, part in enumerate(sent):
                named = {field.name: getattr(part, field.name) for field in fields(part)}
                trees = {name: tree for name, tree in named.items() if tree is not None}
                senders.setdefault(str(env_rank), {})[str(number)] = trees
        write_tree(self._file(folder), senders)

    def load(self, folder: Path) -> bool:
        """Restores what `save` wrote; returns whether there was anything."""
        senders = read_tree(self._file(folder))
        if not senders:
            return False
        # Every env worker has sent at least as many rollout epochs as were waited for.
        ordered = [senders[env_rank] for env_rank in sorted(senders, key=int)]
        # By number: as texts, 10 comes before 2.
        self._waiting = [deque(Trajectory(**parts[number]) for number in sorted(parts, key=int)) for parts in ordered]
        return True

    def _file(self, folder: Path) -> Path:
        return folder / f"played_ahead_{self._rank}.safetensors"


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
