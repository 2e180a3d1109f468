"""A drawing surface in metres, smooth at the edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int] | tuple[int, int, int, int]
Point = tuple[float, float]

SIZE = 320
"""Pixels of a frame, each way."""
PAPER, GRID, INK, MUTED = (246, 245, 241), (232, 230, 224), (58, 60, 66), (130, 132, 138)
BLUE, RED, GREEN, WHITE = (36, 92, 196), (214, 66, 58), (46, 148, 84), (255, 255, 255)
STEEL, STEEL_EDGE, DARK, AMBER = (201, 206, 214), (128, 136, 150), (38, 42, 50), (255, 176, 32)

# Shapes are drawn this much larger and scaled down, as Pillow's own shapes have hard edges.
_FINER = 3


class Canvas:
    """A frame, or a part of one, that shows a rectangle of the plane.

    Args:
        lower: the corner of the plane at the lower left, metres.
        width: how much of the plane fits in the width, metres.
        pixels: width and height of the picture.
    """

    def __init__(self, lower: Point, width: float, pixels: tuple[int, int] = (SIZE, SIZE)) -> None:
        self.pixels = pixels
        self._lower = lower
        self._scale = pixels[0] * _FINER / width
        self._image = Image.new("RGB", (pixels[0] * _FINER, pixels[1] * _FINER), PAPER)
        self._draw = ImageDraw.Draw(self._image, "RGBA")
        self._texts: list[tuple[Point, str, Color, str, int]] = []

    def grid(self, pitch: float) -> None:
        """Lines every `pitch` metres."""
        width, height = (self.pixels[0] * _FINER / self._scale, self.pixels[1] * _FINER / self._scale)
        x0, y0 = self._lower
        for i in range(int(np.ceil(x0 / pitch)), int((x0 + width) / pitch) + 1):
            self.line([(i * pitch, y0), (i * pitch, y0 + height)], GRID, 1.0)
        for i in range(int(np.ceil(y0 / pitch)), int((y0 + height) / pitch) + 1):
            self.line([(x0, i * pitch), (x0 + width, i * pitch)], GRID, 1.0)

    def disc(self, centre: Point, radius: float, fill: Color | None = None, edge: Color | None = None, thick: float = 1.5) -> None:
        """A disc of `radius` metres; `thick` pixels of edge."""
        (x, y), r = self._pixel(centre), radius * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=fill, outline=edge, width=self._thick(thick) if edge else 0)

    def polygon(self, corners: Sequence[Point], fill: Color | None, edge: Color | None = None) -> None:
        """A polygon, filled or only its edge."""
        points = [self._pixel(corner) for corner in corners]
        if fill is not None:
            self._draw.polygon(points, fill=fill)
        if edge is not None:
            self._draw.line([*points, points[0]], fill=edge, width=self._thick(1.5), joint="curve")

    def line(self, points: Sequence[Point], color: Color, thick: float) -> None:
        """A line of `thick` pixels through points."""
        self._draw.line([self._pixel(point) for point in points], fill=color, width=self._thick(thick), joint="curve")

    def capsule(self, start: Point, end: Point, color: Color, width: float) -> None:
        """A line with round ends, `width` metres wide; drawn over itself without darkening only if opaque."""
        self.line([start, end], color, width * self._scale / _FINER)
        for point in (start, end):
            self.disc(point, width / 2, color)

    def text(self, at: Point, text: str, color: Color = INK, anchor: str = "la", size: int = 13) -> None:
        """Text at a pixel, counted from the upper left."""
        self._texts.append((at, text, color, anchor, size))

    def finish(self) -> NDArray[np.uint8]:
        """The picture, `[H, W, 3]`."""
        image = self._image.reduce(_FINER)
        draw = ImageDraw.Draw(image)
        # Texts come last and in their final size: Pillow smooths them itself.
        for at, text, color, anchor, size in self._texts:
            draw.text(at, text, fill=color, font=_font(size), anchor=anchor)
        return np.asarray(image, np.uint8)

    def _pixel(self, point: Point) -> Point:
        x, y = point
        return (x - self._lower[0]) * self._scale, self.pixels[1] * _FINER - (y - self._lower[1]) * self._scale

    def _thick(self, pixels: float) -> int:
        return max(1, round(pixels * _FINER))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow decodes its own font anew for each call."""
    return ImageFont.load_default(size=size)
