"""Habitat itself. Only imported when an environment is built."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.core.random import keyed_seed
from rlinf.envs.adapters import TEXT_LENGTH, Observation, Outcome, adapt, numbers, observation_space, picture, vector

if TYPE_CHECKING:
    from rlinf.envs.unverified.habitat.habitat import Habitat


def make(config: Habitat, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    if ignore_terminations:
        raise ConfigError("env.ignore_terminations", "Habitat refuses steps after a stop", "Set it to false.")
    return adapt(lambda: _HabitatSimulation(config), num_envs, limit, False, render, {"reset_options": ("init_id",)})


class _HabitatSimulation:
    """A `Simulation` over `habitat.Env`."""

    def __init__(self, config: Habitat) -> None:
        habitat = importlib.import_module("habitat")
        # 0 is no limit of Habitat's own: ours truncates.
        limits = ["habitat.environment.max_episode_steps=0", "habitat.environment.max_episode_seconds=0"]
        self._env = habitat.Env(config=habitat.get_config(config.config, [*config.overrides, *limits]))
        self._config = config
        self._names: list[str] = list(self._env.action_space.spaces)
        spaces: Any = self._env.observation_space.spaces
        states = numbers(*(spaces[key] for key in config.states))
        height, width = spaces["rgb"].shape[:2]
        self.observation_space = observation_space(states=states, main=(height, width, 3), text=config.goal != "none")
        self.action_space = gymnasium.spaces.Discrete(len(self._names))
        self._distance = 0.0

    def reset(self, seed: int, options: Mapping[str, Any]) -> Observation:
        """Starts the episode that `init_id` names or the seed draws.

        Raises:
            ConfigError: the dataset has no such episode.
        """
        episodes = self._env.episodes
        number = int(options.get("init_id", keyed_seed(seed, "episode") % len(episodes)))
        if number >= len(episodes):
            raise ConfigError("env.reset", f"the dataset has {len(episodes)} episodes, found init_id={number}", "Count from 0.")
        self._env.seed(seed)
        # Habitat's next reset keeps an episode that was set, instead of taking the next one of its iterator.
        self._env.current_episode = episodes[number]
        seen = self._env.reset()
        self._distance = self._to_goal()
        return self._observe(seen)

    def step(self, action: NDArray[Any]) -> Outcome:
        seen = self._env.step({"action": self._names[int(action)]})
        stopped = bool(self._env.episode_over)
        success = stopped and bool(self._env.get_metrics()["success"])
        before, self._distance = self._distance, self._to_goal()
        return Outcome(
            observation=self._observe(seen), reward=float(success) + before - self._distance, success=success, terminated=stopped
        )

    def close(self) -> None:
        self._env.close()

    def _to_goal(self) -> float:
        """Metres, or 0 where only success is rewarded."""
        return float(self._env.get_metrics()["distance_to_goal"]) if self._config.reward == "progress" else 0.0

    def _observe(self, seen: Mapping[str, Any]) -> Observation:
        observation: Observation = {"main_images": picture(seen["rgb"])}
        if self._config.states:
            observation["states"] = vector(*(seen[key] for key in self._config.states))
        episode = self._env.current_episode
        if self._config.goal == "object_category":
            observation["task_descriptions"] = f"find the {episode.object_category}"[:TEXT_LENGTH]
        elif self._config.goal == "instruction":
            observation["task_descriptions"] = str(episode.instruction.instruction_text)[:TEXT_LENGTH]
        return observation
