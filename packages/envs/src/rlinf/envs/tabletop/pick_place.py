"""Pick and place: put the named block on the plate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.tabletop import canvas as c
from rlinf.envs.tabletop.canvas import Canvas, Reals
from rlinf.envs.tabletop.keyed_random import KeyedRandom
from rlinf.envs.tabletop.scene import World, length, one_hot

_HALF, _PLATE = 0.1, 0.24
_TOP, _TRAVEL = 0.6, 0.3
_HOLDS_AT, _GRASP, _LOW = 0.5, 0.09, 0.08
_COLORS = (c.RED, c.BLUE)
_NONE = -1.0


@dataclass(frozen=True, slots=True)
class PickPlace:
    """Actions are a motion (dx, dy, dz) and the gripper, where more than 0 opens and anything else closes.

    States: hand (x, y, z), opening of the gripper (0 … 1), which block is held (two numbers), both blocks (x, y, z), the plate
    (x, y), the block asked for (two numbers).

    A gripper that closes around a block holds it, if the hand is low and within 0.09 of it; an opening gripper lets it fall
    straight down. Blocks have no contact with each other.
    """

    name: ClassVar[str] = "pick_place"
    goals: ClassVar[tuple[str, ...]] = ("red", "blue")
    action_size: ClassVar[int] = 4
    motion_size: ClassVar[int] = 3
    max_episode_steps: ClassVar[int] = 60
    tilt: ClassVar[float] = 0.6
    step: ClassVar[float] = 0.1
    """The way of an action of 1."""
    radius: ClassVar[float] = 0.14
    """How near to the middle of the plate the block must lie."""

    def instruction(self, goal: int) -> str:
        return f"put on the plate the block that is {self.goals[goal]}"

    def start(self, random: KeyedRandom, goal: NDArray[np.int64]) -> World:
        """Blocks and plate apart from each other, the open hand above."""
        plate = random.uniform(-0.65, 0.65, 2)
        first = random.apart(-0.75, 0.75, plate[:, None, :], _PLATE + _HALF + 0.1)
        second = random.apart(-0.75, 0.75, np.stack([plate, first], axis=1), _PLATE + _HALF + 0.1)
        blocks = np.stack([first, second], axis=1)
        n = len(goal)
        return {
            "hand": np.concatenate([random.uniform(-0.5, 0.5, 2), random.uniform(0.3, 0.5, 1)], axis=-1),
            "opening": np.ones(n),
            "held": np.full(n, _NONE),
            "blocks": np.concatenate([blocks, np.zeros((n, 2, 1))], axis=-1),
            "plate": plate,
            "goal": goal.astype(np.float64),
        }

    def move(self, world: World, action: Reals) -> World:
        """The hand moves by 0.1 × (dx, dy, dz), then the gripper by a half of its way."""
        hand = np.clip(world["hand"] + self.step * action[:, :3], [-1.0, -1.0, 0.0], [1.0, 1.0, _TOP])
        opening = np.clip(world["opening"] + np.where(action[:, 3] > 0.0, 0.5, -0.5), 0.0, 1.0)
        blocks = world["blocks"].copy()
        for i in range(2):
            # A held block moves first, so that it falls from where the hand opens.
            blocks[:, i] = np.where((world["held"] == i)[:, None], hand, blocks[:, i])
        held = self._held(world["held"], hand, blocks, world["opening"], opening)
        for i in range(2):
            blocks[:, i, 2] = np.where(held == i, blocks[:, i, 2], 0.0)
        return {**world, "hand": hand, "opening": opening, "blocks": blocks, "held": held}

    def _held(self, held: Reals, hand: Reals, blocks: Reals, before: Reals, after: Reals) -> Reals:
        """Which block is held now: one that the gripper just closed around, or that of before unless it opened."""
        gaps = length(blocks[:, :, :2] - hand[:, None, :2])
        nearest = np.argmin(gaps, axis=-1)
        closed = (before > _HOLDS_AT) & (after <= _HOLDS_AT)
        caught = closed & (gaps[np.arange(len(gaps)), nearest] < _GRASP) & (hand[:, 2] < _LOW)
        kept = np.where(after > _HOLDS_AT, _NONE, held)
        return np.where(caught & (kept == _NONE), nearest.astype(np.float64), kept)

    def distance(self, world: World) -> Reals:
        """From the named block to the plate, and, while it isn't held, a half of the way from the hand to it."""
        block, at_plate = self._block(world), length(self._block(world)[:, :2] - world["plate"])
        fetching = (world["held"] != world["goal"]) & (at_plate >= self.radius)
        return at_plate + block[:, 2] + np.where(fetching, 0.5 * length(block - world["hand"]), 0.0)

    def solved(self, world: World) -> NDArray[np.bool_]:
        """The named block lies within 0.14 of the middle of the plate, and nothing holds it."""
        return (length(self._block(world)[:, :2] - world["plate"]) < self.radius) & (world["held"] != world["goal"])

    def states(self, world: World) -> Reals:
        """`[n, 16]`."""
        blocks = world["blocks"].reshape(-1, 6)
        parts = [self.proprioception(world), one_hot(world["held"], 2), blocks, world["plate"], one_hot(world["goal"], 2)]
        return np.concatenate(parts, axis=-1)

    def proprioception(self, world: World) -> Reals:
        """Hand and opening, `[n, 4]`."""
        return np.concatenate([world["hand"], world["opening"][:, None]], axis=-1)

    def draw(self, canvas: Canvas, world: World) -> None:
        """Plate, blocks and hand with their shadows; the goal is not to be seen."""
        hand, blocks = world["hand"], world["blocks"]
        canvas.disc(world["plate"], _PLATE, c.STEEL)
        canvas.disc(world["plate"], _PLATE - 0.04, c.WHITE)
        for i, color in enumerate(_COLORS):
            canvas.box(blocks[:, i, :2], _HALF, c.SHADOW, opacity=0.4)
            canvas.box(blocks[:, i, :2], _HALF, color, height=blocks[:, i, 2])
        canvas.disc(hand[:, :2], 0.1, c.SHADOW, opacity=0.35 * (hand[:, 2] > 0.03))
        for side in (-1.0, 1.0):
            finger = hand[:, :2] + np.stack([side * (0.06 + 0.08 * world["opening"]), np.zeros(len(hand))], axis=-1)
            canvas.box(finger, 0.045, c.INK, height=hand[:, 2])
        canvas.disc(hand[:, :2], 0.04, c.STEEL, height=hand[:, 2])

    def wrist_view(self, world: World) -> tuple[Reals, Reals] | None:
        """What lies under the hand; the higher the hand, the more of it."""
        return world["hand"][:, :2], 0.3 + 0.6 * world["hand"][:, 2]

    def expert(self, world: World) -> Reals:
        """Over the block, down, close, up, over the plate, down, open; each from the world alone."""
        hand, plate, block = world["hand"], world["plate"], self._block(world)
        holds = world["held"] == world["goal"]
        over = np.where(holds[:, None], plate, block[:, :2])
        gap = length(over - hand[:, :2])
        there, low = gap < 0.04, hand[:, 2] < 0.03
        height = np.where(there, 0.0, _TRAVEL)
        # Near the table the hand goes up first, unless it is where it must be.
        across = np.where(((hand[:, 2] > 0.2) | (gap < 0.08))[:, None], over - hand[:, :2], 0.0)
        motion = np.concatenate([across, (height - hand[:, 2])[:, None]], axis=-1) / self.step
        close = np.where(holds, ~(there & low), there & low)
        done = self.solved(world)
        action = np.concatenate([np.clip(motion, -1.0, 1.0), np.where(close, -1.0, 1.0)[:, None]], axis=-1)
        return np.where(done[:, None], np.array([0.0, 0.0, 0.0, 1.0]), action)

    def _block(self, world: World) -> Reals:
        return world["blocks"][np.arange(len(world["goal"])), world["goal"].astype(np.int64)]
