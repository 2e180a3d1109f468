"""Slots: go to the block whose colour is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.tabletop import canvas as c
from rlinf.envs.tabletop.canvas import Canvas, Reals
from rlinf.envs.tabletop.keyed_random import KeyedRandom
from rlinf.envs.tabletop.reach import ToTarget, draw_hand
from rlinf.envs.tabletop.scene import World, one_hot

_SLOTS = np.array([[-0.66, 0.45], [-0.22, 0.45], [0.22, 0.45], [0.66, 0.45]])
_HALF = 0.15
_COLORS = (c.RED, c.GREEN, c.BLUE)


@dataclass(frozen=True, slots=True)
class Slots(ToTarget):
    """Actions are a motion (dx, dy). States: hand, the three blocks by colour, the colour asked for as one of three.

    Three blocks lie in four slots. Eight steps suffice for one of them and not for trying them all.
    """

    name: ClassVar[str] = "slots"
    goals: ClassVar[tuple[str, ...]] = ("red", "green", "blue")
    max_episode_steps: ClassVar[int] = 8
    step: ClassVar[float] = 0.25
    radius: ClassVar[float] = 0.16

    def instruction(self, goal: int) -> str:
        return f"move to the block that is {self.goals[goal]}"

    def start(self, random: KeyedRandom, goal: NDArray[np.int64]) -> World:
        """Each block in a slot of its own, a little off; the hand below them."""
        blocks = _SLOTS[random.order(4)[:, :3]]
        blocks = blocks + random.uniform(-0.05, 0.05, 6).reshape(-1, 3, 2)
        hand = np.array([0.0, -0.6]) + random.uniform(-0.2, 0.2, 2)
        return {"hand": hand, "blocks": blocks, "goal": goal.astype(np.float64)}

    def states(self, world: World) -> Reals:
        """`[n, 11]`."""
        blocks = world["blocks"].reshape(-1, 6)
        return np.concatenate([world["hand"], blocks, one_hot(world["goal"], 3)], axis=-1)

    def draw(self, canvas: Canvas, world: World) -> None:
        """Blocks and hand; the goal is not to be seen."""
        for i, color in enumerate(_COLORS):
            canvas.box(world["blocks"][:, i], _HALF, color)
        draw_hand(canvas, world["hand"], 0.1)

    def target(self, world: World) -> Reals:
        return world["blocks"][np.arange(len(world["goal"])), world["goal"].astype(np.int64)]
