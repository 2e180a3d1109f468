"""Episodes of the scripted expert, to imitate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.envs.tabletop.config import Tabletop
from rlinf.envs.tabletop.keyed_random import KeyedRandom
from rlinf.envs.tabletop.vector import TabletopEnv

# Part of the key: 1 to 3 are those of `TabletopEnv`, whose numbers the noise must not repeat.
_NOISE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """E episodes of at most T steps; what lies beyond an episode's length is the expert's rest after success."""

    observation: Mapping[str, NDArray[Any]]
    """By key, `[E, T, *]`: what was seen before each action."""
    action: NDArray[np.float32]
    """`[E, T, A]`."""
    length: NDArray[np.int64]
    """`[E]`: steps until success, or T."""
    success: NDArray[np.bool_]
    """`[E]`: whether the episode succeeded within T steps."""

    def flat(self) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
        """Observations `[S, *]` and actions `[S, A]` of all steps up to success, of the episodes that succeeded."""
        reached = np.where(self.success, self.length, 0)
        used = cast("NDArray[np.bool_]", np.arange(self.action.shape[1]) < reached[:, None])
        return {key: values[used] for key, values in self.observation.items()}, self.action[used]


def demonstrate(
    config: Tabletop, episodes: int, *, seed: int = 0, speed: float = 1.0, noise: float = 0.0, max_episode_steps: int | None = None
) -> Demonstrations:
    """Lets the expert play.

    A slow and imprecise expert makes an imitator that reinforcement learning has something to teach.

    Args:
        config: the task and what is observed.
        episodes: E; episode `i` starts from the seed `seed + i` and doesn't depend on E.
        seed: the first one.
        speed: in (0, 1], by which the expert's motion is multiplied; its gripper is not.
        noise: added to the motion, uniform in [−noise, noise]; the sum is clipped to [−1, 1].
        max_episode_steps: T; the task's own limit if None.

    Raises:
        ConfigError: `speed` or `noise` is out of range, or `config` is not valid.
    """
    if not 0.0 < speed <= 1.0 or noise < 0.0:
        raise ConfigError("demonstrate", f"expected 0 < speed ≤ 1 and noise ≥ 0, found {speed} and {noise}")
    # All episodes run to the limit, so that they can be stacked.
    env = config.make(episodes, max_episode_steps=max_episode_steps, ignore_terminations=True, render=False)
    tables = cast("TabletopEnv", env.unwrapped)
    moving = tables.scene.motion_size
    jitter = KeyedRandom(np.arange(seed, seed + episodes), _NOISE)
    observation, _ = env.reset(seed=seed)
    seen: list[dict[str, NDArray[Any]]] = []
    actions: list[NDArray[np.float32]] = []
    steps = int(env.metadata["max_episode_steps"])
    length = np.full(episodes, steps)
    success = np.zeros(episodes, np.bool_)
    for step in range(steps):
        action = tables.expert_actions()
        motion = speed * action[:, :moving] + jitter.uniform(-noise, noise, moving)
        action[:, :moving] = np.clip(motion, -1.0, 1.0)
        seen.append(observation)
        actions.append(action)
        observation, _, _, _, infos = env.step(action)
        length[infos["success"] & ~success] = step + 1
        success |= infos["success"]
    stacked = {key: np.stack([row[key] for row in seen], axis=1) for key in seen[0]}
    return Demonstrations(observation=stacked, action=np.stack(actions, axis=1), length=length, success=success)
