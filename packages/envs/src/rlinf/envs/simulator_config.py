"""What the configurations of simulators have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from rlinf.core.data import EnvSpec
from rlinf.core.lazy import import_heavy
from rlinf.envs.spaces import Vector, describe


class SimulatorConfig(ABC):
    """The configuration of a simulator whose episodes have a length of their own.

    It imports no simulator. A configuration in `x.py` is made by the file beside it that does, `_x.py`, which has a function
    `make(config, num_envs, limit, ignore_terminations, render)`.
    """

    __slots__ = ()
    steps: ClassVar[int]
    """Steps of an episode, where no setting changes them."""

    @property
    def episode_steps(self) -> int:
        """Steps of an episode unless told otherwise."""
        return self.steps

    @abstractmethod
    def check(self, place: str) -> None:
        """Refuses what would fail later, such as a simulator that is not installed; imports none."""

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Vector:
        """`num_envs` environments behind one vector environment; `episode_steps` steps unless told otherwise.

        Raises:
            ConfigError: as `check`, or the simulator can't do what is asked.
        """
        self.check("env")
        package, _, name = type(self).__module__.rpartition(".")
        maker = import_heavy(f"{package}._{name}")
        return maker.make(self, num_envs, max_episode_steps or self.episode_steps, ignore_terminations, render)

    def describe(self, env: Vector) -> EnvSpec:
        """What a policy must know of an environment that `make` returned."""
        return describe(env)
