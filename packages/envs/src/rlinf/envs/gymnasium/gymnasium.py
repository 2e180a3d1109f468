"""Any Gymnasium environment. Importing this imports no simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_importable, require_modules
from rlinf.envs.rendering.mujoco import Look, require_rendering
from rlinf.envs.spaces import Vector, describe

_ROBOTICS = ("Fetch", "Hand", "AdroitHand", "AntMaze", "PointMaze", "FrankaKitchen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gymnasium:
    """An environment of Gymnasium's registry, such as FetchReachDense-v4 of gymnasium-robotics or HalfCheetah-v5.

    Its observation becomes `states` `[N, D]` float32. A Dict observation is flattened by sorted key: Fetch's is achieved_goal,
    desired_goal, observation. An image among it, `[H, W, 3]` uint8, becomes `main_images`, and `states` is what is left: nothing
    where the observation is an image alone.
    """

    env_id: str
    """A registered id, or `module:id` to import the module that registers it first."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of the environment's constructor."""
    success_key: str | None = None
    """The key of `info` that says whether the task is solved, such as "is_success"; None: the task knows no success."""
    obs_mode: Literal["state", "rgb"] = "state"
    """`rgb` adds `main_images` `[N, H, W, 3]`, what the environment's own `render` shows; `states` stays as it is."""
    image_size: int | None = None
    """Pixels of the images each way, where the environment takes `width` and `height`, as MuJoCo's do; None: its own size."""
    look: Look = "fast"
    """How MuJoCo draws; `full` is Gymnasium's own, at a multiple of the cost."""

    @property
    def module(self) -> str | None:
        """The module whose import registers the id; None if Gymnasium itself does."""
        if ":" in self.env_id:
            return self.env_id.partition(":")[0]
        return "gymnasium_robotics" if self.env_id.startswith(_ROBOTICS) else None

    @property
    def needs_mujoco(self) -> bool:
        """Whether it is known, before anything is imported, that MuJoCo draws this environment."""
        if self.module is not None:
            return self.module == "gymnasium_robotics"
        return str(find_spec(self.env_id, "env.env_id").entry_point).startswith("gymnasium.envs.mujoco")

    def check(self, place: str) -> None:
        """Refuses a missing simulator and an id that Gymnasium doesn't know; imports neither.

        Raises:
            MissingExtra: a package that the environment needs is not installed.
            ConfigError: Gymnasium has no such environment, or MuJoCo is to draw images where it can't.
        """
        if self.module == "gymnasium_robotics":
            require_modules("gymnasium_robotics", "mujoco", place=place, extra="rlinf-envs[robotics]")
        elif self.module is not None:
            require_importable(self.module, place=f"{place}.env_id")
        else:
            find_spec(self.env_id, f"{place}.env_id")
            if self.needs_mujoco:
                require_modules("mujoco", place=place, extra="rlinf-envs[mujoco]")
        if self.obs_mode == "rgb" and self.needs_mujoco:
            require_rendering(f"{place}.obs_mode")

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Vector:
        """`num_envs` environments behind one vector environment."""
        self.check("env")
        from rlinf.envs.gymnasium._gymnasium import make

        return make(self, num_envs, max_episode_steps=max_episode_steps, ignore_terminations=ignore_terminations, render=render)

    def describe(self, env: Vector) -> EnvSpec:
        return describe(env)


def find_spec(env_id: str, place: str) -> Any:
    """Gymnasium's entry for an id.

    Raises:
        ConfigError: there is none; the message has Gymnasium's own suggestion.
    """
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.UnregisteredEnv as error:
        remedy = "An environment of another package is named module:id."
        raise ConfigError(place, str(error).rstrip(" ."), remedy) from error
