"""OmniGibson itself. Only imported when an environment is built."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy
from rlinf.envs.adapters import TEXT_LENGTH, Observation, Outcome, adapt, observation_space, picture, refuse_many, vector

if TYPE_CHECKING:
    from rlinf.envs.unverified.behavior.behavior import Behavior

_FIXED = "OmniGibson's reset goes back to the activity's cached scene and takes no seed"
_WAIVED = {"seeds": _FIXED, "pure_reset": f"{_FIXED}; its physics on the GPU isn't repeatable to the bit"}
_FOREVER = 10**9


def make(config: Behavior, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    refuse_many(num_envs, "OmniGibson is one simulator for the whole process")
    waived = _WAIVED | {
        "instances": "OmniGibson is one simulator for the whole process",
        "partial_reset": "there is one environment",
    }
    return adapt(lambda: _House(config), num_envs, limit, ignore_terminations, render, {"waived": waived})


class _House:
    """A `Simulation` over `omnigibson.Environment`."""

    def __init__(self, config: Behavior) -> None:
        og = importlib.import_module("omnigibson")
        self._env = og.Environment(configs=_settings(config))
        self._config = config
        self._text = (config.description or config.activity.replace("_", " "))[:TEXT_LENGTH]
        spaces: Any = self._env.observation_space
        height, width = spaces[self._key(config.cameras[0], "rgb")].shape[:2]
        others = len(config.cameras) - 1
        self.observation_space = observation_space(
            states=int(spaces[self._key("proprio")].shape[0]),
            main=(height, width, 3),
            extra=(others, height, width, 3) if others else None,
        )
        box: Any = self._env.action_space
        # OmniGibson's own flattened bounds are stacked by robot.
        low, high = (np.asarray(bound, np.float32).reshape(-1) for bound in (box.low, box.high))
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def reset(self, seed: int, options: Mapping[str, Any]) -> Observation:
        """Back to the cached scene; the seed has no part in it."""
        seen, _ = self._env.reset()
        return self._observe(seen)

    def step(self, action: NDArray[Any]) -> Outcome:
        """One control step; OmniGibson's own time limit never ends an episode."""
        torch = importlib.import_module("torch")
        seen, reward, terminated, _, info = self._env.step(torch.as_tensor(action))
        success = bool(info["done"]["success"])
        return Outcome(observation=self._observe(seen), reward=float(reward), success=success, terminated=bool(terminated))

    def close(self) -> None:
        """Nothing: OmniGibson ends with its process."""

    def _key(self, *parts: str) -> str:
        return "::".join((self._config.name, *parts))

    def _observe(self, seen: Mapping[str, Any]) -> Observation:
        views = [picture(as_numpy(seen[self._key(camera, "rgb")])) for camera in self._config.cameras]
        observation: Observation = {
            "main_images": views[0],
            "states": vector(as_numpy(seen[self._key("proprio")])),
            "task_descriptions": self._text,
        }
        return observation | ({"extra_view_images": np.stack(views[1:])} if views[1:] else {})


def _settings(config: Behavior) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "env": {"automatic_reset": False, "flatten_action_space": True, "flatten_obs_space": True},
        "scene": {"type": "InteractiveTraversableScene", "scene_model": config.scene},
        "robots": [{"type": config.robot, "name": config.name, "obs_modalities": ["rgb", "proprio"]}],
        "task": {
            "type": "BehaviorTask",
            "activity_name": config.activity,
            "activity_instance_id": config.instance,
            "online_object_sampling": False,
            "termination_config": {"max_steps": _FOREVER},
        },
    }
    return settings | dict(config.overrides)
