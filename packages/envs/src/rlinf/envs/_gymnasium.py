"""Gymnasium environments themselves, and the simulators behind them. Only imported when an environment is built."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from rlinf.core.errors import ConfigError
from rlinf.envs.assembly import Task, assemble, logger
from rlinf.envs.gymnasium import find_spec
from rlinf.envs.video import Camera, Shot

if TYPE_CHECKING:
    from rlinf.envs.gymnasium import Gymnasium

Info = dict[str, Any]


def make(
    config: Gymnasium, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool
) -> VectorEnv[Any, Any, Any]:
    """See `Gymnasium.make`."""
    if config.module is not None:
        # gymnasium-robotics prints a notice about its old versions whenever it is imported.
        with contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module(config.module)
    env_id = config.env_id.rpartition(":")[2]
    limit = max_episode_steps or find_spec(env_id, "env.env_id").max_episode_steps
    if limit is None:
        raise ConfigError("env", f"'{env_id}' has no step limit of its own", "Set max_episode_steps.")
    native = render and _can_render(config, env_id)
    tasks: list[_Task] = []

    def task() -> Task:
        env = _build(config, env_id, "rgb_array" if native else None)
        tasks.append(_Task(env, config.success_key, ignore_terminations))
        return tasks[-1]

    camera: Camera | None = None
    if native:
        camera = partial(_photograph, tasks)
    elif render:
        from rlinf.envs._schematic import schematic_camera

        camera = schematic_camera(env_id)
    return assemble([task] * num_envs, max_episode_steps=limit, camera=camera)


class _Task(gymnasium.Env[dict[str, Any], Any]):
    """One environment in the project's words: `states`, `success`, an end that can be ignored.

    Args:
        env: any environment with Box, Discrete or Dict observations and Box or Discrete actions.
        success_key: the key of its `info` that says whether the task is solved, or None.
        ignore_terminations: never say that an episode terminated.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], success_key: str | None, ignore_terminations: bool) -> None:
        self.env = env
        self.action_space = env.action_space
        states = gymnasium.spaces.Box(-np.inf, np.inf, (gymnasium.spaces.flatdim(env.observation_space),), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"states": states})
        self._success_key = success_key
        self._terminates = not ignore_terminations

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Any], Info]:
        observation, _ = self.env.reset(seed=seed)
        return {"states": _flatten(observation)}, {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, Info]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        success = self._success_key is not None and self._success(info)
        return {"states": _flatten(observation)}, float(reward), terminated and self._terminates, truncated, {"success": success}

    def close(self) -> None:
        self.env.close()

    def _success(self, info: Info) -> bool:
        if self._success_key not in info:
            known = f"Its info holds: {', '.join(sorted(info)) or 'nothing'}."
            raise ConfigError("env.success_key", f"the environment says nothing of '{self._success_key}'", known)
        return bool(info[self._success_key])


def _flatten(observation: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The observation as one vector; a mapping by sorted key."""
    if isinstance(observation, dict):
        parts = cast("dict[str, Any]", observation)
        return np.concatenate([_flatten(parts[key]) for key in sorted(parts)])
    return np.asarray(observation, np.float32).reshape(-1)


def _build(config: Gymnasium, env_id: str, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # -1 leaves the step limit to us; the checker costs time at each step.
        return gymnasium.make(env_id, max_episode_steps=-1, disable_env_checker=True, render_mode=render_mode, **config.kwargs)


def _can_render(config: Gymnasium, env_id: str) -> bool:
    """Whether the environment gives a frame on this machine, asked by trying; what can be missing differs for each simulator."""
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        env = _build(config, env_id, "rgb_array")
        env.reset(seed=0)
        frame = env.render()
        env.close()
    except Exception as error:  # noqa: BLE001
        logger.warning("%s can't render here (%s): its videos are drawn schematics", env_id, _first_line(error))
        return False
    return isinstance(frame, np.ndarray)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _photograph(tasks: list[_Task], shot: Shot) -> Any:
    return tasks[shot.index].env.render()
