"""robosuite itself, and what LIBERO takes from it. Only imported when an environment is built."""

from __future__ import annotations

import copy
import importlib
import logging
import os
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.envs.adapters import observation_space, seeded
from rlinf.envs.assembly import assemble_filmed
from rlinf.envs.rendering._mujoco import ModelRenderer
from rlinf.envs.rendering.mujoco import Look, gl_backend, settle_rendering
from rlinf.envs.rendering.on_demand import ImagesOnDemand
from rlinf.envs.robosuite._lite_physics import lite_physics

if TYPE_CHECKING:
    from rlinf.envs.robosuite.robosuite import Robosuite

Info = dict[str, Any]
WRIST = "robot0_eye_in_hand"
# robosuite's own limit must never come first: `EpisodeStatistics` truncates.
_ENDLESS = 10**9
_TINY = 1e-8
_COLLISION_SHAPES = 0  # the group of geoms that robosuite doesn't show


def make(config: Robosuite, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    native = settle_rendering("robosuite", images=config.obs_mode == "rgb", render=render)
    return assemble_filmed(
        lambda: _Task(config, ignore_terminations),
        num_envs,
        max_episode_steps=limit,
        frame=_Task.frame if native else None,
        schematic=config.task_id if render else None,
    )


class _Task(gymnasium.Env[Info, Any]):
    """One robosuite environment in the project's words.

    Args:
        config: task and observations.
        ignore_terminations: never say that an episode terminated.
    """

    def __init__(self, config: Robosuite, ignore_terminations: bool) -> None:
        self._config = config
        self._terminates = not ignore_terminations
        self._images = config.obs_mode == "rgb"
        # robosuite 1.5 does it by itself, and has another `step` for it.
        self._physics = lite_physics if config.lite_physics and _is_older() else nullcontext
        with seeded(0):
            self._env = _build(config)
            observation = self._env.reset()
        self._cameras = Cameras(self._env, config.image_size, config.look)
        self.images_on_demand = ImagesOnDemand(self._draw) if self._images else None
        low, high = self._env.action_spec
        self.action_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32), low.shape, np.float32)
        image = (config.image_size, config.image_size, 3) if self._images else None
        size = len(self._states(observation))
        self.observation_space = observation_space(states=size, main=image, wrist=image, text=False)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        forget(self._env)
        if hasattr(self._env, "rng"):  # robosuite 1.5; what it has built holds this very generator
            self._env.rng.bit_generator.state = np.random.default_rng(seed or 0).bit_generator.state
        with seeded(seed or 0):
            observation = self._env.reset()
        return self._observe(observation), {}

    def step(self, action: Any) -> tuple[Info, float, bool, bool, Info]:
        with self._physics(self._env.sim):
            observation, reward, _, _ = self._env.step(np.asarray(action, np.float64))
        success = bool(self._env._check_success())
        return self._observe(observation), float(reward), success and self._terminates, False, {"success": success}

    def frame(self) -> NDArray[np.uint8]:
        """What the main camera sees, `[H, W, 3]`."""
        return self._cameras.frame(self._config.camera)

    def close(self) -> None:
        self._cameras.close()
        self._env.close()

    def _states(self, observation: Info) -> NDArray[np.float32]:
        keys = ("robot0_proprio-state",) if self._images else ("robot0_proprio-state", "object-state")
        return np.concatenate([observation[key] for key in keys if key in observation]).astype(np.float32)

    def _observe(self, observation: Info) -> Info:
        found: Info = {"states": self._states(observation)}
        return found if self.images_on_demand is None else found | self.images_on_demand.observe()

    def _draw(self) -> dict[str, NDArray[np.uint8]]:
        return {"main_images": self.frame(), "wrist_images": self._cameras.frame(WRIST)}


class Cameras:
    """Draws whatever simulation a robosuite environment holds now; it may build another at a reset.

    robosuite's own offscreen context is left out: it costs several times as much, and several of them draw into one another.

    Args:
        env: a robosuite environment without renderers.
        size: pixels, each way.
        look: see `Look`.
    """

    def __init__(self, env: Any, size: int, look: Look) -> None:
        self._env = env
        self._size = size
        self._look: Look = look
        self._model: Any = None
        self._renderer: ModelRenderer | None = None

    def frame(self, camera: str) -> NDArray[np.uint8]:
        """What a camera sees, `[size, size, 3]`, the right way up."""
        model = self._env.sim.model._model
        # A context holds the meshes and textures of its model; a reset may have built another one.
        if self._renderer is None or self._model is not model:
            self.close()
            self._model, self._renderer = model, ModelRenderer(model, self._size, self._look, hidden=(_COLLISION_SHAPES,))
        return self._renderer.render(self._env.sim.data._data, camera)

    def close(self) -> None:
        """Frees the context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def proprioception(observation: Info) -> NDArray[np.float32]:
    """Position and axis-angle of the hand and the positions of both fingers, `[8]`.

    The angle is in [0, 2π], as published policies know it: a hand that points down is turned by about π, where taking the shorter
    way would make the sign jump.
    """
    quaternion = np.asarray(observation["robot0_eef_quat"], np.float64)
    # robosuite's quaternions have w last.
    axis, cosine = quaternion[:3], float(np.clip(quaternion[3], -1.0, 1.0))
    sine = np.sqrt(1.0 - cosine * cosine)
    turn = axis * (2.0 * np.arccos(cosine) / sine) if sine > _TINY else np.zeros(3)
    return np.concatenate([observation["robot0_eef_pos"], turn, observation["robot0_gripper_qpos"]]).astype(np.float32)


def forget(env: Any) -> None:
    """Clears what a reset without a new model leaves behind: a gripper goes on from the last action that it was given."""
    for robot in env.robots:
        held: Any = robot.gripper
        grippers: list[Any] = list(cast("dict[str, Any]", held).values()) if isinstance(held, dict) else [held]
        for gripper in grippers:  # by arm in robosuite 1.5
            gripper.current_action = np.zeros(gripper.dof)


def quiet_import(module: str) -> Any:
    """Imports what is built on robosuite, without its advice on its own settings."""
    logging.getLogger("robosuite_logs").addFilter(lambda record: record.levelno >= logging.ERROR)
    if gl_backend() is None:
        # robosuite loads OpenGL when it is imported; this way it does so only to draw.
        os.environ["MUJOCO_GL"] = "glx"
    imported = importlib.import_module(module)
    importlib.import_module("robosuite.utils.binding_utils").MjSim.from_xml_string = classmethod(_simulation)
    return imported


def _simulation(kind: Any, xml: str) -> Any:
    """A simulation with a model of its own; robosuite would compile it for each environment, which takes ten times as long."""
    return kind(copy.deepcopy(_compiled(xml)))


@lru_cache(maxsize=1)
def _compiled(xml: str) -> Any:
    """The model that all environments of a task have; one is kept, as its textures may be large."""
    return importlib.import_module("mujoco").MjModel.from_xml_string(xml)


def _build(config: Robosuite) -> Any:
    suite = quiet_import("robosuite")
    if not suite.__version__.startswith(("1.4.", "1.5.")):
        raise ConfigError("env", f"expected robosuite 1.4 or 1.5, found {suite.__version__}", "Install one of them.")
    if config.task_id not in suite.ALL_ENVIRONMENTS:
        known = ", ".join(sorted(suite.ALL_ENVIRONMENTS))
        raise ConfigError("env.task_id", f"robosuite has no task '{config.task_id}'", f"Tasks: {known}.")
    return suite.make(
        config.task_id,
        robots=config.robot,
        controller_configs=_controller(suite, config),
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        use_object_obs=True,
        reward_shaping=config.reward_mode == "dense",
        control_freq=20,
        horizon=_ENDLESS,
        ignore_done=True,
        hard_reset=config.rebuild,
        # Without a seed, its first model would be another each time.
        **({} if _is_older() else {"seed": 0, "lite_physics": config.lite_physics}),
    )


def _is_older() -> bool:
    """Whether this is robosuite 1.4."""
    return str(importlib.import_module("robosuite").__version__).startswith("1.4.")


def _controller(suite: Any, config: Robosuite) -> Any:
    """What an action means, for the one arm."""
    if _is_older():
        return suite.load_controller_config(default_controller=config.controller)
    part = suite.load_part_controller_config(default_controller=config.controller)
    factory: Any = importlib.import_module("robosuite.controllers.composite.composite_controller_factory")
    # robosuite 1.5 has a controller for each part of a robot; a single arm is called `right`.
    return factory.refactor_composite_controller_config(part, config.robot, ["right"])
