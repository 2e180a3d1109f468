"""LIBERO itself. Only imported when an environment is built."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import shutil
import tempfile
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.core.random import keyed_generator
from rlinf.envs._task_pool import Pool, PooledTask, choose
from rlinf.envs.adapters import observation_space, seeded
from rlinf.envs.assembly import ExpertVectorEnv, assemble_filmed
from rlinf.envs.libero._expert import expert_action
from rlinf.envs.libero.libero import assets_folder, initial_states, package_folder
from rlinf.envs.rendering.mujoco import settle_rendering
from rlinf.envs.rendering.on_demand import ImagesOnDemand
from rlinf.envs.robosuite._lite_physics import lite_physics
from rlinf.envs.robosuite._robosuite import WRIST, Cameras, forget, proprioception, quiet_import

if TYPE_CHECKING:
    from rlinf.envs.libero.libero import Libero

Info = dict[str, Any]
_ENDLESS = 10**9
_SEEN = "agentview"
_PROPRIOCEPTION = 8
# No motion; -1 opens the gripper.
_IDLE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)


def make(config: Libero, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    native = settle_rendering("LIBERO", images=config.obs_mode == "rgb", render=render)
    _import_libero(config)
    pool = Pool(partial(_Simulation, config), keep=config.max_idle)
    return assemble_filmed(
        lambda: _Task(config, pool, ignore_terminations),
        num_envs,
        max_episode_steps=limit,
        frame=_Task.frame if native else None,
        schematic=config.suite if render else None,
        vector=ExpertVectorEnv if config.has_expert else None,
    )


class _Simulation:
    """One of LIBERO's environments, whose resets depend on their arguments alone.

    Args:
        config: what is observed, and where the meshes are.
        name: its task.
    """

    def __init__(self, config: Libero, name: str) -> None:
        self._settle_steps = config.settle_steps
        self._physics = lite_physics if config.lite_physics else nullcontext
        self.states = initial_states(config, name)
        file = package_folder() / "bddl_files" / config.suite / f"{name}.bddl"
        wrapper: Any = importlib.import_module("libero.libero.envs.env_wrapper")
        with seeded(0):
            self.env: Any = wrapper.ControlEnv(
                bddl_file_name=str(file),
                use_camera_obs=False,
                has_offscreen_renderer=False,
                # A reset keeps the model; `forget` clears what is left behind in it.
                hard_reset=False,
                ignore_done=True,
                horizon=_ENDLESS,
            )
        self._cameras = Cameras(self.env, config.image_size, config.look)
        size = self.env.get_sim_state().size
        if self.states.shape[1] != size:
            problem = f"the meshes give a simulation of {size} numbers, the initial states have {self.states.shape[1]}"
            raise ConfigError("env.assets", problem, "Fetch the meshes that belong to hf-libero 0.1.4.")

    def reset(self, number: int, seed: int) -> Info:
        """Starts from a shipped initial state; the seed decides what that leaves open, which is where fixtures stand."""
        forget(self.env)
        with seeded(seed):
            self.env.reset()
        observation: Info = self.env.set_init_state(self.states[number])
        for _ in range(self._settle_steps):
            observation, _ = self.step(_IDLE)
        return observation

    def step(self, action: Any) -> tuple[Info, bool]:
        """What is observed then, and whether the task is solved."""
        with self._physics(self.env.sim):
            observation, _, success, _ = self.env.step(np.asarray(action, np.float64))
        return observation, bool(success)

    def frame(self, camera: str) -> NDArray[np.uint8]:
        return self._cameras.frame(camera)

    def close(self) -> None:
        self._cameras.close()
        self.env.close()


class _Task(PooledTask[_Simulation]):
    """See `PooledTask`; `config` has tasks and observations."""

    def __init__(self, config: Libero, pool: Pool[_Simulation], ignore_terminations: bool) -> None:
        super().__init__(pool, config.names, ignore_terminations)
        self._config = config
        self._texts = config.texts
        self.metadata: dict[str, Any] = {"render_modes": [], "reset_options": ("task", "init_id"), "tasks": self._texts}
        self.metadata["init_ids"] = _init_ids(config)
        images = config.obs_mode == "rgb"
        size = _PROPRIOCEPTION if images else _PROPRIOCEPTION + initial_states(config, self.names[0]).shape[1]
        image, longest = (config.image_size, config.image_size, 3) if images else None, max(map(len, self._texts))
        self.observation_space = observation_space(states=size, main=image, wrist=image, text=images, longest_text=longest)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (len(_IDLE),), np.float32)
        self.images_on_demand = ImagesOnDemand(self._draw) if images else None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        given = options or {}
        seed = seed or 0
        number = choose(given.get("task"), seed, self.names, self._texts)
        simulation = self.change(number)
        count = len(simulation.states)
        init = given.get("init_id")
        if init is None:
            init = int(keyed_generator(seed, "init").integers(count))
        elif init >= count:
            problem = f"the task '{self.names[number]}' has no initial state {init}"
            raise ConfigError("env.reset", problem, f"They are numbered 0 to {count - 1}.")
        return self._observe(simulation.reset(init, seed)), ({"task": number} if len(self.names) > 1 else {})

    def step(self, action: Any) -> tuple[Info, float, bool, bool, Info]:
        observation, success = self.simulation.step(action)
        return self._observe(observation), float(success), success and self.terminates, False, {"success": success}

    def expert_action(self) -> NDArray[np.float32]:
        """`[7]`, what the scripted expert does now."""
        return expert_action(self.simulation.env.env)

    def frame(self, camera: str = _SEEN) -> NDArray[np.uint8]:
        """What a camera sees, `[H, W, 3]`, the right way up."""
        return self.simulation.frame(camera)

    def _observe(self, observation: Info) -> Info:
        states = proprioception(observation)
        if self.images_on_demand is None:
            return {"states": np.concatenate([states, self.simulation.env.get_sim_state()]).astype(np.float32)}
        return {"states": states, "task_descriptions": self._texts[self.number], **self.images_on_demand.observe()}

    def _draw(self) -> dict[str, NDArray[np.uint8]]:
        cameras = {"main_images": _SEEN, "wrist_images": WRIST}
        return {key: _turned(self.frame(camera), self._config.image_convention) for key, camera in cameras.items()}


def _turned(frame: NDArray[np.uint8], convention: str) -> NDArray[np.uint8]:
    # `raw` rows run upwards, as OpenGL has them; `rotated` turns `raw` by 180°, which mirrors the upright frame left to right.
    turns = {"upright": frame, "raw": frame[::-1], "rotated": frame[:, ::-1]}
    return np.ascontiguousarray(turns[convention])


@cache
def _init_ids(config: Libero) -> int:
    """How many initial states every task has."""
    return min(len(initial_states(config, name)) for name in config.names)


def _import_libero(config: Libero) -> None:
    """Imports LIBERO so that it asks nothing and downloads nothing."""
    given = os.environ.get("LIBERO_CONFIG_PATH")
    folder = Path(given or "~/.libero").expanduser()
    if not (folder / "config.yaml").is_file():
        if given is None:
            folder = Path(tempfile.mkdtemp(prefix="rlinf-libero-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            os.environ["LIBERO_CONFIG_PATH"] = str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Where this file is missing, LIBERO asks for its paths on the terminal when it is imported.
        (folder / "config.yaml").write_text(_settings(config), encoding="utf-8")
    quiet_import("robosuite")
    # LIBERO looks nowhere but here for its meshes before it downloads them; its own setting of this name is never read.
    library: Any = importlib.import_module("libero.libero")
    library._assets_path_cache = str(assets_folder(config))


def _settings(config: Libero) -> str:
    """LIBERO's paths as YAML, of which JSON is a part."""
    root = package_folder()
    paths = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": root.parent / "datasets",
        "assets": assets_folder(config),
    }
    return "".join(f"{key}: {json.dumps(str(path))}\n" for key, path in paths.items())
