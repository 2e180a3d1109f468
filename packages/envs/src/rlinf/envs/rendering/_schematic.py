"""Frames for environments that can't render: a drawing where we know the task, a panel of numbers elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.rendering import _canvas as c
from rlinf.envs.rendering import _fetch_reach, _push_cube
from rlinf.envs.wrappers.video import Camera, Shot

_DRAWINGS: dict[str, tuple[int, Camera]] = {
    "PushCube": (_push_cube.STATES, _push_cube.draw),
    "FetchReach": (_fetch_reach.STATES, _fetch_reach.draw),
}
_MAX_BARS = 64


def schematic_camera(env_id: str) -> Camera:
    """Draws the task `env_id`; the drawing needs states of the size that it knows, and a panel stands in for any other."""
    found = [drawing for name, drawing in _DRAWINGS.items() if env_id.startswith(name)]

    def draw(shot: Shot) -> NDArray[np.uint8]:
        known = found and shot.states.shape == (found[0][0],)
        return found[0][1](shot) if known else panel(shot)

    return draw


def panel(shot: Shot) -> NDArray[np.uint8]:
    """The reward of each step so far as a curve, and the state as bars."""
    half = (c.SIZE, c.SIZE // 2)
    frame = np.concatenate([_curve(shot.rewards, half), _bars(shot.states, half)], axis=0)
    frame[c.SIZE // 2 - 1 : c.SIZE // 2 + 1] = c.GRID
    return frame


def _curve(rewards: Sequence[float], pixels: tuple[int, int]) -> NDArray[np.uint8]:
    canvas = c.Canvas((0.0, 0.0), 2.0, pixels)
    last = f"{rewards[-1]:.3g}" if rewards else "–"
    canvas.text((10, 7), "reward", c.MUTED)
    canvas.text((c.SIZE - 10, 7), last, c.INK, "ra")
    if rewards:
        low, high = min(*rewards, 0.0), max(*rewards, 0.0)
        # All rewards may be 0.
        span = (high - low) or 1.0
        steps = max(len(rewards) - 1, 1)
        points = [(0.06 + 1.88 * i / steps, 0.1 + 0.66 * (r - low) / span) for i, r in enumerate(rewards)]
        zero = 0.1 + 0.66 * (0.0 - low) / span
        canvas.line([(0.06, zero), (1.94, zero)], c.GRID, 1.5)
        canvas.line(points, c.BLUE, 2.0)
        canvas.disc(points[-1], 0.025, c.AMBER, c.DARK, 1.0)
    return canvas.finish()


def _bars(states: NDArray[np.float32], pixels: tuple[int, int]) -> NDArray[np.uint8]:
    canvas = c.Canvas((0.0, 0.0), 2.0, pixels)
    shown = np.nan_to_num(states[:_MAX_BARS].astype(float))
    more = f", first {_MAX_BARS}" if len(states) > _MAX_BARS else ""
    canvas.text((10, 7), f"state ({len(states)} numbers{more})", c.MUTED)
    if not len(shown):
        return canvas.finish()
    pitch = 1.88 / len(shown)
    canvas.line([(0.06, 0.42), (1.94, 0.42)], c.GRID, 1.5)
    # A bar saturates smoothly, so that one large number doesn't flatten the others.
    for i, value in enumerate(np.tanh(shown / 2.0)):
        x, thick = 0.06 + pitch * (i + 0.5), min(pitch * 0.35, 0.05)
        top = 0.42 + 0.34 * float(value)
        canvas.polygon([(x - thick, 0.42), (x + thick, 0.42), (x + thick, top), (x - thick, top)], c.BLUE if value >= 0 else c.RED)
    return canvas.finish()
