"""From single environments to the vector environment that the contract asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rlinf.envs.episodes import EpisodeStatistics
from rlinf.envs.guard import Guard
from rlinf.envs.video import Camera, RecordVideo

logger = logging.getLogger("rlinf.envs")

Task = gymnasium.Env[Any, Any]
"""A single environment whose observations are a dict by embodied key and whose `info` holds nothing but `success`."""


def assemble(tasks: Sequence[Callable[[], Task]], *, max_episode_steps: int, camera: Camera | None) -> VectorEnv[Any, Any, Any]:
    """Steps single environments one after the other, in this process.

        SyncVectorEnv  →  EpisodeStatistics  →  Guard  →  RecordVideo (only with a camera)

    Args:
        tasks: one factory for each environment.
        max_episode_steps: steps after which an episode is truncated.
        camera: what `render` and videos show; None costs nothing.
    """
    env: VectorEnv[Any, Any, Any] = SyncVectorEnv(tasks, autoreset_mode=AutoresetMode.DISABLED)
    env = Guard(EpisodeStatistics(env, max_episode_steps))
    return env if camera is None else RecordVideo(env, camera)
