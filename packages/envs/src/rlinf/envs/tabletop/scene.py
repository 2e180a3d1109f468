"""What a task on the table is."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.tabletop.canvas import Canvas, Reals
from rlinf.envs.tabletop.keyed_random import KeyedRandom

World: TypeAlias = dict[str, NDArray[np.float64]]
"""Everything that can change in n tables, each entry `[n, *]`. A scene never writes into a world that it was given."""


class Scene(Protocol):
    """A task: pure functions of worlds. The table is the square [−1, 1]²; lengths are in halves of its side.

    Only +, −, ×, ÷, √ and comparisons are used on numbers, whose results IEEE 754 fixes, so that an environment's numbers don't
    depend on its neighbours in the vector or on the machine.
    """

    name: ClassVar[str]
    """The task's name."""
    goals: ClassVar[tuple[str, ...]]
    """What can be asked for, such as the colour of a block; one entry if there is nothing to choose."""
    action_size: ClassVar[int]
    """Numbers in an action, each in [−1, 1]."""
    motion_size: ClassVar[int]
    """How many of them, from the first on, are motion; the rest is the gripper."""
    max_episode_steps: ClassVar[int]
    """Steps until an episode is truncated."""
    tilt: ClassVar[float]
    """How much of a height is seen in the images; 0 looks straight down."""

    def instruction(self, goal: int) -> str:
        """What is asked, in words; the word that tells goals apart is the last one."""
        ...

    def start(self, random: KeyedRandom, goal: NDArray[np.int64]) -> World:
        """Initial worlds, one for each key of `random` and each goal `[n]`."""
        ...

    def move(self, world: World, action: Reals) -> World:
        """The worlds after one step; `action` is `[n, A]` in [−1, 1]."""
        ...

    def distance(self, world: World) -> Reals:
        """How far each world is from success, `[n]`; only what is left to do counts."""
        ...

    def solved(self, world: World) -> NDArray[np.bool_]:
        """Which worlds are solved, `[n]`."""
        ...

    def states(self, world: World) -> Reals:
        """Everything that matters, goal included, `[n, D]`."""
        ...

    def proprioception(self, world: World) -> Reals:
        """What the robot knows of itself, `[n, P]`."""
        ...

    def draw(self, canvas: Canvas, world: World) -> None:
        """Paints the worlds."""
        ...

    def wrist_view(self, world: World) -> tuple[Reals, Reals] | None:
        """Centre `[n, 2]` and reach `[n]` of what a camera at the wrist sees, or None if there is no such camera."""
        ...

    def expert(self, world: World) -> Reals:
        """A good action, `[n, A]` in [−1, 1], from full knowledge of the world."""
        ...


class Planar:
    """What scenes have in common whose hand is moved in the plane, by (dx, dy), and which are seen from above alone."""

    __slots__ = ()
    action_size: ClassVar[int] = 2
    motion_size: ClassVar[int] = 2
    tilt: ClassVar[float] = 0.0

    def proprioception(self, world: World) -> Reals:
        """The hand, `[n, 2]`."""
        return world["hand"]

    def wrist_view(self, world: World) -> tuple[Reals, Reals] | None:
        """None."""
        return None


def length(vector: Reals) -> Reals:
    """The length of vectors `[..., 2]` or `[..., 3]`, `[...]`, by sums in a fixed order."""
    total = vector[..., 0] * vector[..., 0]
    for i in range(1, vector.shape[-1]):
        total = total + vector[..., i] * vector[..., i]
    return np.sqrt(total)


def direction(vector: Reals) -> Reals:
    """Vectors `[n, 2]` of length 1; (1, 0) for the vector 0."""
    size = length(vector)[:, None]
    # `np.where` computes both sides, so the vector 0 must not be divided by 0.
    return np.where(size > 0.0, vector / np.where(size > 0.0, size, 1.0), np.array([1.0, 0.0]))


def one_hot(goal: NDArray[np.float64], count: int) -> Reals:
    """`[n, count]`, 1.0 in the column `goal` `[n]`."""
    return (goal[:, None] == np.arange(count)).astype(np.float64)
