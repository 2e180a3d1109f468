"""From single environments to the vector environment that the contract asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from rlinf.envs.chunks import HaltingVectorEnv
from rlinf.envs.wrappers.contract import ROW_OPTIONS, Guard
from rlinf.envs.wrappers.episodes import EpisodeStatistics, Infos
from rlinf.envs.wrappers.video import Camera, RecordVideo

logger = logging.getLogger("rlinf.envs")

Task = gymnasium.Env[Any, Any]
"""A single environment whose observations are a dict by embodied key and whose `info` holds nothing but `success`.

Its `reset` gets a seed always, and in `options` its own `task` and `init_id`, each only if it was asked for and only if the
environment's `metadata["reset_options"]` names it; otherwise `options` is None.
"""


def assemble(tasks: Sequence[Callable[[], Task]], *, max_episode_steps: int, camera: Camera | None) -> VectorEnv[Any, Any, Any]:
    """Steps single environments one after the other, in this process.

        Assembly  →  EpisodeStatistics  →  Guard  →  RecordVideo (only with a camera)

    Args:
        tasks: one factory for each environment.
        max_episode_steps: steps after which an episode is truncated.
        camera: what `render` and videos show; None costs nothing.
    """
    env = Guard(EpisodeStatistics(Assembly(tasks), max_episode_steps))
    return env if camera is None else RecordVideo(env, camera)


class Assembly(HaltingVectorEnv):
    """Gymnasium's `SyncVectorEnv` without autoreset, in which each environment gets its own row of the reset options.

    Gymnasium hands the whole options to every environment; here environment `i` gets `{"task": task[i], "init_id": init_id[i]}`,
    without what is None.

    Args:
        tasks: one factory for each environment.
    """

    def __init__(self, tasks: Sequence[Callable[[], Task]]) -> None:
        super().__init__(tasks, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes; see `Guard.reset`, which has made lists of all options."""
        given = dict(options or {})
        columns: dict[str, Sequence[Any]] = {key: given.pop(key) for key in ROW_OPTIONS if key in given}
        tasks = self.envs
        rows = [_Row(env, {key: column[i] for key, column in columns.items()}) for i, env in enumerate(tasks)]
        self.envs = cast("Any", rows)
        try:
            return super().reset(seed=seed, options=given)
        finally:
            self.envs = tasks


@dataclass(frozen=True, slots=True)
class _Row:
    """Stands for an environment while all are reset, and knows the options that are its own."""

    env: Task
    given: Mapping[str, Any]

    def reset(self, *, seed: int | None, options: object) -> tuple[Any, Infos]:
        wanted = {key: value for key, value in self.given.items() if value is not None}
        return self.env.reset(seed=seed, options=wanted or None)
