"""CALVIN itself. Only imported when an environment is built."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.core.random import keyed_seed
from rlinf.envs.adapters import TEXT_LENGTH, Observation, Outcome, adapt, observation_space, picture, vector

if TYPE_CHECKING:
    from rlinf.envs.unverified.calvin.calvin import Calvin

_TASKS = "callbacks/rollout/tasks/new_playtable_tasks.yaml"
_ANNOTATIONS = "annotations/new_playtable_validation.yaml"


def make(config: Calvin, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    return adapt(lambda: _Table(config), num_envs, limit, ignore_terminations, render, {"reset_options": ("init_id",)})


class _Table:
    """A `Simulation` over `PlayTableSimEnv`."""

    def __init__(self, config: Calvin) -> None:
        hydra, omegaconf = (importlib.import_module(name) for name in ("hydra", "omegaconf"))
        table = importlib.import_module("calvin_env.envs.play_table_env")
        sequences = importlib.import_module("calvin_agent.evaluation.multistep_sequences")
        self._states = importlib.import_module("calvin_agent.evaluation.utils")
        conf = Path(config.conf).expanduser()
        self._oracle = hydra.utils.instantiate(omegaconf.OmegaConf.load(conf / _TASKS))
        self._words = omegaconf.OmegaConf.load(conf / _ANNOTATIONS)
        self._sequences: list[Any] = list(sequences.get_sequences(config.sequences))
        self._env = table.get_env(Path(config.dataset).expanduser() / "validation", show_gui=False)
        self._config = config
        self._chain: list[str] = []
        self._solved, self._steps = 0, 0
        self._before: Any = None
        seen: Any = self._env.get_obs()
        main, wrist = seen["rgb_obs"]["rgb_static"].shape, seen["rgb_obs"]["rgb_gripper"].shape
        self.observation_space = observation_space(states=len(seen["robot_obs"]), main=main, wrist=wrist)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)

    def reset(self, seed: int, options: Mapping[str, Any]) -> Observation:
        """Starts the sequence that `init_id` names or the seed draws.

        Raises:
            ConfigError: there is no such sequence.
        """
        number = int(options.get("init_id", keyed_seed(seed, "sequence") % len(self._sequences)))
        if number >= len(self._sequences):
            problem = f"there are {len(self._sequences)} sequences, found init_id={number}"
            raise ConfigError("env.reset", problem, "Count from 0, or raise env.sequences.")
        start, subtasks = self._sequences[number]
        self._chain = list(subtasks)[: self._config.chain]
        self._solved, self._steps = 0, 0
        robot, scene = self._states.get_env_state_for_initial_condition(start)
        seen = self._env.reset(robot_obs=robot, scene_obs=scene)
        self._before = self._env.get_info()
        return self._observe(seen)

    def step(self, action: NDArray[Any]) -> Outcome:
        """One control step; CALVIN changes the array that it is given, and takes no gripper but −1 and 1."""
        command = np.array(action, np.float64)
        command[-1] = 1.0 if command[-1] > 0.0 else -1.0
        seen, _, _, info = self._env.step(command)
        self._steps += 1
        going = self._solved < len(self._chain)
        reached = going and bool(self._oracle.get_task_info_for_set(self._before, info, {self._chain[self._solved]}))
        if reached:
            self._solved, self._steps, self._before = self._solved + 1, 0, info
        whole = self._solved == len(self._chain)
        late = not whole and self._steps >= self._config.subtask_steps
        return Outcome(observation=self._observe(seen), reward=float(reached), success=whole, terminated=whole or late)

    def close(self) -> None:
        self._env.close()

    def _observe(self, seen: Mapping[str, Any]) -> Observation:
        # The words of the last subtask stay when the whole chain is solved.
        subtask = self._chain[min(self._solved, len(self._chain) - 1)]
        return {
            "main_images": picture(seen["rgb_obs"]["rgb_static"]),
            "wrist_images": picture(seen["rgb_obs"]["rgb_gripper"]),
            "states": vector(seen["robot_obs"]),
            "task_descriptions": str(self._words[subtask][0])[:TEXT_LENGTH],
        }
