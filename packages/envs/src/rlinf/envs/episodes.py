"""Episodes: where they end, and what is known of them then."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

Infos = dict[str, Any]
Step = tuple[Any, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], Infos]


class EpisodeStatistics(VectorWrapper[Any, Any, Any]):
    """Truncates at a number of steps and keeps the statistics of each episode.

    `infos` after a step holds nothing but:

    - `success`: `[N]` bool, whether the task is solved in the state that was just reached;
    - `_episode`: `[N]` bool, whether the episode ended with this step (terminated or truncated);
    - `episode`: arrays `[N]`, valid where `_episode`: `success_once` bool, `success_at_end` bool, `return` float32 (the sum of
      rewards) and `episode_len` int32 (steps).

    Args:
        env: without autoreset; its `infos["success"]`, if there, is a bool array `[N]`.
        max_episode_steps: steps after which an episode is truncated.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], max_episode_steps: int) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "max_episode_steps": max_episode_steps}
        self._limit = max_episode_steps
        self._length = np.zeros(env.num_envs, np.int32)
        self._return = np.zeros(env.num_envs, np.float64)
        self._success_once = np.zeros(env.num_envs, np.bool_)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes, in all environments or where `options["reset_mask"]` says so."""
        fresh: Any = slice(None) if options is None else options.get("reset_mask", slice(None))
        # Gymnasium's base class is typed for one seed; its vector environments take one for each.
        inner = cast("Any", self.env)
        observations, _ = inner.reset(seed=seed, options=options)
        self._length[fresh] = 0
        self._return[fresh] = 0.0
        self._success_once[fresh] = False
        return observations, {}

    def step(self, actions: Any) -> Step:
        """One step of every environment; nothing is reset."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        success: NDArray[np.bool_] = np.asarray(infos.get("success", np.zeros(self.num_envs)), np.bool_)
        self._length += 1
        self._return += rewards
        self._success_once |= success
        truncated = np.asarray(truncated, np.bool_) | (self._length >= self._limit)
        episode = {
            "success_once": self._success_once.copy(),
            "success_at_end": success.copy(),
            "return": self._return.astype(np.float32),
            "episode_len": self._length.copy(),
        }
        infos = {"success": success, "episode": episode, "_episode": terminated | truncated}
        return observations, rewards.astype(np.float32), terminated, truncated, infos
