"""Push: slide the puck to the goal with a round finger, without inertia."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.tabletop import canvas as c
from rlinf.envs.tabletop.canvas import Canvas, Reals
from rlinf.envs.tabletop.keyed_random import KeyedRandom
from rlinf.envs.tabletop.reach import draw_hand
from rlinf.envs.tabletop.scene import Planar, World, direction, length

_SUBSTEPS = 4
_FINGER, _PUCK = 0.08, 0.15
_TOUCH = _FINGER + _PUCK


@dataclass(frozen=True, slots=True)
class Push(Planar):
    """Actions are a motion (dx, dy). States: finger, puck, goal, puck − finger, goal − puck.

    Quasi-static and without friction: the puck moves only while it is touched, along the line from finger to puck, and as far
    as they would overlap. At the rim of the table the puck stops, and the finger with it.
    """

    name: ClassVar[str] = "push"
    goals: ClassVar[tuple[str, ...]] = ("goal",)
    max_episode_steps: ClassVar[int] = 64
    step: ClassVar[float] = 0.1
    """The way of an action of 1."""
    radius: ClassVar[float] = 0.1
    """How near to the goal the puck must be."""

    def instruction(self, goal: int) -> str:
        return "push the puck to the goal"

    def start(self, random: KeyedRandom, goal: NDArray[np.int64]) -> World:
        """Puck and goal at least 0.4 apart, the finger clear of the puck."""
        puck = random.uniform(-0.55, 0.55, 2)
        target = random.apart(-0.65, 0.65, puck[:, None, :], 0.4)
        return {"hand": random.apart(-0.9, 0.9, puck[:, None, :], _TOUCH + 0.05), "puck": puck, "target": target}

    def move(self, world: World, action: Reals) -> World:
        """The finger moves by 0.1 × action in four equal parts, and after each one nothing overlaps."""
        hand, puck = world["hand"], world["puck"]
        part = (self.step / _SUBSTEPS) * action
        rim = 1.0 - _PUCK
        for _ in range(_SUBSTEPS):
            hand = np.clip(hand + part, -1.0, 1.0)
            touched = length(puck - hand) < _TOUCH
            pushed = np.clip(hand + _TOUCH * direction(puck - hand), -rim, rim)
            # Where the rim stopped the puck, the finger gives way.
            blocked = touched & (length(pushed - hand) < _TOUCH)
            back = np.clip(pushed - _TOUCH * direction(pushed - hand), -1.0, 1.0)
            hand = np.where(blocked[:, None], back, hand)
            puck = np.where(touched[:, None], pushed, puck)
        return {**world, "hand": hand, "puck": puck}

    def distance(self, world: World) -> Reals:
        """From puck to goal, and a tenth of the way from the finger to the puck."""
        return length(world["target"] - world["puck"]) + 0.1 * length(world["puck"] - world["hand"])

    def solved(self, world: World) -> NDArray[np.bool_]:
        """The puck is within 0.1 of the goal."""
        return length(world["target"] - world["puck"]) < self.radius

    def states(self, world: World) -> Reals:
        """`[n, 10]`."""
        hand, puck, target = world["hand"], world["puck"], world["target"]
        return np.concatenate([hand, puck, target, puck - hand, target - puck], axis=-1)

    def draw(self, canvas: Canvas, world: World) -> None:
        """A green goal, a blue puck and the finger."""
        canvas.disc(world["target"], _PUCK + 0.03, c.GREEN)
        canvas.disc(world["target"], _PUCK - 0.04, c.TABLE)
        canvas.disc(world["puck"], _PUCK, c.BLUE)
        draw_hand(canvas, world["hand"], _FINGER)

    def expert(self, world: World) -> Reals:
        """Around the puck until it lies between finger and goal, then straight through it."""
        hand, puck, target = world["hand"], world["puck"], world["target"]
        ahead = direction(target - puck)
        out = direction(hand - puck)
        aligned = -(out * ahead).sum(axis=-1)
        behind = puck - (_TOUCH + 0.03) * ahead
        # The way around: along the circle, on the side that is nearer to being behind.
        side = np.where(out[:, 0] * ahead[:, 1] - out[:, 1] * ahead[:, 0] > 0.0, -1.0, 1.0)[:, None]
        tangent = side * np.stack([-out[:, 1], out[:, 0]], axis=-1)
        around = puck + (_TOUCH + 0.07) * direction(out + 0.6 * tangent)
        # No further than the goal, or the last push would carry the puck beyond it.
        through = puck + (np.minimum(self.step, length(target - puck)) - _TOUCH)[:, None] * ahead
        ready = (aligned > 0.97) & (length(hand - behind) < 0.12)
        waypoint = np.where((aligned > 0.8)[:, None], behind, around)
        return np.clip((np.where(ready[:, None], through, waypoint) - hand) / self.step, -1.0, 1.0)
