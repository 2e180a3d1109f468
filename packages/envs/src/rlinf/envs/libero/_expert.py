"""A scripted expert for LIBERO-Spatial, whose tasks put a bowl on a plate. Only imported when an environment is built."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_FULL: Final = 0.02
"""Metres: an error from which on the hand moves as fast as it can."""
_FULL_TURN: Final = 0.2
"""Radians: an error from which on the hand turns as fast as it can."""
_DOWN: Final = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
"""The hand's orientation in which it points down, and the fingers open along y."""
_NEAR: Final = 0.008
"""Metres of height from the grasp at which the gripper closes."""
_AROUND: Final = 0.015
"""Metres, across, from the rim within which the wall stands between the open fingers."""
_ABOVE: Final = 0.06
"""Metres that the hand is above the rim, and what it holds above its place, on the way."""
_OVER: Final = 0.02
"""Metres, across, between a thing and its place, within which it may be let down."""
_FUNNEL: Final = 0.04
"""Metres, across, within which the way down grows from nothing to all of it: nearby states then have nearby actions."""
_DEEP: Final = 0.02
"""Metres below the rim at which the gripper closes."""
_PLACED: Final = 0.012
"""Metres above its place at which a thing is let go."""
_OPEN, _CLOSED = -1.0, 1.0


def expert_action(simulation: Any) -> NDArray[np.float32]:
    """`[7]` in [−1, 1]: it takes a bowl by its rim, lifts it, carries it to its place, and lets go.

    Args:
        simulation: LIBERO's environment (robosuite's) of a task that asks for one thing on another, and for nothing else.
    """
    motion, gripper = _motion(simulation)
    motion = motion / _FULL
    return np.array([*(motion / max(1.0, float(np.abs(motion).max()))), *_upright(simulation), gripper], np.float32)


def _motion(simulation: Any) -> tuple[Floats, float]:
    """Metres `[3]`, and the gripper's action."""
    ((_, thing, place),) = simulation.parsed_problem["goal_state"]
    hand = np.array(simulation.sim.data.site_xpos[simulation.robots[0].eef_site_id], np.float64)
    held, there = simulation.objects_dict[thing], simulation.objects_dict[place]
    at, goal = (_position(simulation, name) for name in (thing, place))
    # Of the walls along y, the one that is nearer to the middle of the table goes between them.
    rim = at + np.array([0.0, -held.horizontal_radius, held.top_offset[2]])
    surface = goal[2] + there.top_offset[2] - held.bottom_offset[2]
    aside = goal - at
    far = float(np.linalg.norm(aside[:2]))
    if far < _OVER and at[2] < surface + _PLACED:
        return np.array([0.0, 0.0, _FULL]), _OPEN
    if simulation._check_grasp(gripper=simulation.robots[0].gripper, object_geoms=held):
        height = surface + _above(far, _OVER) - at[2]
        # First up, where something may stand in the way.
        return np.array([*(aside[:2] if height < _ABOVE / 2 else (0.0, 0.0)), height]), _CLOSED
    way = rim - hand
    far = float(np.linalg.norm(way[:2]))
    way[2] += _above(far, _AROUND) - _DEEP
    return way, _CLOSED if far < _AROUND and abs(way[2]) < _NEAR else _OPEN


def _above(far: float, allowed: float) -> float:
    """How far above its goal something is held that far from it, across."""
    return _ABOVE * min(1.0, max(0.0, (far - allowed) / _FUNNEL))


def _position(simulation: Any, name: str) -> Floats:
    return np.array(simulation.sim.data.body_xpos[simulation.obj_body_id[name]], np.float64)


def _upright(simulation: Any) -> Floats:
    """`[3]` in [−1, 1], a turn of the hand about the axes of the world, towards pointing down."""
    hand = np.array(simulation.sim.data.site_xmat[simulation.robots[0].eef_site_id], np.float64).reshape(3, 3)
    left = _DOWN @ hand.T
    # The sine of the angle about its axis; enough for a hand that is not upside down.
    turn = np.array([left[2, 1] - left[1, 2], left[0, 2] - left[2, 0], left[1, 0] - left[0, 1]]) / 2
    return np.clip(turn / _FULL_TURN, -1.0, 1.0)
