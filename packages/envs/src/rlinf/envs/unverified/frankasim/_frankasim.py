"""FrankaSim itself. Only imported when an environment is built."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.envs.adapters import Observation, Outcome, adapt, numbers, observation_space, picture, seeded, vector

if TYPE_CHECKING:
    from rlinf.envs.unverified.frankasim.frankasim import FrankaSim

_LIFT = 0.2
"""Metres by which the cube must rise; where the package's own reward reaches its maximum."""
_FOREVER = 1e9
"""Seconds. The package says "terminated" when its time is up, so its time is never up; the step limit is ours."""
_STATES = ("panda/tcp_pos", "panda/tcp_vel", "panda/gripper_pos", "block_pos")


def make(config: FrankaSim, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    return adapt(lambda: _PickCube(config.images), num_envs, limit, ignore_terminations, render)


class _PickCube:
    """A `Simulation` over `PandaPickCubeGymEnv`."""

    def __init__(self, images: bool) -> None:
        envs = importlib.import_module("franka_sim.envs")
        self._env = envs.PandaPickCubeGymEnv(image_obs=images, time_limit=_FOREVER)
        spaces: Any = self._env.observation_space
        self._keys = [key for key in _STATES if key in spaces["state"].spaces]
        size = numbers(*(spaces["state"][key] for key in self._keys))
        main = spaces["images"]["front"].shape if images else None
        wrist = spaces["images"]["wrist"].shape if images else None
        self.observation_space = observation_space(states=size, main=main, wrist=wrist, text=False)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self._start = 0.0

    def reset(self, seed: int, options: Mapping[str, Any]) -> Observation:
        """The cube's place is drawn from NumPy's global generator, whatever seed the package is given: it is lent our seed."""
        with seeded(seed):
            seen, _ = self._env.reset(seed=seed)
        self._start = self._height()
        return self._observe(seen)

    def step(self, action: NDArray[Any]) -> Outcome:
        """One control step of 20 ms."""
        seen, reward, *_ = self._env.step(action)
        success = self._height() - self._start >= _LIFT
        return Outcome(observation=self._observe(seen), reward=float(reward), success=success, terminated=success)

    def close(self) -> None:
        self._env.close()

    def _height(self) -> float:
        return float(self._env.data.sensor("block_pos").data[2])

    def _observe(self, seen: Mapping[str, Any]) -> Observation:
        observation: Observation = {"states": vector(*(seen["state"][key] for key in self._keys))}
        if "images" in seen:
            observation |= {"main_images": picture(seen["images"]["front"]), "wrist_images": picture(seen["images"]["wrist"])}
        return observation
