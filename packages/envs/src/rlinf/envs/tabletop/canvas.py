"""Small pictures of many tables at once, smooth at the edges, in NumPy alone."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Reals: TypeAlias = NDArray[np.float64]
Color = tuple[int, int, int]
_Singles = NDArray[np.float32]
FLOOR, TABLE, INK, STEEL, WHITE, SHADOW = (
    (86, 88, 94),
    (226, 222, 212),
    (34, 36, 42),
    (150, 156, 168),
    (250, 250, 250),
    (60, 58, 54),
)
RED, GREEN, BLUE = (214, 48, 44), (40, 158, 76), (40, 88, 212)


class Canvas:
    """`n` pictures, painted in the same order of strokes.

    A point (x, y, z) is seen at (x, y + tilt · z): from above, tilted enough to show heights.

    Args:
        count: n.
        size: pixels, each way.
        centre: `[n, 2]` or `[2]`, the point in the middle.
        reach: `[n]` or a number: the distance from the middle to the edge of the picture.
        tilt: how much of a height is seen.
    """

    def __init__(self, count: int, size: int, *, centre: ArrayLike = (0.0, 0.0), reach: ArrayLike = 1.1, tilt: float = 0.0) -> None:
        self.size = size
        self._tilt = tilt
        self._centre = np.broadcast_to(np.asarray(centre, np.float64), (count, 2))
        self._reach = np.broadcast_to(np.asarray(reach, np.float64), (count,))
        self._pixels = np.empty((count, size, size, 3), np.uint8)
        self._pixels[:] = TABLE
        self._table(np.abs(self._centre).max(axis=-1) + self._reach > 1.0)

    def disc(
        self, at: Reals, radius: ArrayLike, color: Color | Reals, *, height: ArrayLike = 0.0, opacity: ArrayLike = 1.0
    ) -> None:
        """Discs: centres `[n, 2]`, radius `[n]` or a number, colour one or `[n, 3]`; an opacity `[n]` of 0 leaves one out."""
        self._stroke(at, radius, color, height, opacity, square=False)

    def box(self, at: Reals, half: ArrayLike, color: Color | Reals, *, height: ArrayLike = 0.0, opacity: ArrayLike = 1.0) -> None:
        """Squares with sides along the axes; `half` is half a side."""
        self._stroke(at, half, color, height, opacity, square=True)

    def finish(self) -> NDArray[np.uint8]:
        """The pictures, `[n, size, size, 3]`; y points up."""
        return self._pixels

    def _table(self, rim: NDArray[np.bool_]) -> None:
        """The floor beyond the rim of the table, in the pictures where it is seen."""
        (index,) = np.nonzero(rim)
        if len(index) == 0:
            return
        # A camera that stands still sees one background.
        still = len(index) == len(rim) and (self._centre == self._centre[:1]).all() and (self._reach == self._reach[:1]).all()
        index = index[:1] if still else index
        scale = 0.5 * self.size / self._reach[index, None]
        pixels = np.arange(self.size) + 0.5 - 0.5 * self.size
        x, y = self._centre[index, :1] * scale + pixels, self._centre[index, 1:] * scale - pixels
        columns, rows = (np.clip(scale - np.abs(at) + 0.5, 0.0, 1.0) for at in (x, y))
        cover = (rows[:, :, None] * columns[:, None, :])[..., None]
        painted = np.rint(cover * (np.array(TABLE) - np.array(FLOOR)) + np.array(FLOOR)).astype(np.uint8)
        self._pixels[slice(None) if still else index] = painted

    def _stroke(
        self, at: Reals, extent: ArrayLike, color: Color | Reals, height: ArrayLike, opacity: ArrayLike, *, square: bool
    ) -> None:
        scale = 0.5 * self.size / self._reach
        pixels = np.broadcast_to(np.asarray(extent, np.float64), scale.shape) * scale
        lift = self._tilt * np.broadcast_to(np.asarray(height, np.float64), scale.shape)
        x = 0.5 * self.size + (at[:, 0] - self._centre[:, 0]) * scale
        y = 0.5 * self.size - (at[:, 1] + lift - self._centre[:, 1]) * scale
        opacity = np.broadcast_to(np.asarray(opacity, np.float32), scale.shape)
        # An edge fades over one pixel, half of it outside.
        margin = pixels + 0.5
        inside = (np.minimum(x, y) > -margin) & (np.maximum(x, y) < self.size + margin)
        (seen,) = np.nonzero(inside & (opacity > 0.0))
        if len(seen) == 0:
            return
        side = min(self.size, int(np.ceil(2.0 * pixels[seen].max())) + 2)
        columns, dx = self._window(x[seen], side)
        rows, dy = self._window(y[seen], side)
        cover = _cover(dx, dy, margin[seen].astype(np.float32), square=square) * opacity[seen, None, None]
        ink = np.broadcast_to(np.asarray(color, np.float32), (len(at), 3))[seen, None, None]
        where = (seen[:, None] * self.size + rows)[:, :, None] * self.size + columns[:, None, :]
        flat = self._pixels.reshape(-1, 3)
        below = flat[where].astype(np.float32)
        flat[where] = np.rint(below + cover[..., None] * (ink - below)).astype(np.uint8)

    def _window(self, centre: Reals, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The pixels around a coordinate, `[n, side]`, and how far their middles are from it."""
        # At the border a window is moved inside, so that all have one size.
        first = np.clip(np.floor(centre - 0.5 * side), 0, self.size - side).astype(np.int64)
        pixels = first[:, None] + np.arange(side)
        return pixels, (pixels + 0.5 - centre[:, None]).astype(np.float32)


def _cover(dx: _Singles, dy: _Singles, extent: _Singles, *, square: bool) -> _Singles:
    """How much of each pixel is painted, `[n, side, side]`; `extent` is the radius and half a pixel."""
    if square:
        cover_x, cover_y = (np.clip(extent[:, None] - np.abs(d), 0, 1) for d in (dx, dy))
        return cover_y[:, :, None] * cover_x[:, None, :]
    return np.clip(extent[:, None, None] - np.sqrt((dy * dy)[:, :, None] + (dx * dx)[:, None, :]), 0, 1)
