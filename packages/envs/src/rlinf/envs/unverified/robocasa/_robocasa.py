"""RoboCasa itself. Only imported when an environment is built."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.envs.adapters import TEXT_LENGTH, Observation, Outcome, adapt, numbers, observation_space, picture, vector

if TYPE_CHECKING:
    from rlinf.envs.unverified.robocasa.robocasa import RoboCasa

_ACTIONS = {
    "action.base_motion": 4,
    "action.control_mode": 1,
    "action.end_effector_position": 3,
    "action.end_effector_rotation": 3,
    "action.gripper_close": 1,
}
_STATES = (
    "state.base_position",
    "state.base_rotation",
    "state.end_effector_position_relative",
    "state.end_effector_rotation_relative",
    "state.gripper_qpos",
)
_CAMERAS = {"main": "video.robot0_agentview_left", "extra": "video.robot0_agentview_right", "wrist": "video.robot0_eye_in_hand"}
_TEXT = "annotation.human.task_description"


def make(config: RoboCasa, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    importlib.import_module("robocasa.wrappers.gym_wrapper")  # registers the tasks
    return adapt(lambda: _Kitchen(config), num_envs, limit, ignore_terminations, render)


class _Kitchen:
    """A `Simulation` over RoboCasa's Gymnasium environment."""

    def __init__(self, config: RoboCasa) -> None:
        size = {"camera_widths": config.image_size, "camera_heights": config.image_size}
        env = gymnasium.make(f"robocasa/{config.task}", split=config.split, disable_env_checker=True, **size, **config.kwargs)
        self._env: Any = env.unwrapped
        spaces: Any = self._env.observation_space.spaces
        main, extra, wrist = (tuple(spaces[_CAMERAS[view]].shape) for view in ("main", "extra", "wrist"))
        states = numbers(*(spaces[key] for key in _STATES))
        self.observation_space = observation_space(states=states, main=main, extra=(1, *extra), wrist=wrist)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (sum(_ACTIONS.values()),), np.float32)

    def reset(self, seed: int, options: Mapping[str, Any]) -> Observation:
        """Draws kitchen, objects and their places from the seed."""
        seen, _ = self._env.reset(seed=seed)
        return _observe(seen)

    def step(self, action: NDArray[Any]) -> Outcome:
        """One control step; the reward is 1 where the task is solved."""
        parts = np.split(action, np.cumsum(list(_ACTIONS.values()))[:-1])
        seen, reward, _, _, info = self._env.step(dict(zip(_ACTIONS, parts, strict=True)))
        success = bool(info["success"])
        return Outcome(observation=_observe(seen), reward=float(reward), success=success, terminated=success)

    def close(self) -> None:
        self._env.close()


def _observe(seen: Mapping[str, Any]) -> Observation:
    return {
        "main_images": picture(seen[_CAMERAS["main"]]),
        "extra_view_images": picture(seen[_CAMERAS["extra"]])[None],
        "wrist_images": picture(seen[_CAMERAS["wrist"]]),
        "states": vector(*(seen[key] for key in _STATES)),
        "task_descriptions": str(seen[_TEXT])[:TEXT_LENGTH],
    }
