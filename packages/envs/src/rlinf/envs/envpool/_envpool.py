"""envpool itself. Only imported when an environment is built.

envpool resets a finished environment in the step after its end, and takes seeds only at construction. Both are kept out of sight
by what else it can do: step and reset a subset of a pool's environments. A finished one is never stepped, so envpool's own reset
never comes; it is reset when the caller says so, or, for a seed of its own, replaced by a row of a new pool.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.envs.interop.from_gymnasium import ObservationReader
from rlinf.envs.spaces import is_a
from rlinf.envs.wrappers.contract import EnforceContract
from rlinf.envs.wrappers.episodes import EpisodeStatistics, Infos, Step, reset_rows

if TYPE_CHECKING:
    from rlinf.envs.envpool.envpool import EnvPool

_STREAM = "with seeds='stream', only the first reset takes seeds; each environment then goes on with its own random numbers"
_WAIVED = ("instances", "partial_reset", "place", "pure_reset", "seeds")


def make(config: EnvPool, num_envs: int, limit: int | None, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    if render:
        raise ConfigError("env.render", "envpool's rendering is not supported", "Use the simulator's own adapter for videos.")
    library: Any = importlib.import_module("envpool")
    known: list[str] = library.list_all_envs()
    if config.env_id not in known:
        alike = [name for name in known if name.partition("/")[0] == config.env_id.partition("/")[0]] or known
        hint = did_you_mean(config.env_id, alike if len(alike) < 60 else [], label="Tasks")
        raise ConfigError("env.env_id", f"envpool has no task '{config.env_id}'", f"{hint} See envpool.list_all_envs().")
    with _without_warnings():
        spec: Any = library.make_spec(config.env_id, **config.kwargs)
        pools = _Pools(config, num_envs, spec, limit or spec.config.max_episode_steps, ignore_terminations)
    return EnforceContract(EpisodeStatistics(pools, pools.limit))


@contextlib.contextmanager
def _without_warnings() -> Generator[None]:
    """Gymnasium warns of bounds that float32 can't hold to the last digit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(slots=True)
class _Pool:
    """A pool of which some rows are in use."""

    pool: Any
    rows: NDArray[np.int32]
    """`[k]`, the rows that are in use, ascending."""
    places: NDArray[np.int64]
    """`[rows of the pool]`, which environment of ours a row is."""

    def drop(self, mask: NDArray[np.bool_]) -> bool:
        """Gives up the rows of the environments in `mask`; says whether any is left."""
        self.rows = self.rows[~mask[self.places[self.rows]]]
        return len(self.rows) > 0


class _Pools(VectorEnv[Any, Any, Any]):
    """N environments on as many pools as there are resets whose episodes still run.

    Args:
        config: the task.
        num_envs: N.
        spec: envpool's description of the task.
        limit: steps after which an episode will be truncated, by `EpisodeStatistics`.
        ignore_terminations: refuse them.
    """

    def __init__(self, config: EnvPool, num_envs: int, spec: Any, limit: int, ignore_terminations: bool) -> None:
        self.num_envs = num_envs
        self.limit = limit
        self._config = config
        self._terminates = not ignore_terminations
        self._stream = config.seeds == "stream"
        # An empty source takes all of an observation.
        self._reader: Any = ObservationReader(spec.observation_space, {"states": ()})
        self.single_observation_space = self._reader.space
        self.observation_space = batch_space(self._reader.space, num_envs)
        action = _float32(spec.action_space)
        self.single_action_space = action
        self.action_space = batch_space(action, num_envs)
        waived = dict.fromkeys(_WAIVED, _STREAM) if self._stream else {}
        self.metadata = {
            "autoreset_mode": AutoresetMode.DISABLED,
            "waived": waived,
            "knows_success": config.success_key is not None,
        }
        self._pools: list[_Pool] = []
        self._states = np.zeros((num_envs, *self._reader.space["states"].shape), np.float32)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes, in all environments or where `options["reset_mask"]` says so."""
        mask = reset_rows(options, self.num_envs)
        places = np.flatnonzero(mask)
        if self._stream and self._pools:
            # A stream has a single pool, with all environments in it.
            held = self._pools[0]
            observation, infos = held.pool.reset(places.astype(np.int32))
        else:
            # A pool of which no row is left in use is freed, and its threads with it.
            self._pools = [held for held in self._pools if held.drop(mask)]
            held = _Pool(self._build([cast("list[int]", seed)[i] for i in places]), np.arange(len(places), dtype=np.int32), places)
            self._pools.append(held)
            observation, infos = held.pool.reset()
        self._states[held.places[infos["env_id"]]] = self._reader.read(observation)["states"]
        return {"states": self._states.copy()}, {}

    def step(self, actions: Any) -> Step:
        """One step of every environment; nothing is reset."""
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated, success = (np.zeros(self.num_envs, np.bool_) for _ in range(3))
        for held in self._pools:
            moved, rewards, ended, cut, infos = held.pool.step(actions[held.places[held.rows]], held.rows)
            at = held.places[infos["env_id"]]
            self._states[at] = self._reader.read(moved)["states"]
            reward[at], terminated[at], truncated[at] = rewards, ended, cut
            if self._config.success_key is not None:
                success[at] = self._success(infos)
        if terminated.any() and not self._terminates:
            self._refuse(terminated)
        return {"states": self._states.copy()}, reward, terminated, truncated, {"success": success}

    def close(self, **kwargs: Any) -> None:
        """Lets go of all pools, and with them of their threads."""
        self._pools.clear()

    def _build(self, seeds: list[int]) -> Any:
        """A pool with one environment for each seed.

        Its own step limit never comes first: at the limit envpool calls any end a truncation, even where the task ended too.
        """
        library: Any = importlib.import_module("envpool")
        config = self._config
        settings: dict[str, Any] = {"num_threads": config.num_threads, "max_episode_steps": self.limit + 1, **config.kwargs}
        with _without_warnings():
            pool = library.make_gymnasium(config.env_id, num_envs=len(seeds), seed=seeds, **settings)
            # envpool makes its space when it first needs it.
            _ = pool.observation_space
        return pool

    def _success(self, infos: Infos) -> NDArray[Any]:
        key = self._config.success_key
        if key not in infos:
            known = ", ".join(sorted(set(infos) - {"env_id", "players", "elapsed_step"}))
            raise ConfigError("env.success_key", f"the task says nothing of '{key}'", f"Its info holds: {known or 'nothing'}.")
        return np.asarray(infos[key], np.bool_)

    def _refuse(self, terminated: NDArray[np.bool_]) -> None:
        where = np.flatnonzero(terminated).tolist()
        problem = f"the episodes of environments {where} terminated, after which envpool can't go on"
        remedy = "Say ignore_terminations=False, or a setting of the task such as kwargs={'terminate_when_unhealthy': False}."
        raise ConfigError("env.ignore_terminations", problem, remedy)


def _float32(space: Any) -> Any:
    """The action space as the rest of the house has it; envpool casts what it is given."""
    return gymnasium.spaces.Box(space.low, space.high, space.shape, np.float32) if is_a(space, gymnasium.spaces.Box) else space
