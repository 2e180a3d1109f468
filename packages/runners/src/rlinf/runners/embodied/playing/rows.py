"""Collects the steps of a slot and turns them into trajectory rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import Decision, Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import Tree, tree_combine, tree_map
from rlinf.core.metrics import Metric, Statistic

if TYPE_CHECKING:
    from rlinf.runners.embodied.playing.slots import Slot
    from rlinf.runners.embodied.schema import TrainEnvConfig

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class RowCollector:
    """Steps of `num_envs` environments in lockstep, cut into one row for each piece of an episode.

    A row's `group` is one number for the environment group and the number of the episode, `episode · groups + environment group`:
    the k-th episodes of an environment group start from the same state, its k-th and its (k + 1)-th don't. Where several do, they
    share it: the number of the episode is divided by `episodes_per_state`.

    Args:
        first_env: global number of the first environment, which makes groups global.
        num_envs: environments of the slot.
        group_size: consecutive environments whose k-th episodes start from the same state.
        groups: environment groups of the whole run.
        episode: `[num_envs]`, the number of the episode that each environment is in; None: 0. The one after an end is the next.
        episodes_per_state: how many consecutive numbers, from a multiple of it on, start from the same state and are one group.
    """

    def __init__(
        self,
        *,
        first_env: int,
        num_envs: int,
        group_size: int,
        groups: int,
        episode: Ints | None = None,
        episodes_per_state: int = 1,
    ) -> None:
        env = first_env + np.arange(num_envs)
        self._env_group, self._member = env // group_size, env % group_size
        self._group_size, self._groups = group_size, groups
        self._episodes_per_state = episodes_per_state
        self._episode = np.zeros(num_envs, np.int64) if episode is None else episode.copy()
        self._decisions: list[Decision[Any]] = []
        self._rewards: list[Floats] = []
        self._terminated: list[Bools] = []
        self._truncated: list[Bools] = []
        self._tasks: list[Ints] = []
        self._final_values: dict[tuple[int, int], float] = {}
        self._intervened: list[Bools] = []
        self._seen: list[Tree[Any]] = []
        self._followed: list[Tree[Any]] = []

    @classmethod
    def of(cls, train: TrainEnvConfig, slot: Slot, episode: Ints) -> RowCollector:
        """Rows of a slot of the training environments, which are in the episodes of these numbers, `[num_envs]`."""
        return cls(
            first_env=slot.first_env,
            num_envs=slot.num_envs,
            group_size=train.group_size,
            groups=train.groups,
            episode=episode,
            episodes_per_state=train.max_steps_per_rollout_epoch if train.use_fixed_reset_state_ids else 1,
        )

    def append(
        self,
        decision: Decision[Any],
        reward: Floats,
        terminated: Bools,
        truncated: Bools,
        task: Ints | None = None,
        intervened: Bools | None = None,
    ) -> None:
        """One decision of each environment and what came of it; of a chunk, the sum of its rewards, and whether it saw an end.

        `task` is the number of each environment's task; None where there is only one. `intervened` says in which environments
        somebody else acted; of every decision, or of none.
        """
        self._decisions.append(decision)
        self._rewards.append(reward)
        self._terminated.append(terminated)
        self._truncated.append(truncated)
        self._tasks.append(np.zeros(len(reward), np.int64) if task is None else task)
        self._intervened += [] if intervened is None else [intervened]

    def observed(self, before: Tree[Any], after: Tree[Any]) -> None:
        """What was seen before the decision appended last, and after it, `[num_envs, *]`; of every decision, or of none."""
        self._seen.append(before)
        self._followed.append(after)

    def final_values(self, envs: NDArray[np.intp], values: Floats) -> None:
        """The critic's values of the final observations of episodes that ended with the last step appended."""
        last = len(self._decisions) - 1
        self._final_values.update({(last, int(env)): float(value) for env, value in zip(envs, values, strict=True)})

    def finish(self, bootstrap: Floats | None) -> Trajectory[Any]:
        """The rows of all steps so far.

        Args:
            bootstrap: `[num_envs]`, the critic's values of the observations after the last step; None without a critic.
        """
        env, start, length, number = self._pieces()
        steps = np.arange(int(length.max()))
        mask = steps < length[:, None]
        # Columns behind the end of a row repeat its last step here; `gather` sets them to 0.
        index = (np.minimum(start[:, None] + steps, start[:, None] + length[:, None] - 1), env[:, None])

        def gather(arrays: list[Any]) -> Any:
            picked = np.stack(arrays)[index]
            # A zero of the same type: a plain 0 would turn flags into numbers.
            return np.where(mask.reshape(mask.shape + (1,) * (picked.ndim - 2)), picked, np.zeros((), picked.dtype))

        context: Tree[Any] = tree_map(gather, tree_combine(list, [d.context for d in self._decisions]))
        episode = self._episode[env] + number
        group = episode // self._episodes_per_state * self._groups + self._env_group[env]
        version = np.array([d.version for d in self._decisions], np.int64)[index[0]]
        return Trajectory(
            context=context,
            action=gather([d.action for d in self._decisions]),
            logprob=gather([d.logprob for d in self._decisions]),
            reward=gather(self._rewards),
            terminated=gather(self._terminated),
            truncated=gather(self._truncated),
            mask=mask,
            version=np.where(mask, version, 0),
            group=group,
            task=np.stack(self._tasks)[start, env],
            value=None if bootstrap is None else self._values(gather, env, start, length, bootstrap),
            episode=(episode * self._groups + self._env_group[env]) * self._group_size + self._member[env],
            intervened=gather(self._intervened) if self._intervened else None,
            observation=self._observations(env, start, length) if self._seen else None,
        )

    def _observations(self, env: Any, start: Any, length: Any) -> Tree[Any]:
        """`[B, T + 1, *]`: what was seen before each step of a row, and after its last one; 0 behind that."""
        columns = np.arange(int(length.max()) + 1)
        last = start + length - 1
        before = np.minimum(start[:, None] + columns, last[:, None])

        def gather(seen: Any, followed: Any) -> Any:
            rows = seen[before, env[:, None]]
            rows[np.arange(len(env)), length] = followed[last, env]
            rows[columns > length[:, None]] = 0
            return rows

        stacked = [tree_combine(np.stack, trees) for trees in (self._seen, self._followed)]
        return tree_combine(lambda leaves: gather(*leaves), stacked)

    def _pieces(self) -> tuple[NDArray[np.intp], ...]:
        """For each row: its environment, its first step, how many steps it has, and how many of the environment's come before."""
        ended = np.stack(self._terminated) | np.stack(self._truncated)
        total = len(ended)
        pieces: list[tuple[int, int, int, int]] = []
        for env in range(ended.shape[1]):
            start = 0
            for number, end in enumerate([*np.flatnonzero(ended[:, env]) + 1, total]):
                # An episode that ends with the last step leaves an empty piece behind it.
                if end > start:
                    pieces.append((env, start, int(end) - start, number))
                start = int(end)
        return tuple(np.array(pieces, np.intp).T)

    def _values(self, gather: Any, env: Any, start: Any, length: Any, bootstrap: Floats) -> Floats:
        """`[B, T + 1]`: the value before each step, and after a row's last step the value of what followed it."""
        before: Floats = gather([decision.value for decision in self._decisions])
        values = np.concatenate([before, np.zeros((len(before), 1), before.dtype)], axis=1)
        total = len(self._decisions)
        for row, (e, s, n) in enumerate(zip(env, start, length, strict=True)):
            last = int(s + n)
            # A row that ends sooner ends with its episode, whose final observation was valued, too.
            values[row, n] = bootstrap[e] if last == total else self._final_values[last - 1, int(e)]
        return values


def group_metrics(rows: Trajectory[Any]) -> dict[str, Statistic]:
    """Whether the rows of groups can be compared with one another.

    - `singleton_rows`: the share of rows that are alone in their group; a group advantage gives them 0, they teach nothing.
    - `unfinished_rows`: the share of rows whose episode goes on after the rollout; their return is that of a part.
    """
    _, index, size = np.unique(as_numpy(rows.group), return_inverse=True, return_counts=True)
    ended = (as_numpy(rows.terminated) | as_numpy(rows.truncated)) & as_numpy(rows.mask)
    return {
        "singleton_rows": Metric(float((size[index] == 1).sum()), len(rows)),
        "unfinished_rows": Metric(float((~ended.any(axis=1)).sum()), len(rows)),
    }


def shares(rows: Trajectory[Any], *, groups: int, parts: int) -> list[Trajectory[Any]]:
    """An iteration's rows as shares of as many actors, rows of a group together and in the order of time.

    An actor gets all rows of an environment group: then no group is parted, and each has as many decisions as another, however
    many episodes they make.

    Args:
        rows: of any environments.
        groups: environment groups of the whole run.
        parts: how many actors there are; those beyond `groups` get no rows.
    """
    order = in_time(rows, groups)
    owner = rows.group[order] % groups * parts // groups
    return [rows.rows(order[owner == part]) for part in range(parts)]


def in_time(rows: Trajectory[Any], groups: int) -> NDArray[np.intp]:
    """The order in which `shares` gives rows: by environment group, and in each those first that were played first.

    Args:
        rows: of any environments.
        groups: environment groups of the whole run.
    """
    group = as_numpy(rows.group)
    # The last key counts first.
    return np.lexsort((group, group % groups))
