"""Genesis: a Franka Panda, batched in one scene. Importing this imports no simulator.

Genesis authors, "Genesis: A Generative and Universal Physics Engine for Robotics and Beyond" (2024),
https://github.com/Genesis-Embodied-AI/Genesis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.registry import require_modules
from rlinf.envs.simulator_config import SimulatorConfig

TaskName = Literal["reach", "reach_cube"]
Backend = Literal["cpu", "gpu", "auto"]
RewardMode = Literal["dense", "sparse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis(SimulatorConfig):
    """A Franka Panda before a cube on a plane, of Genesis' own assets: all environments are one batched scene.

    An action `[N, 4]` in [−1, 1] moves the tool's commanded position by up to 2.5 cm each way and sets the fingers' opening
    (−1 closed, 1 open); the hand keeps pointing down. An episode is solved, and ends, when the tool is within 2.5 cm of its target.

    `states` `[N, 33]` float32: joint positions (9: rad, fingers m) and velocities (9), tool position, commanded minus actual
    tool position, cube position, target position, target minus tool position (3 each, m). Videos show a panel of numbers.

    The first environments of a process take a minute or more to build; a process has one backend.
    """

    steps: ClassVar[int] = 50
    task: TaskName = "reach"
    """`reach`: the target is a point above the plane, drawn for each episode. `reach_cube`: it is 5 cm above the cube's centre."""
    reward_mode: RewardMode = "dense"
    """`dense`: 1 − tanh(5 · distance in m). `sparse`: 1.0 in a solved state."""
    backend: Backend = "cpu"
    """What Genesis computes on, one for a process. `auto`: the GPU if PyTorch sees one."""

    def check(self, place: str) -> None:
        """Refuses what can't work, before any work starts; imports no simulator.

        Raises:
            MissingExtra: Genesis is not installed.
            ConfigError: no such task, reward or backend.
        """
        for name, kind in (("task", TaskName), ("reward_mode", RewardMode), ("backend", Backend)):
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                raise ConfigError(f"{place}.{name}", f"there is no '{value}'", did_you_mean(str(value), known, label="There are"))
        require_modules("genesis", "torch", place=place, extra="rlinf-envs[genesis]")
