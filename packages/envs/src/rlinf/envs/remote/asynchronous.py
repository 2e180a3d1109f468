"""Acting on part of the environments while the others still compute, the way envpool does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ShapeError
from rlinf.envs.remote.infos import join
from rlinf.envs.remote.launch import Launch
from rlinf.envs.remote.replay import ResetCall
from rlinf.envs.remote.shard import Shard
from rlinf.envs.remote.vector import Processes
from rlinf.envs.spaces import single_spaces
from rlinf.envs.wrappers.contract import EnforceContract, EnvMisuse
from rlinf.envs.wrappers.episodes import Infos
from rlinf.envs.wrappers.video import RecordVideo


class Answer(NamedTuple):
    """What some environments answered; row `i` of everything belongs to environment `env_ids[i]`."""

    env_ids: NDArray[np.int64]
    """`[k]`, whole shards."""
    observations: dict[str, NDArray[Any]]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Infos
    stepped: NDArray[np.bool_]
    """`[k]`; False where the answer is that to `send_reset`: reward 0, no flags, nothing in `infos`."""


class Asynchronous(EnforceContract):
    """`EnforceContract` for environments in processes, with `send` and `recv` beside `step`.

        env.reset(seed=0)
        for shard in env.shards:
            env.send(policy(…), shard)
        while …:
            answer = env.recv(4)
            env.send(policy(answer.observations), answer.env_ids)

    What is sent goes to whole shards, the environments of one process; with as many processes as environments each is on its own.
    Observations of `recv` are copies, as they come from several processes. A lost episode (see `Remote`) of an environment that
    can't be replayed is truncated with the first observation of its repetition.

    Args:
        env: environments in processes.
    """

    def __init__(self, env: Processes) -> None:
        super().__init__(env)
        self._processes = env
        self._everything = np.zeros(self._shape, single_spaces(env)[1].dtype)
        # Rows that are not sent must pass the check of the whole array, too.
        self._everything[:] = self._low if self._integers else np.clip(0, self._low, self._high)

    @property
    def shards(self) -> list[NDArray[np.int64]]:
        """The environments of each process."""
        return [np.arange(rows.start, rows.stop) for rows in self._processes.shards]

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Starts a step of some environments.

        Args:
            actions: `[k, *]`.
            env_ids: `[k]`, whole shards, none of which is still to answer.

        Raises:
            EnvMisuse: as `step`, or `env_ids` has part of a shard, or has not answered yet.
            ShapeError: the numbers of actions and environments differ.
        """
        self._refuse_closed("env.send")
        ids, actions = np.asarray(env_ids, np.int64), np.asarray(actions)
        if len(ids) != len(actions):
            raise ShapeError("env.send", f"expected {len(ids)} actions, one for each of env_ids, found {len(actions)}")
        shards = self._whole_shards(ids)
        unready = ids[~self._ready[ids] | self._done[ids]]
        if unready.size:
            problem = f"environments {unready.tolist()} have ended or were never reset"
            raise EnvMisuse("env.send", problem, "Reset them: env.send_reset(ids, seed=…).")
        # Not cast to the type of the space: the check must still see floats that are given for integers.
        everything = self._everything.astype(np.result_type(actions, self._everything))
        everything[ids] = actions
        everything = self._actions(everything)
        self._processes.begin(self._processes.steps_of(everything, shards))

    def send_reset(
        self, env_ids: Sequence[int] | NDArray[np.int64], *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> None:
        """Starts a reset of some environments; each shard that has one of them answers as a whole.

        Args:
            env_ids: which environments.
            seed: as for `reset`, `[N]` if it is a list.
            options: as for `reset`.
        """
        mask = np.zeros(self.num_envs, np.bool_)
        mask[np.asarray(env_ids, np.int64)] = True
        with self._processes.without_waiting():
            self.reset(seed=seed, options={**(options or {}), "reset_mask": mask})

    def recv(self, least: int | None = None) -> Answer:
        """Waits until at least that many environments have answered, and no longer.

        Args:
            least: environments; all that were asked if None.

        Raises:
            EnvMisuse: fewer were asked.
        """
        self._refuse_closed("env.recv")
        asked = self._processes.pending
        least = asked if least is None else least
        if not 0 < least <= asked:
            raise EnvMisuse("env.recv", f"{least} environments are waited for, but {asked} were asked", "Call env.send() first.")
        answered = self._processes.collect(least)
        ids = np.concatenate([np.arange(shard.rows.start, shard.rows.stop) for shard, _ in answered])
        stepped = np.repeat(
            [not isinstance(shard.asked, ResetCall) for shard, _ in answered], [len(shard.rows) for shard, _ in answered]
        )
        observations, results = self._processes.partial_rows(ids)
        # The answer to a reset writes no results: there the slot still holds those of an earlier step.
        rewards = np.where(stepped, results["reward"], np.float32(0))
        terminated, truncated = results["terminated"] & stepped, results["truncated"] & stepped
        self._done[ids[stepped]] = (terminated | truncated)[stepped]
        infos = join([(len(shard.rows), infos) for shard, infos in answered])
        infos["restarts"] = self._processes.restarts
        return Answer(ids, observations, rewards, terminated, truncated, infos, stepped)

    def _whole_shards(self, ids: NDArray[np.int64]) -> list[Shard]:
        shards = self._processes.shards_within(ids)
        if sum(len(shard.rows) for shard in shards) != len(ids):
            whole = [rows.tolist() for rows in self.shards]
            raise EnvMisuse("env.send", f"env_ids {ids.tolist()} are not whole shards", f"Shards: {whole}.")
        return shards


def assemble_processes(launch: Launch, num_envs: int, processes: int) -> VectorEnv[Any, Any, Any]:
    """Environments in processes behind the contract.

    Processes  →  Asynchronous (an EnforceContract)  →  RecordVideo (only where it can render)
    """
    env = Processes(launch, num_envs, processes)
    return RecordVideo(Asynchronous(env), env.photograph) if launch.render else Asynchronous(env)
