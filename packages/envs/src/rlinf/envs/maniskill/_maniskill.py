"""ManiSkill itself. Only imported when an environment is built."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Generator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.core.lazy import without_collection
from rlinf.envs._batched import space_of
from rlinf.envs.assembly import ExpertVectorEnv, assemble_filmed, logger
from rlinf.envs.maniskill._expert import expert_action, has_expert
from rlinf.envs.maniskill._observations import embodied, episode_id, numbered_states
from rlinf.envs.maniskill._postponed import little_garbage, only_the_cpu_seeded, postponed
from rlinf.envs.text_array import TextArray
from rlinf.envs.wrappers.video import Frame

if TYPE_CHECKING:
    from rlinf.envs.maniskill.maniskill import ManiSkill

_FRAME = 320
# Each of these modules has `RenderMaterial` under a name of its own, so each must be given the other one.
_RENDER_MATERIAL_HOLDERS = ("sapien.render", "sapien.pysapien.render", "sapien.wrapper.urdf_loader")
_LATE_HOLDER = "mani_skill.utils.building._mjcf_loader"
# ManiSkill and what it builds on import these for notebooks, plots and downloads: 2 of the 5 CPU-s of its import.
_UNUSED = ("matplotlib", "IPython", "huggingface_hub")
_INSTALL_VULKAN = "Install a Vulkan driver, such as Mesa's mesa-vulkan-drivers 25 or later"


def make(config: ManiSkill, num_envs: int, limit: int | None, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    renderer = _import_simulator()
    module, _, task_id = config.task_id.rpartition(":")
    if module:
        importlib.import_module(module)
    limit = limit or gymnasium.spec(task_id).max_episode_steps
    if limit is None:
        raise ConfigError("env", f"the task '{task_id}' has no step limit of its own", "Set max_episode_steps.")
    if config.obs_mode != "state" and renderer is None:
        raise ConfigError("env.obs_mode", f"'{config.obs_mode}' needs a working Vulkan driver", f"{_INSTALL_VULKAN}.")
    batched = _on_gpu(config, num_envs)
    backend = "physx_cuda" if batched else "physx_cpu"
    build = partial(build_simulation, config, task_id, sim_backend=backend, renderer=renderer, rendered=render)
    if batched:
        from rlinf.envs.maniskill._gpu import make_batched

        return make_batched(build(num_envs=num_envs), config, limit, ignore_terminations, render)
    if render and renderer is None:
        logger.warning("ManiSkill can't render here (no Vulkan device): videos of %s are drawn schematics", task_id)
    rendered = renderer is not None and (render or config.obs_mode != "state")
    with little_garbage(), only_the_cpu_seeded():
        return assemble_filmed(
            lambda: _Task(build(num_envs=1), config, ignore_terminations, rendered=rendered),
            num_envs,
            max_episode_steps=limit,
            frame=_Task.frame if render and renderer is not None else None,
            schematic=task_id if render else None,
            vector=ExpertVectorEnv if has_expert(config.task_id, config.control_mode, config.kwargs) else None,
        )


def _on_gpu(config: ManiSkill, num_envs: int) -> bool:
    """Whether all environments are one simulation on a GPU.

    Raises:
        ConfigError: they are to be, and there is none.
    """
    cuda = torch.cuda.is_available()
    if config.sim_backend == "gpu" and not cuda:
        raise ConfigError("env.sim_backend", "'gpu' needs a CUDA device, found none", "Use sim_backend: cpu.")
    return config.sim_backend == "gpu" or (config.sim_backend == "auto" and cuda and num_envs > 1)


class _Task(gymnasium.Env[dict[str, Any], Any]):
    """One simulation with NumPy at its border.

    Args:
        simulation: a `BaseEnv` that holds a single environment on the CPU.
        config: what is observed and rewarded.
        ignore_terminations: never say that an episode terminated.
        rendered: the simulation has a renderer; it is then rebuilt by each reset, which takes long, to forget its past.
    """

    def __init__(self, simulation: Any, config: ManiSkill, ignore_terminations: bool, *, rendered: bool) -> None:
        # These import ManiSkill themselves, so only after it was made to work here.
        from rlinf.envs.maniskill._fast_maniskill import shorten
        from rlinf.envs.maniskill._fresh_scene import renew_scene

        self.simulation = simulation
        self._renew = None if rendered else renew_scene
        self._shorten = shorten
        self._obs_mode = config.obs_mode
        self._description = config.description
        self._terminates = not ignore_terminations
        self._rewards_success = simulation.reward_mode == "none"
        self._numbered = numbered_states(simulation)
        # A rendered simulation is rebuilt by each reset, which would undo this.
        if not rendered:
            shorten(simulation)
        with torch.inference_mode():
            knows_success = "success" in simulation.get_info()
            space = space_of(embodied(simulation.get_obs(), config.obs_mode))
        self.metadata = {"reset_options": ("init_id",) if self._numbered else (), "knows_success": knows_success}
        if config.obs_mode != "state":
            space["task_descriptions"] = TextArray(len(config.description))
        self.observation_space = space
        self.action_space = simulation.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        given: dict[str, Any] = {} if self._renew else {"reconfigure": True}
        if options:
            given["episode_id"] = episode_id([options["init_id"]], self._numbered, self.simulation.device)
        with torch.inference_mode():
            if self._renew:
                self._renew(self.simulation)
            with only_the_cpu_seeded(), contextlib.nullcontext() if self._renew else little_garbage():
                raw, _ = self.simulation.reset(seed=seed, options=given)
            # Such a task rebuilds itself at a reset, with objects of the ordinary classes.
            if self._renew and self.simulation.reconfiguration_freq != 0:
                self._shorten(self.simulation)
        return self._observe(raw), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        with torch.inference_mode():
            raw, reward, terminated, _, info = self.simulation.step(action)
            success = bool(info["success"]) if "success" in info else False
            ended = self._terminates and bool(terminated)
            return self._observe(raw), float(success if self._rewards_success else reward), ended, False, {"success": success}

    def expert_action(self) -> NDArray[np.float32]:
        """`[A]`, what the expert does now in a task that has one."""
        return expert_action(self.simulation)

    def frame(self) -> Frame:
        """What the task's own camera sees, `[H, W, 3]`."""
        with torch.inference_mode():
            return self.simulation.render()[0].cpu().numpy()

    def close(self) -> None:
        with little_garbage():
            self.simulation.close()

    def _observe(self, raw: Any) -> dict[str, Any]:
        if self._obs_mode == "state":
            return {"states": raw[0].numpy()}
        rows = {key: tensor[0].numpy() for key, tensor in embodied(raw, self._obs_mode).items()}
        return {**rows, "task_descriptions": self._description}


@without_collection()
def _import_simulator() -> str | None:
    """Imports ManiSkill so that it works without Vulkan too; says what it can render with, or None."""
    with warnings.catch_warnings(), postponed(*_UNUSED):
        warnings.filterwarnings("ignore", message=".*libvulkan.*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        modules = [importlib.import_module(name) for name in _RENDER_MATERIAL_HOLDERS]
        renderer = _renderer(modules[0])
        if renderer is None:
            # Where somebody has imported ManiSkill before, this module holds the material that can't be made.
            late = [sys.modules[_LATE_HOLDER]] if _LATE_HOLDER in sys.modules else []
            _replace_render_material(modules + late)
        importlib.import_module("mani_skill.envs")
    # The blank is part of the name.
    logging.getLogger("mani_skill ").setLevel(logging.ERROR)
    return renderer


def _renderer(render: ModuleType) -> str | None:
    """The device that SAPIEN can render with, asked by making a renderer: no cheaper question is answered truthfully."""
    device: Any = importlib.import_module("sapien").Device
    # That a device can't render is an answer here, not an error to be logged.
    render.set_log_level("off")
    try:
        for name in ("cuda", "cpu"):
            with contextlib.suppress(RuntimeError):
                render.RenderSystem(device(name))
                return f"sapien_{name}"
    finally:
        render.set_log_level("warn")
    return None


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


def build_simulation(
    config: ManiSkill, task_id: str, *, num_envs: int, sim_backend: str, renderer: str | None, rendered: bool
) -> Any:
    """A `BaseEnv`; `rendered` gives it a camera for `render`, if there is anything to render with.

    Raises:
        ConfigError: the task can't be built: no such reward, assets that are missing, or no renderer.
    """
    cls: Any = getattr(_registered(task_id), "cls", None)
    settings: dict[str, Any] = {"control_mode": config.control_mode, "obs_mode": _obs_mode(config, cls)}
    settings["reward_mode"] = _reward_mode(config, cls, task_id)
    if config.image_size is not None:
        settings["sensor_configs"] = {"width": config.image_size, "height": config.image_size}
    if renderer is not None and rendered:
        settings |= {"render_mode": "rgb_array", "human_render_camera_configs": {"width": _FRAME, "height": _FRAME}}
    needed = renderer if rendered or config.obs_mode != "state" else None
    try:
        with warnings.catch_warnings(), _no_downloads(task_id):
            warnings.simplefilter("ignore")
            env: Any = gymnasium.make(
                task_id,
                num_envs=num_envs,
                sim_backend=sim_backend,
                render_backend=needed or "none",
                disable_env_checker=True,
                **settings,
                **config.kwargs,
            )
    except AssertionError as error:
        if "not in supported modes" not in str(error):
            raise
        remedy = "Choose another one, or null for the robot's own."
        raise ConfigError("env.control_mode", f"expected a mode of the robot of '{task_id}': {error}", remedy) from error
    except AttributeError as error:
        if renderer is not None:
            raise
        remedy = f"{_INSTALL_VULKAN}, or choose another task."
        raise ConfigError("env.task_id", f"'{task_id}' can't be built without a Vulkan device ({error})", remedy) from error
    # Without the step limit of `gymnasium.make`: `EpisodeStatistics` truncates.
    return env.unwrapped


def _registered(task_id: str) -> Any:
    tasks: dict[str, Any] = importlib.import_module("mani_skill.utils.registration").REGISTERED_ENVS
    return tasks.get(task_id)


def _obs_mode(config: ManiSkill, cls: Any) -> str:
    supported: list[str] = getattr(cls, "SUPPORTED_OBS_MODES", [])
    # The put-on-plate tasks know no other: they paint a photograph around what is segmented.
    return "rgb+segmentation" if supported == ["rgb+segmentation"] else config.obs_mode


def _reward_mode(config: ManiSkill, cls: Any, task_id: str) -> str:
    supported: list[str] = getattr(cls, "SUPPORTED_REWARD_MODES", [config.reward_mode])
    if config.reward_mode in supported:
        return config.reward_mode
    if config.reward_mode == "sparse":
        # A task without a sparse reward: `success` takes its place.
        return "none"
    known = ", ".join(mode for mode in supported if mode != "none") or "sparse"
    raise ConfigError("env.reward_mode", f"'{task_id}' has no reward '{config.reward_mode}'", f"It has: {known}.")


@contextlib.contextmanager
def _no_downloads(task_id: str) -> Generator[None]:
    """Nothing is fetched unasked, and nobody is asked on a terminal, where a worker would wait for ever."""
    module: Any = importlib.import_module("mani_skill.utils.download_asset")
    ask = module.prompt_yes_no

    def refuse(message: str) -> bool:
        what = f"'{task_id}' needs assets that are not on this machine ({message.partition('.')[0]})"
        raise ConfigError("env.task_id", what, "Fetch them: python -m mani_skill.utils.download_asset <name>.")

    module.prompt_yes_no = refuse
    try:
        yield
    finally:
        module.prompt_yes_no = ask
