"""RoboTwin itself. Only imported when an environment is built."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.random import keyed_seed
from rlinf.envs.adapters import TEXT_LENGTH, Observation, Outcome, adapt, observation_space, picture, vector

if TYPE_CHECKING:
    from rlinf.envs.unverified.robotwin.robotwin import RoboTwin

_TRIES = 20
_VIEWS = ("left_camera", "right_camera")


def make(config: RoboTwin, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    if ignore_terminations:
        raise ConfigError("env.ignore_terminations", "RoboTwin takes no action after success", "Set it to false.")
    return adapt(lambda: _TwoArms(config, limit), num_envs, limit, False, render)


class _TwoArms:
    """A `Simulation` over one of RoboTwin's task classes."""

    def __init__(self, config: RoboTwin, limit: int) -> None:
        self._root = Path(config.root).expanduser().resolve()
        if str(self._root) not in sys.path:
            sys.path.insert(0, str(self._root))
        self._text = (config.instruction or config.task.replace("_", " "))[:TEXT_LENGTH]
        with contextlib.chdir(self._root):
            self._settings: dict[str, Any] = _settings(self._root, config)
            self._unstable = importlib.import_module("envs.utils.create_actor").UnStableError
            module = importlib.import_module(f"envs.{config.task}")
            self._env = vars(module)[config.task]()
        self._open, self._limit = False, limit
        arms: Any = [self._settings[f"{side}_embodiment_config"]["arm_joints_name"][i] for i, side in enumerate(("left", "right"))]
        size = sum(len(joints) + 1 for joints in arms)
        shape = (self._settings["head_camera_h"], self._settings["head_camera_w"], 3)
        self.observation_space = observation_space(states=size, main=shape, wrist=(2, *shape))
        low, high = (np.concatenate([[*[sign * np.pi] * len(j), grip] for j in arms]) for sign, grip in ((-1, 0.0), (1, 1.0)))
        self.action_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))

    def reset(self, seed: int, options: Mapping[str, Any]) -> Observation:
        """Builds the scene anew. Where a seed's objects fall over, the next one that follows from it is taken.

        Raises:
            RLinfError: twenty seeds in a row gave unstable scenes.
        """
        for attempt in range(_TRIES):
            chosen = seed if attempt == 0 else keyed_seed(seed, "robotwin", attempt) % 2**31
            with contextlib.chdir(self._root):
                self.close()
                # Before the scene is built: one that turns out unstable must be closed, too.
                self._open = True
                try:
                    self._env.setup_demo(now_ep_num=0, seed=chosen, is_test=True, **self._settings)
                except self._unstable:
                    continue
                self._env.set_instruction(instruction=self._text)
                self._env.step_lim = self._limit + 1  # beyond its own limit it takes no action, and says nothing
                return self._observe()
        raise RLinfError("env.reset", f"{_TRIES} scenes from seed {seed} were unstable", "Choose another task configuration.")

    def step(self, action: NDArray[Any]) -> Outcome:
        """Plans and carries out one target for the joints."""
        with contextlib.chdir(self._root):
            self._env.take_action(np.asarray(action, np.float64), action_type="qpos")
            success = bool(self._env.eval_success)
            return Outcome(observation=self._observe(), reward=float(success), success=success, terminated=success)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._env.close_env()

    def _observe(self) -> Observation:
        seen = self._env.get_obs()
        cameras = seen["observation"]
        return {
            "main_images": picture(cameras["head_camera"]["rgb"]),
            "wrist_images": np.stack([picture(cameras[view]["rgb"]) for view in _VIEWS]),
            "states": vector(seen["joint_action"]["vector"]),
            "task_descriptions": self._text,
        }


def _settings(root: Path, config: RoboTwin) -> dict[str, Any]:
    """The arguments of `setup_demo`: the task's configuration, with robots and cameras looked up in RoboTwin's tables."""

    def load(path: Path) -> Any:
        return importlib.import_module("yaml").safe_load(path.read_text(encoding="utf-8"))

    tables = root / "task_config"
    settings = cast("dict[str, Any]", load(tables / f"{config.task_config}.yml"))
    robots, cameras = load(tables / "_embodiment_config.yml"), load(tables / "_camera_config.yml")
    embodiment = list(settings["embodiment"])
    if len(embodiment) not in (1, 3):
        raise ConfigError("env.task_config", f"expected an embodiment of 1 or 3 entries, found {len(embodiment)}")
    pair = (embodiment[0], embodiment[0] if len(embodiment) == 1 else embodiment[1])
    for side, robot in zip(("left", "right"), pair, strict=True):
        file = robots[robot]["file_path"]
        settings[f"{side}_robot_file"] = file
        settings[f"{side}_embodiment_config"] = load(root / file / "config.yml")
    head = cameras[settings["camera"]["head_camera_type"]]
    settings |= {"task_name": config.task, "dual_arm_embodied": len(embodiment) == 1}
    if len(embodiment) == 3:
        settings["embodiment_dis"] = embodiment[2]
    return settings | {
        "head_camera_h": head["h"],
        "head_camera_w": head["w"],
        "save_data": False,
        "render_freq": 0,
        "eval_mode": True,
    }
