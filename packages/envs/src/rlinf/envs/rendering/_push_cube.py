"""PushCube seen from above, drawn from its state."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.rendering import _canvas as c
from rlinf.envs.wrappers.video import Shot

STATES = 35
"""Joint positions 0–8 and velocities 9–17, tool pose 18–24, goal position 25–27, cube pose 28–34."""
_BASE = (-0.615, 0.0)
_GOAL_RADIUS, _CUBE_HALF = 0.1, 0.02


def draw(shot: Shot) -> NDArray[np.uint8]:
    """The table with goal, cube, arm and fingers; +x, the way to push, is to the right."""
    tool, goal, cube = (shot.states[a:b].tolist() for a, b in ((18, 25), (25, 28), (28, 35)))
    canvas = c.Canvas((-0.44, -0.41), 0.82)
    canvas.grid(0.1)
    for ring in range(5):
        canvas.disc(goal[:2], _GOAL_RADIUS * (1 - ring / 5), c.WHITE if ring % 2 else c.RED)
    if shot.success:
        canvas.disc(goal[:2], _GOAL_RADIUS + 0.014, edge=c.GREEN, thick=3.0)
    yaw = _angle(cube[3:])
    canvas.polygon(_square((cube[0] + 0.006, cube[1] - 0.006), _CUBE_HALF, yaw), (0, 0, 0, 60))
    sides = _square((cube[0], cube[1]), _CUBE_HALF, yaw)
    canvas.polygon(sides, c.BLUE, (18, 50, 120))
    _arm(canvas, (tool[0], tool[1]), _angle(tool[3:]), float(shot.states[7:9].sum()))
    # The arm hides the cube while it pushes; its outline stays visible.
    canvas.polygon(sides, None, c.BLUE)
    _labels(canvas, math.dist(cube[:2], goal[:2]), tool[2])
    return canvas.finish()


def _arm(canvas: c.Canvas, tool: c.Point, turn: float, opening: float) -> None:
    for color, width in ((c.STEEL_EDGE, 0.062), (c.STEEL, 0.054)):
        canvas.capsule(_BASE, tool, (*color, 255), width)
    across = (-math.sin(turn), math.cos(turn))
    for side in (1.0, -1.0):
        reach = side * (max(opening / 2, 0.004) + 0.006)
        canvas.polygon(_square((tool[0] + reach * across[0], tool[1] + reach * across[1]), 0.008, turn), c.DARK)
    canvas.disc(tool, 0.007, c.AMBER, c.DARK, 1.0)


def _labels(canvas: c.Canvas, distance: float, height: float) -> None:
    canvas.text((10, 9), f"cube to goal {distance * 100:.0f} cm")
    canvas.text((c.SIZE - 10, 9), f"tool height {height * 100:.0f} cm", c.MUTED, "ra")
    canvas.line([(0.25, -0.385), (0.35, -0.385)], c.MUTED, 2.0)
    canvas.text((c.SIZE - 31, c.SIZE - 14), "10 cm", c.MUTED, "md", 12)


def _angle(quaternion: list[float]) -> float:
    """The turn about the vertical, radians, of a unit quaternion (w, x, y, z)."""
    w, x, y, z = quaternion
    return math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def _square(centre: c.Point, half: float, angle: float) -> list[c.Point]:
    cos, sin = math.cos(angle) * half, math.sin(angle) * half
    return [(centre[0] + u * cos - v * sin, centre[1] + u * sin + v * cos) for u, v in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
