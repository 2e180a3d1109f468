"""FetchReach from above and from the side, drawn from its state."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.rendering import _canvas as c
from rlinf.envs.wrappers.video import Shot

STATES = 16
"""Gripper position 0–2 (achieved_goal), goal position 3–5 (desired_goal), observation 6–15."""
_REACHED = 0.05
_MIDDLE = (1.34, 0.75, 0.53)
_WIDTH = 0.62


def draw(shot: Shot) -> NDArray[np.uint8]:
    """Two views of gripper and goal: x–y from above, x–z from the side. A ring shows how near counts as reached."""
    gripper, goal = shot.states[0:3].tolist(), shot.states[3:6].tolist()
    half = (c.SIZE, c.SIZE // 2)
    views = [_view(shot, gripper, goal, axis, label, half) for axis, label in ((1, "from above"), (2, "from the side"))]
    views[0].text((c.SIZE - 10, 7), f"distance {math.dist(gripper, goal) * 100:.1f} cm", c.INK, "ra")
    frame = np.concatenate([view.finish() for view in views], axis=0)
    frame[c.SIZE // 2 - 1 : c.SIZE // 2 + 1] = c.GRID
    return frame


def _view(shot: Shot, gripper: list[float], goal: list[float], axis: int, label: str, pixels: tuple[int, int]) -> c.Canvas:
    canvas = c.Canvas((_MIDDLE[0] - _WIDTH / 2, _MIDDLE[axis] - _WIDTH / 4), _WIDTH, pixels)
    canvas.grid(0.1)
    at, target = (gripper[0], gripper[axis]), (goal[0], goal[axis])
    canvas.line([at, target], (*c.MUTED, 140), 1.5)
    canvas.disc(target, _REACHED, (*c.RED, 28), c.GREEN if shot.success else (*c.RED, 170), 2.5 if shot.success else 1.5)
    canvas.disc(target, 0.011, c.RED)
    _hand(canvas, at, seen_from_side=axis == 2)
    canvas.text((10, 7), label, c.MUTED)
    return canvas


def _hand(canvas: c.Canvas, at: c.Point, *, seen_from_side: bool) -> None:
    x, y = at
    if seen_from_side:
        canvas.capsule((x, y + 0.05), (x, y + 0.4), c.STEEL_EDGE, 0.052)
        canvas.capsule((x, y + 0.05), (x, y + 0.4), c.STEEL, 0.046)
    else:
        canvas.disc(at, 0.034, c.STEEL, c.STEEL_EDGE, 1.5)
    for side in (1.0, -1.0):
        along = (0.018 * side, 0.0) if seen_from_side else (0.0, 0.018 * side)
        half = (0.006, 0.026) if seen_from_side else (0.009, 0.006)
        cx, cy = x + along[0], y + along[1] + (0.012 if seen_from_side else 0.0)
        canvas.polygon([(cx + u * half[0], cy + v * half[1]) for u, v in ((-1, -1), (1, -1), (1, 1), (-1, 1))], c.DARK)
    canvas.disc(at, 0.007, c.AMBER, c.DARK, 1.0)
