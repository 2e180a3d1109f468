"""Circles, squares and triangles, drawn with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["circle", "square", "triangle"]
Color = Literal["red", "green", "blue", "yellow"]
KINDS: Final[tuple[Kind, ...]] = ("circle", "square", "triangle")
COLORS: Final[tuple[Color, ...]] = ("red", "green", "blue", "yellow")
_RGB: Final = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220), "yellow": (230, 200, 40)}
_MARGIN: Final = 0.1
"""Of a cell, on each side of a shape."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape in a cell of a grid; row 0 is at the top."""

    color: Color
    kind: Kind
    row: int
    column: int


def draw(shapes: Sequence[Shape], *, grid: int, cell: int) -> NDArray[np.uint8]:
    """`[grid · cell, grid · cell, 3]`, the shapes on white."""
    image = np.full((grid * cell, grid * cell, 3), 255, np.uint8)
    for shape in shapes:
        rows, columns = (slice(at * cell, (at + 1) * cell) for at in (shape.row, shape.column))
        image[rows, columns][stencil(shape.kind, cell)] = _RGB[shape.color]
    return image


def stencil(kind: Kind, cell: int) -> NDArray[np.bool_]:
    """`[cell, cell]`, which pixels a shape covers; a pixel counts where its centre is."""
    along = (np.arange(cell) + 0.5) / cell
    y, x = along[:, None], along[None, :]
    half = 0.5 - _MARGIN
    if kind == "circle":
        return (x - 0.5) ** 2 + (y - 0.5) ** 2 <= half**2
    if kind == "square":
        return (np.abs(x - 0.5) <= half) & (np.abs(y - 0.5) <= half)
    depth = (y - _MARGIN) / (2 * half)
    return (depth >= 0) & (depth <= 1) & (np.abs(x - 0.5) <= half * depth)
