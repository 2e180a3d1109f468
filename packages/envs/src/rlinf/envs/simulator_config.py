"""What the configurations of simulators have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from rlinf.core.data import EnvSpec
from rlinf.core.lazy import import_heavy
from rlinf.envs.spaces import Vector, describe


class SimulatorConfig(ABC):
    """The configuration of a simulator.

    It imports none itself. A configuration in `x.py` is made by the file beside it that does, `_x.py`, which has a function
    `make(config, num_envs, limit, ignore_terminations, render)`.
    """

    __slots__ = ()
    steps: ClassVar[int] = 0
    """Steps of an episode, where no setting changes them; 0 where only the simulator knows."""

    @property
    def episode_steps(self) -> int | None:
        """Steps of an episode unless told otherwise; None if only the simulator knows."""
        return self.steps or None

    @property
    def success_only(self) -> bool | None:
        """Whether success is rewarded and nothing else, where a `reward_mode` says so."""
        mode: str | None = getattr(self, "reward_mode", None)
        return None if mode is None else mode == "sparse"

    @abstractmethod
    def check(self, place: str) -> None:
        """Refuses what would fail later; imports no simulator.

        Raises:
            MissingExtra: a package is not installed; the message says how to get it.
            ConfigError: a field that can't be.
        """

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Vector:
        """`num_envs` environments behind one vector environment; `episode_steps` steps unless told otherwise.

        Raises:
            ConfigError: as `check`, or the simulator can't do what is asked.
        """
        self.check("env")
        # A class of somebody's own that derives from a configuration is made as that is.
        own = next(cls for cls in type(self).__mro__ if SimulatorConfig in cls.__bases__)
        package, _, name = own.__module__.rpartition(".")
        maker = import_heavy(f"{package}._{name}")
        return maker.make(self, num_envs, max_episode_steps or self.episode_steps, ignore_terminations, render)

    def describe(self, env: Vector) -> EnvSpec:
        """What a policy must know of an environment that `make` returned."""
        return describe(env)
