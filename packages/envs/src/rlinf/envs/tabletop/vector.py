"""Many tables as one vector environment."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.envs.adapters import observation_space
from rlinf.envs.tabletop.canvas import Canvas, Reals
from rlinf.envs.tabletop.keyed_random import KeyedRandom
from rlinf.envs.tabletop.scene import Scene, World
from rlinf.envs.wrappers.episodes import Infos, Step, reset_rows

ObsMode = Literal["state", "rgb"]
RewardMode = Literal["sparse", "progress"]

# Parts of the keys, so that the same seed draws goals and layouts independently.
_GOAL, _LAYOUT, _INIT = 1, 2, 3
_LONGEST_TEXT = 64


class TabletopEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` tables with one kind of task, all stepped by the same NumPy operations, without autoreset.

    A goal is a task: `options["task"]` is a goal's name or number. With `options["init_id"]` the layout depends on the goal and
    the number alone. It is to be used inside an `EnforceContract`.

    Args:
        scene: the task.
        num_envs: tables.
        obs_mode: `state` gives everything as numbers; `rgb` gives images, proprioception and the task in words.
        image_size: pixels of the images, each way.
        reward_mode: `sparse` is 1.0 for each step to a solved table; `progress` adds by how much the step came
            nearer to it.
        goals: the goals among which a seed draws.
        ignore_terminations: go on after success.
    """

    # Gymnasium types these for one kind of space only.
    single_observation_space: Any
    single_action_space: Any
    observation_space: Any
    action_space: Any

    def __init__(
        self,
        scene: Scene,
        num_envs: int,
        *,
        obs_mode: ObsMode = "state",
        image_size: int = 32,
        reward_mode: RewardMode = "sparse",
        goals: tuple[str, ...] | None = None,
        ignore_terminations: bool = False,
    ) -> None:
        self.metadata = {
            "autoreset_mode": AutoresetMode.DISABLED,
            "max_episode_steps": scene.max_episode_steps,
            "reset_options": ("task", "init_id"),
        }
        if len(scene.goals) > 1:
            self.metadata["tasks"] = tuple(scene.instruction(i) for i in range(len(scene.goals)))
        self.scene = scene
        self.num_envs = num_envs
        self._rgb = obs_mode == "rgb"
        self._size = image_size
        self._progress = reward_mode == "progress"
        self._terminates = not ignore_terminations
        self._goals = np.array([_goal(scene, name) for name in goals or scene.goals])
        self._texts = np.array([scene.instruction(i) for i in range(len(scene.goals))], f"<U{_LONGEST_TEXT}")
        self._task = np.zeros(num_envs, np.int64)
        # Any world will do: its shapes are those of the spaces, and the first reset puts another one in its place.
        self._world: World = scene.start(KeyedRandom(np.zeros(num_envs, np.int64)), self._task)
        self.single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (scene.action_size,), np.float32)
        self.single_observation_space = self._space()
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Infos]:
        """Starts episodes.

        Args:
            seed: one for each table.
            options: `reset_mask`, and lists `task` and `init_id` with one entry for each table.

        Raises:
            ConfigError: a goal that doesn't exist.
        """
        options = options or {}
        nothing = [None] * self.num_envs
        mask = reset_rows(options, self.num_envs)
        seeds = np.array(seed, np.int64)[mask]
        wanted = np.array([_goal(self.scene, name) for name in options.get("task", nothing)])[mask]
        self._task[mask] = np.where(wanted >= 0, wanted, self._goals[KeyedRandom(seeds, _GOAL).choice(len(self._goals))])
        inits = np.array([-1 if number is None else number for number in options.get("init_id", nothing)], np.int64)[mask]
        task = self._task[mask]
        fixed = inits >= 0
        random = KeyedRandom(np.where(fixed, _INIT, _LAYOUT), np.where(fixed, task, 0), np.where(fixed, inits, seeds))
        fresh = self.scene.start(random, task)
        for key, values in fresh.items():
            changed = self._world[key].copy()
            changed[mask] = values
            self._world[key] = changed
        return self._observe(), {"task": self._task.copy()}

    def step(self, actions: NDArray[np.float32]) -> Step:
        """One step of every table; `infos["success"]` says which are solved."""
        before = self.scene.distance(self._world) if self._progress else 0.0
        # `EnforceContract` lets an action be a rounding error out of bounds.
        self._world = self.scene.move(self._world, np.clip(actions, -1.0, 1.0).astype(np.float64))
        success = self.scene.solved(self._world)
        reward = success.astype(np.float64)
        if self._progress:
            reward += before - self.scene.distance(self._world)
        terminated = success.copy() if self._terminates else np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        return self._observe(), reward.astype(np.float32), terminated, truncated, {"success": success}

    def expert_actions(self) -> NDArray[np.float32]:
        """What the scripted expert does now, `[N, A]` in [−1, 1]; it knows everything, whatever is observed."""
        return self.scene.expert(self._world).astype(np.float32)

    def frames(self, size: int, index: int | None = None) -> NDArray[np.uint8]:
        """The tables, or the table `index`, seen by the main camera, `[n, size, size, 3]`."""
        rows = slice(None) if index is None else slice(index, index + 1)
        world = {key: values[rows] for key, values in self._world.items()}
        tilt = self.scene.tilt
        count = len(next(iter(world.values())))
        canvas = Canvas(count, size, centre=(0.0, 0.3 * tilt), reach=1.1 + 0.17 * tilt, tilt=tilt)
        self.scene.draw(canvas, world)
        return canvas.finish()

    def _observe(self) -> dict[str, Any]:
        if not self._rgb:
            return {"states": self.scene.states(self._world).astype(np.float32)}
        observation: dict[str, Any] = {
            "main_images": self.frames(self._size),
            "states": self.scene.proprioception(self._world).astype(np.float32),
            "task_descriptions": self._texts[self._task],
        }
        view = self.scene.wrist_view(self._world)
        if view is not None:
            canvas = Canvas(self.num_envs, self._size, centre=view[0], reach=view[1])
            self.scene.draw(canvas, self._world)
            observation["wrist_images"] = canvas.finish()
        return observation

    def _space(self) -> Any:
        states: Reals = self.scene.proprioception(self._world) if self._rgb else self.scene.states(self._world)
        main = (self._size, self._size, 3) if self._rgb else None
        wrist = main if self.scene.wrist_view(self._world) is not None else None
        return observation_space(states=states.shape[1], main=main, wrist=wrist, text=self._rgb, longest_text=_LONGEST_TEXT)


def _goal(scene: Scene, name: str | int | None) -> int:
    """The number of a goal; −1 for None."""
    if name is None:
        return -1
    texts = [scene.instruction(number) for number in range(len(scene.goals))]
    for names in (scene.goals, texts):
        if isinstance(name, str) and name in names:
            return names.index(name)
    if not isinstance(name, str) and 0 <= name < len(scene.goals):
        return int(name)
    known = did_you_mean(str(name), scene.goals, label="Its goals")
    raise ConfigError("env.task", f"the task '{scene.name}' has no goal {name!r}", known)
