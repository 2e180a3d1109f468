"""Any Gymnasium environment. Importing this imports no simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal

import gymnasium

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.installing import is_there
from rlinf.core.registry import require_importable, require_modules
from rlinf.envs.gymnasium.registrations import registered_by
from rlinf.envs.rendering.mujoco import Look, require_rendering
from rlinf.envs.spaces import Vector, describe

_PYGAME = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text", "gymnasium.envs.box2d")
"""Whose `render` needs pygame."""
# How the ids of gymnasium-robotics begin, so that nobody has to name its module.
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
        return self._entry_point.startswith("gymnasium.envs.mujoco")

    @property
    def _entry_point(self) -> str:
        """Where Gymnasium's own environment is."""
        return str(find_spec(self.env_id, "env.env_id").entry_point)

    @property
    def episode_steps(self) -> int | None:
        """The step limit of the registered environment; None if only its own package knows it, or if it has none."""
        bare = self.env_id.rpartition(":")[2]
        if bare in gymnasium.registry:
            return gymnasium.registry[bare].max_episode_steps
        return (registered_by(self.module) or {}).get(bare) if self.module and is_there(self.module) else None

    @property
    def task_names(self) -> tuple[tuple[str, ...], ...]:
        """No task can be asked for: there is one, that of `env_id`."""
        return ()

    def check(self, place: str) -> None:
        """Refuses a missing simulator and an unknown id; imports neither, but for an id that its module's source does not name.

        Raises:
            MissingExtra: a package that the environment needs is not installed.
            ConfigError: Gymnasium has no such environment, or MuJoCo is to draw images where it can't.
        """
        if self.module == "gymnasium_robotics":
            require_modules("gymnasium_robotics", "mujoco", place=place, extra="rlinf-envs[robotics]")
            _refuse_unregistered(self.env_id.rpartition(":")[2], self.module, f"{place}.env_id")
        elif self.module is not None:
            require_importable(self.module, place=f"{place}.env_id")
            _refuse_unregistered(self.env_id.rpartition(":")[2], self.module, f"{place}.env_id")
        else:
            find_spec(self.env_id, f"{place}.env_id")
            if self.needs_mujoco:
                require_modules("mujoco", place=place, extra="rlinf-envs[mujoco]")
            if self.obs_mode == "rgb" and self._entry_point.startswith(_PYGAME):
                require_modules("pygame", place=f"{place}.obs_mode", extra="gymnasium[classic-control]")
        if self.obs_mode == "rgb" and self.needs_mujoco:
            require_rendering(f"{place}.obs_mode")

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Vector:
        self.check("env")
        from rlinf.envs.gymnasium._gymnasium import make

        return make(self, num_envs, max_episode_steps=max_episode_steps, ignore_terminations=ignore_terminations, render=render)

    def describe(self, env: Vector) -> EnvSpec:
        return describe(env)


def _refuse_unregistered(env_id: str, module: str, place: str) -> None:
    """Refuses an id that a module does not register, where its source tells which it does."""
    known = registered_by(module)
    if known is None or env_id in known or env_id in gymnasium.registry:
        return
    if module != "gymnasium_robotics":
        # What it imports may register more.
        import_module(module)
        if env_id in gymnasium.registry:
            return
    alike = get_close_matches(env_id, known, n=6, cutoff=0.5) or list(known)[:6]
    problem = f"'{module}' registers no environment '{env_id}'"
    raise ConfigError(place, problem, did_you_mean(env_id, alike, label=f"Among its {len(known)}"))


def find_spec(env_id: str, place: str) -> Any:
    """Gymnasium's entry for an id.

    Raises:
        ConfigError: there is none, or an old version of it; the message has Gymnasium's own suggestion.
    """
    try:
        return gymnasium.spec(env_id)
    # `UnregisteredEnv`, `DeprecatedEnv`, and of an id that is malformed `Error` itself.
    except gymnasium.error.Error as error:
        # Gymnasium says what is wrong, and after the first sentence what may have been meant.
        problem, _, hint = str(error).partition(". ")
        remedy = f"{hint.strip()} An environment of another package is named module:id."
        raise ConfigError(place, problem, remedy.strip()) from error
