"""EnvPool: simulators compiled to C++ and stepped in batches. Importing this imports no simulator.

Weng et al., "EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine" (2022), arXiv:2206.10558.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules
from rlinf.envs.simulator_config import SimulatorConfig

_OURS = ("num_envs", "batch_size", "num_threads", "seed", "env_seed", "max_episode_steps", "gym_reset_return_info")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvPool(SimulatorConfig):
    """A task of envpool, such as MetaWorld/Reach-v3, HalfCheetah-v4 or FetchReach-v4, as `states` `[N, D]` float32.

    A Dict observation is flattened by sorted key: Fetch's is achieved_goal, desired_goal, observation. Tasks that are seen by
    camera are refused, and so are videos.

    envpool can't go on after a termination: with `ignore_terminations` one is an error (MetaWorld's and Fetch's never come).
    """

    env_id: str
    """One of `envpool.list_all_envs()`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further settings of the task, such as MetaWorld's `{"partially_observable": False}`, which shows the goal."""
    success_key: str | None = None
    """The key of envpool's `info` that says whether the task is solved: MetaWorld's is "success", Fetch's "is_success"; None: the
    task knows no success."""
    seeds: Literal["exact", "stream"] = "exact"
    """envpool takes seeds only when a pool is built. `exact` builds one for each reset, so that a state depends on its seed alone;
    this costs 0.1 to 20 ms for each environment and episode. `stream` takes the seeds of the first reset alone; from then on each
    environment goes on with its own random numbers, whatever seed is asked for: a run can be repeated, an episode can't."""
    num_threads: int = 1
    """Threads of a pool; 0 leaves it to envpool."""

    def check(self, place: str) -> None:
        """Refuses settings that are not the task's own, and a missing envpool; imports nothing.

        Raises:
            MissingExtra: envpool is not installed.
            ConfigError: a setting in `kwargs` that belongs elsewhere.
        """
        require_modules("envpool", place=place, extra="rlinf-envs[envpool]")
        for key in _OURS:
            if key in self.kwargs:
                problem = f"'{key}' is no setting of the task"
                raise ConfigError(f"{place}.kwargs", problem, "Say it to make and reset, or as num_threads.")
        if self.kwargs.get("from_pixels"):
            raise ConfigError(f"{place}.kwargs", "images of envpool are not supported", "Leave from_pixels away.")
