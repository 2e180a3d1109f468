"""Reach: bring the hand to the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.tabletop import canvas as c
from rlinf.envs.tabletop.canvas import Canvas, Reals
from rlinf.envs.tabletop.keyed_random import KeyedRandom
from rlinf.envs.tabletop.scene import Planar, World, length


class ToTarget(Planar, ABC):
    """What scenes have in common whose hand has to come to a point."""

    __slots__ = ()
    step: ClassVar[float]
    """The way of an action of 1."""
    radius: ClassVar[float]
    """How near counts as reached."""

    @abstractmethod
    def target(self, world: World) -> Reals:
        """The point, `[n, 2]`."""

    def move(self, world: World, action: Reals) -> World:
        """The hand moves by the way of an action and stays over the table."""
        return {**world, "hand": np.clip(world["hand"] + self.step * action, -1.0, 1.0)}

    def distance(self, world: World) -> Reals:
        """From the hand to the point."""
        return length(self.target(world) - world["hand"])

    def solved(self, world: World) -> NDArray[np.bool_]:
        """The hand is near enough."""
        return self.distance(world) < self.radius

    def expert(self, world: World) -> Reals:
        """Straight to the point."""
        return np.clip((self.target(world) - world["hand"]) / self.step, -1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Reach(ToTarget):
    """Actions are a motion (dx, dy). States: hand, target, target − hand."""

    name: ClassVar[str] = "reach"
    goals: ClassVar[tuple[str, ...]] = ("target",)
    max_episode_steps: ClassVar[int] = 30
    step: ClassVar[float] = 0.1
    radius: ClassVar[float] = 0.08

    def instruction(self, goal: int) -> str:
        return "move to the target"

    def start(self, random: KeyedRandom, goal: NDArray[np.int64]) -> World:
        """Hand and target anywhere, at least 0.4 apart."""
        hand = random.uniform(-0.8, 0.8, 2)
        return {"hand": hand, "target": random.apart(-0.8, 0.8, hand[:, None, :], 0.4)}

    def target(self, world: World) -> Reals:
        return world["target"]

    def states(self, world: World) -> Reals:
        """`[n, 6]`."""
        hand, target = world["hand"], world["target"]
        return np.concatenate([hand, target, target - hand], axis=-1)

    def draw(self, canvas: Canvas, world: World) -> None:
        """A red target and the hand."""
        canvas.disc(world["target"], 0.11, c.RED)
        canvas.disc(world["target"], 0.06, c.WHITE)
        draw_hand(canvas, world["hand"])


def draw_hand(canvas: Canvas, at: Reals, radius: float = 0.08) -> None:
    """The hand from above: a dark ring with a light middle."""
    canvas.disc(at, radius, c.INK)
    canvas.disc(at, 0.55 * radius, c.STEEL)
