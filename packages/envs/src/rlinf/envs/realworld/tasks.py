"""What a robot is to do: where the goal is, when it is reached, and what an expert would do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rlinf.envs.realworld.arm import Floats


class Task(ABC):
    """A task with one goal, a point in the base frame."""

    __slots__ = ()
    max_episode_steps: ClassVar[int]
    low: ClassVar[tuple[float, ...]]
    """The least coordinates of a goal `[3]`, in metres."""
    high: ClassVar[tuple[float, ...]]
    """The greatest ones."""

    def draw(self, random: np.random.Generator) -> Floats:
        """The goal `[3]` of an episode."""
        return random.uniform(self.low, self.high)

    def distance(self, tool: Floats, goal: Floats) -> float:
        """Metres that are left."""
        return float(np.linalg.norm(goal - tool))

    @abstractmethod
    def scene(self, goal: Floats) -> Mapping[str, list[float]]:
        """Where a simulator puts objects, by name."""

    @abstractmethod
    def solved(self, tool: Floats, goal: Floats) -> bool:
        """Whether the goal is reached."""

    @abstractmethod
    def expert(self, tool: Floats, goal: Floats) -> Floats:
        """The motion `[3]` in metres that leads to it, of any length."""


@dataclass(frozen=True, slots=True)
class Reach(Task):
    """Brings the tool's point to a goal in the air."""

    max_episode_steps: ClassVar[int] = 40
    low: ClassVar[tuple[float, ...]] = (0.42, -0.2, 0.1)
    high: ClassVar[tuple[float, ...]] = (0.62, 0.2, 0.36)
    radius: ClassVar[float] = 0.025
    """How near counts as reached, in metres."""

    def scene(self, goal: Floats) -> Mapping[str, list[float]]:
        return {"goal": goal.tolist()}

    def solved(self, tool: Floats, goal: Floats) -> bool:
        return self.distance(tool, goal) < self.radius

    def expert(self, tool: Floats, goal: Floats) -> Floats:
        return goal - tool


@dataclass(frozen=True, slots=True)
class Peg(Task):
    """Puts a peg, whose end is the tool's point, into a socket on the table; its place is known to a few millimetres only."""

    max_episode_steps: ClassVar[int] = 80
    low: ClassVar[tuple[float, ...]] = (0.48, -0.06, 0.015)
    high: ClassVar[tuple[float, ...]] = (0.58, 0.06, 0.015)
    depth: ClassVar[float] = 0.025
    """Metres above the table at which the end of the peg is in the socket."""
    above: ClassVar[float] = 0.06
    near: ClassVar[float] = 0.004

    def scene(self, goal: Floats) -> Mapping[str, list[float]]:
        return {"socket": [float(goal[0]), float(goal[1]), 0.0]}

    def solved(self, tool: Floats, goal: Floats) -> bool:
        return float(tool[2]) < self.depth and float(np.abs(tool[:2] - goal[:2]).max()) < 2 * self.near

    def expert(self, tool: Floats, goal: Floats) -> Floats:
        aside = goal[:2] - tool[:2]
        centred = float(np.linalg.norm(aside)) < self.near
        # First above the socket, then down; inside, straight on.
        height = goal[2] if centred or (tool[2] < self.above - 0.01 and np.linalg.norm(aside) < 2 * self.near) else self.above
        return np.array([*aside, height - tool[2]])


TASKS: Mapping[str, Task] = {"reach": Reach(), "peg": Peg()}
