"""Stable-Baselines3's `VecEnv` itself; see `to_stable_baselines3`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.envs.interop.to_gymnasium import with_autoreset
from rlinf.envs.spaces import is_a, single_spaces
from rlinf.envs.text_array import TextArray

if TYPE_CHECKING:

    class VecEnv:
        """What is used of the library's class, which has no types that pyright could read here."""

        num_envs: int
        _seeds: list[int | None]

        def __init__(self, num_envs: int, observation_space: Any, action_space: Any) -> None: ...
        def _reset_seeds(self) -> None: ...

else:
    from stable_baselines3.common.vec_env import VecEnv

Indices = int | Iterable[int] | None


class SB3VecEnv(VecEnv):
    """Steps all environments at once; an episode that ended is reset within the step, as the library expects."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env: Any = with_autoreset(env, AutoresetMode.SAME_STEP)
        observation, action = single_spaces(env)
        spaces: dict[str, Any] = {key: space for key, space in observation.items() if not is_a(space, TextArray)}
        if not spaces:
            raise ConfigError("as_sb3_vec_env(env)", f"expected an array among its observations, found {sorted(observation)}")
        self._only = next(iter(spaces)) if len(spaces) == 1 else None
        self._keys = tuple(spaces)
        self._actions: Any = None
        shown = gymnasium.spaces.Dict(spaces) if self._only is None else spaces[self._only]
        super().__init__(env.num_envs, shown, action)

    def reset(self) -> Any:
        """The first observations; seeds are those of `seed(…)`, otherwise drawn."""
        observation, _ = self.env.reset(seed=None if self._seeds[0] is None else list(self._seeds))
        # As in the library's own: a seed is for one reset.
        self._reset_seeds()
        return self._read(observation)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keeps the actions; `step_wait` executes them."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[Any], NDArray[np.bool_], list[dict[str, Any]]]:
        """Observations (the next episode's where one ended), rewards, ends, and what the library looks for in `infos`."""
        observation, reward, terminated, truncated, told = self.env.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(terminated | truncated).tolist():
            episode = {key: array[i] for key, array in told["episode"].items()}
            infos[i]["terminal_observation"] = self._read(told["final_obs"][i])
            # The library bootstraps from `terminal_observation` where this is true; after a termination there is no value.
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            infos[i]["episode"] = {"r": float(episode["r"]), "l": int(episode["l"])}
            if self.env.metadata.get("knows_success", True):
                infos[i]["is_success"] = bool(episode["success_once"])
        return self._read(observation), np.asarray(reward, np.float32), terminated | truncated, infos

    def close(self) -> None:
        self.env.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """A frame of each environment that is drawn."""
        return self.env.render() or ()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of the vector environment, once for each environment."""
        return [getattr(self.env, attr_name)] * self._count(indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Refused: all environments are one object.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("set_attr", "the environments are one object", f"Set '{attr_name}' before you hand it over.")

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Refused: all environments are one object.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("env_method", "the environments are one object", f"Call '{method_name}' before you hand it over.")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """False: no single environment is wrapped, and the episodes' statistics are told without a monitor."""
        return [False] * self._count(indices)

    def _count(self, indices: Indices) -> int:
        if indices is None:
            return self.num_envs
        return 1 if isinstance(indices, int) else len(list(indices))

    def _read(self, observation: dict[str, Any]) -> Any:
        return observation[self._only] if self._only is not None else {key: observation[key] for key in self._keys}
