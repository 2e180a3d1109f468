"""Meta-World itself. Only imported when an environment is built."""

from __future__ import annotations

import importlib
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.envs._task_pool import Pool, PooledTask, choose
from rlinf.envs.adapters import observation_space
from rlinf.envs.assembly import ExpertVectorEnv, assemble_filmed
from rlinf.envs.metaworld.metaworld import TASKS
from rlinf.envs.rendering._mujoco import EnvRenderer
from rlinf.envs.rendering.mujoco import settle_rendering
from rlinf.envs.rendering.on_demand import ImagesOnDemand

if TYPE_CHECKING:
    from rlinf.envs.metaworld.metaworld import MetaWorld

Info = dict[str, Any]
_STATES, _PROPRIOCEPTION, _GOAL = 39, 4, 3
_WRIST = "gripperPOV"
_LONGEST_TEXT = max(len(text) for text in TASKS.values())


def make(config: MetaWorld, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    native = settle_rendering("Meta-World", images=config.obs_mode == "rgb", render=render)
    pool = Pool(partial(_Simulation, config=config, limit=limit, native=native))
    return assemble_filmed(
        lambda: _Task(config, pool, ignore_terminations),
        num_envs,
        max_episode_steps=limit,
        frame=_Task.frame if native else None,
        schematic="MetaWorld" if render else None,
        vector=ExpertVectorEnv,
    )


class _Simulation:
    """One of Meta-World's environments, whose resets depend on their seed alone, with its cameras.

    Args:
        name: its task.
        config: what is observed.
        limit: steps of the longest episode.
        native: frames are wanted, whether or not they are observed.
    """

    def __init__(self, name: str, config: MetaWorld, limit: int, native: bool) -> None:
        images = config.obs_mode == "rgb"
        pixels = {"width": config.image_size, "height": config.image_size}
        drawn = {"render_mode": "rgb_array", "camera_name": config.camera, **pixels} if images or native else {}
        classes: Any = importlib.import_module("metaworld.env_dict").ALL_V3_ENVIRONMENTS
        env: Any = classes[f"{name}-v3"](**drawn)
        # Meta-World refuses to step beyond its own limit, so ours must come first.
        env.max_path_length = limit + 1
        # Meta-World draws from its own generator, seeded by `seed`, only if no task object fixes the positions.
        env._freeze_rand_vec, env.seeded_rand_vec, env._set_task_called = False, True, True
        env._partially_observable = not config.goal_observable
        # A cached property, which holds the space from before the goal could be seen.
        env.__dict__.pop("sawyer_observation_space", None)
        self.env = env
        self._expert: Any = importlib.import_module("metaworld.policies").ENV_POLICY_MAP[f"{name}-v3"]()
        # Meta-World mounts its corner cameras upside down.
        self._upside_down = config.camera.startswith("corner")
        self._viewer = EnvRenderer(env, env.mujoco_renderer, config.look) if drawn else None
        self._cameras = [env.mujoco_renderer.camera_id, env.model.camera(_WRIST).id]

    def reset(self, seed: int) -> NDArray[np.float64]:
        self.env.seed(seed)
        observation: NDArray[np.float64] = self.env.reset()[0]
        return observation

    def expert_action(self, observation: NDArray[np.float64]) -> NDArray[np.float32]:
        """`[4]`, what Meta-World's own scripted policy does, which sees the goal always.

        Args:
            observation: `[39]`, the one before it.
        """
        seen = np.concatenate([observation[:-_GOAL], self.env._get_pos_goal()])
        with warnings.catch_warnings():
            # It warns of actions that are too large, which are clipped here.
            warnings.simplefilter("ignore")
            return np.clip(self._expert.get_action(seen), -1.0, 1.0).astype(np.float32)

    def frame(self, *, wrist: bool = False) -> NDArray[np.uint8]:
        """What the main camera or that of the gripper sees, `[H, W, 3]`."""
        if self._viewer is None:
            raise ConfigError("env.render", "this environment was built without images", "Build it with render=True.")
        self.env.mujoco_renderer.camera_id = self._cameras[wrist]
        frame = self._viewer.frame()
        return np.ascontiguousarray(frame[::-1, ::-1]) if self._upside_down and not wrist else frame

    def close(self) -> None:
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None
        self.env.close()


class _Task(PooledTask[_Simulation]):
    """See `PooledTask`; `config` has tasks and observations."""

    def __init__(self, config: MetaWorld, pool: Pool[_Simulation], ignore_terminations: bool) -> None:
        super().__init__(pool, config.tasks, ignore_terminations)
        self._config = config
        several = len(self.names) > 1
        self.metadata: dict[str, Any] = {"render_modes": []}
        if several:
            self.metadata |= {"reset_options": ("task",), "tasks": tuple(TASKS[name] for name in self.names)}
        self._images = config.obs_mode == "rgb"
        self.images_on_demand = ImagesOnDemand(self._draw) if self._images else None
        self._texts = self._images or several
        size = (_PROPRIOCEPTION if self._images else _STATES) + (len(self.names) if config.one_hot else 0)
        image = (config.image_size, config.image_size, 3) if self._images else None
        wrist = image if config.wrist_camera else None
        self.observation_space = observation_space(
            states=size, main=image, wrist=wrist, text=self._texts, longest_text=_LONGEST_TEXT
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self._seen = np.zeros(_STATES)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        if seed is None:
            raise ConfigError("env.reset", "expected a seed, found None")
        number = choose(_plain((options or {}).get("task")), seed, self.names, self.metadata.get("tasks", ()))
        return self._observe(self.change(number).reset(seed)), ({"task": number} if len(self.names) > 1 else {})

    def step(self, action: Any) -> tuple[Info, float, bool, bool, Info]:
        observation, reward, _, _, info = self.simulation.env.step(action)
        success = bool(info["success"])
        if self._config.reward_mode == "sparse":
            reward = float(success)
        return self._observe(observation), float(reward), success and self.terminates, False, {"success": success}

    def expert_action(self) -> NDArray[np.float32]:
        """`[4]`, what the scripted expert of the task does now."""
        return self.simulation.expert_action(self._seen)

    def frame(self) -> NDArray[np.uint8]:
        """What the main camera sees, `[H, W, 3]`."""
        return self.simulation.frame()

    def _observe(self, observation: NDArray[np.float64]) -> Info:
        self._seen = observation
        states = np.asarray(observation[:_PROPRIOCEPTION] if self._images else observation, np.float32)
        if self._config.one_hot:
            states = np.concatenate([states, np.eye(len(self.names), dtype=np.float32)[self.number]])
        found: Info = {"states": states}
        if self._texts:
            found["task_descriptions"] = TASKS[self.names[self.number]]
        return found if self.images_on_demand is None else found | self.images_on_demand.observe()

    def _draw(self) -> dict[str, NDArray[np.uint8]]:
        main = {"main_images": self.simulation.frame()}
        return main | {"wrist_images": self.simulation.frame(wrist=True)} if self._config.wrist_camera else main


def _plain(task: str | int | None) -> str | int | None:
    return task.removesuffix("-v3") if isinstance(task, str) else task
