"""ManiSkill itself. Only imported when an environment is built."""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rlinf.core.errors import ConfigError
from rlinf.envs.assembly import Task, assemble, logger
from rlinf.envs.video import Camera, Shot

if TYPE_CHECKING:
    from rlinf.envs.maniskill import ManiSkill

_FRAME = 320
_RENDER_MATERIAL_HOLDERS = ("sapien.render", "sapien.pysapien.render", "sapien.wrapper.urdf_loader")


def make(
    config: ManiSkill, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool
) -> VectorEnv[Any, Any, Any]:
    """See `ManiSkill.make`."""
    can_render = _import_simulator()
    # These import ManiSkill themselves, so only after it was made to work here.
    from rlinf.envs._scene import renew_scene
    from rlinf.envs._single import shorten

    module, _, task_id = config.task_id.rpartition(":")
    if module:
        importlib.import_module(module)
    limit = max_episode_steps or gymnasium.spec(task_id).max_episode_steps
    if limit is None:
        raise ConfigError("env", f"the task '{task_id}' has no step limit of its own", "Set max_episode_steps.")
    native = render and can_render
    renew = None if native else renew_scene
    tasks: list[_Task] = []

    def task() -> Task:
        simulation = _build(config, task_id, native, can_render)
        if not native:
            shorten(simulation)
        tasks.append(_Task(simulation, ignore_terminations, renew))
        return tasks[-1]

    camera: Camera | None = None
    if native:
        camera = partial(_photograph, tasks)
    elif render:
        logger.warning("ManiSkill can't render here (no Vulkan device): videos of %s are drawn schematics", task_id)
        from rlinf.envs._schematic import schematic_camera

        camera = schematic_camera(task_id)
    return assemble([task] * num_envs, max_episode_steps=limit, camera=camera)


class _Task(gymnasium.Env[dict[str, Any], Any]):
    """One simulation with NumPy at its border.

    Args:
        simulation: a `BaseEnv` that holds a single environment on the CPU.
        ignore_terminations: never say that an episode terminated.
        renew: what makes the simulation forget its past before a reset; None rebuilds it, which takes long.
    """

    def __init__(self, simulation: Any, ignore_terminations: bool, renew: Callable[[Any], None] | None) -> None:
        self._renew = renew
        self.simulation = simulation
        space: gymnasium.spaces.Box = simulation.single_observation_space
        self.observation_space = gymnasium.spaces.Dict({"states": gymnasium.spaces.Box(-np.inf, np.inf, space.shape, np.float32)})
        self.action_space = simulation.single_action_space
        self._terminates = not ignore_terminations

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        with torch.inference_mode():
            if self._renew is None:
                states, _ = self.simulation.reset(seed=seed, options={"reconfigure": True})
            else:
                self._renew(self.simulation)
                states, _ = self.simulation.reset(seed=seed)
        return {"states": states[0].numpy()}, {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        with torch.inference_mode():
            states, reward, terminated, _, info = self.simulation.step(action)
            success = bool(info["success"]) if "success" in info else False
            ended = self._terminates and bool(terminated)
            return {"states": states[0].numpy()}, float(reward), ended, False, {"success": success}

    def close(self) -> None:
        self.simulation.close()


def _import_simulator() -> bool:
    """Imports ManiSkill so that it works without Vulkan too; says whether it can render."""
    os.environ.setdefault("MS_SKIP_ASSET_DOWNLOAD_PROMPT", "1")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*libvulkan.*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        modules = [importlib.import_module(name) for name in _RENDER_MATERIAL_HOLDERS]
        can_render = _vulkan_works(modules[0])
        if not can_render:
            _replace_render_material(modules)
        importlib.import_module("mani_skill.envs")
    logging.getLogger("mani_skill").setLevel(logging.ERROR)
    return can_render


def _vulkan_works(render: ModuleType) -> bool:
    """Whether SAPIEN finds a device to render with, asked by making a renderer: no cheaper question is answered truthfully."""
    render.set_log_level("off")
    try:
        render.RenderSystem()
    except RuntimeError:
        return False
    finally:
        render.set_log_level("warn")
    return True


class _Attributes:
    """Stands for a render material where there is nothing to render: it keeps what it is given."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("set_"):
            raise AttributeError(f"a material that is never rendered has no '{name}'")
        return lambda *values: None


def _replace_render_material(modules: list[ModuleType]) -> None:
    """Lets ManiSkill load its models where materials can't be made, for want of a renderer; the physics is the same to the bit."""
    if modules[0].RenderMaterial is _Attributes:
        return
    logger.info("no Vulkan device: ManiSkill runs without rendering (states, rewards and physics are not affected)")
    for module in modules:
        setattr(module, "RenderMaterial", _Attributes)  # noqa: B010


def _build(config: ManiSkill, task_id: str, native: bool, can_render: bool) -> Any:
    """One simulation; `native` gives it a camera for `render`."""
    settings: dict[str, Any] = {"obs_mode": config.obs_mode, "control_mode": config.control_mode, "reward_mode": config.reward_mode}
    if native:
        camera = {"width": _FRAME, "height": _FRAME}
        settings |= {"render_mode": "rgb_array", "render_backend": "cpu", "human_render_camera_configs": camera}
    else:
        settings |= {"render_backend": "none"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env: Any = gymnasium.make(task_id, sim_backend="physx_cpu", **settings, **config.kwargs)
    except AttributeError as error:
        if can_render:
            raise
        remedy = "Install a Vulkan driver, such as Mesa's mesa-vulkan-drivers 25 or later, or choose another task."
        raise ConfigError("env.task_id", f"'{task_id}' can't be built without a Vulkan device ({error})", remedy) from error
    return env.unwrapped


def _photograph(tasks: list[_Task], shot: Shot) -> Any:
    with torch.inference_mode():
        return tasks[shot.index].simulation.render()[0].cpu().numpy()
