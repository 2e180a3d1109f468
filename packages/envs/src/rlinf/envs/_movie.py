"""Tiles, captions and mp4 files, with Pillow and imageio's own ffmpeg."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import imageio
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from rlinf.envs.assembly import logger

_BAR = 28
_PAPER, _INK, _MUTED, _GREEN, _LINE = (255, 255, 255), (58, 60, 66), (110, 113, 120), (34, 128, 70), (222, 222, 218)
_HOLD_S = 0.75

Tile = tuple[NDArray[np.uint8], tuple[str, str, str]]


class Movie:
    """An mp4 file that grows frame by frame.

    Args:
        path: where the complete file will be; folders are made.
        tiles: how many environments are shown side by side.
        fps: frames a second.
    """

    def __init__(self, path: Path, tiles: int, fps: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._part = path.with_suffix(".part.mp4")
        self._columns = math.ceil(math.sqrt(tiles))
        self._tiles: list[NDArray[np.uint8] | None] = [None] * (self._columns * math.ceil(tiles / self._columns))
        self._fps = fps
        self._frame: NDArray[np.uint8] | None = None
        # An even size is all that the pixel format asks for; the default would stretch the frame to a multiple of 16.
        self._writer = cast("Any", imageio).get_writer(self._part, fps=fps, codec="libx264", quality=7, macro_block_size=2)

    def add(self, tiles: Mapping[int, Tile]) -> None:
        """One frame: new tiles where given, the former ones elsewhere."""
        for index, (frame, caption) in tiles.items():
            self._tiles[index] = captioned(frame, caption)
        self._frame = self._compose()
        self._writer.append_data(self._frame)

    def close(self) -> None:
        """Holds the last frame for a moment and completes the file."""
        for _ in range(int(_HOLD_S * self._fps) if self._frame is not None else 0):
            self._writer.append_data(self._frame)
        self._writer.close()
        os.replace(self._part, self._path)
        logger.info("video written: %s", self._path)

    def _compose(self) -> NDArray[np.uint8]:
        shape = next(tile.shape for tile in self._tiles if tile is not None)
        blank = np.full(shape, 255, np.uint8)
        tiles = [blank if tile is None else tile for tile in self._tiles]
        rows = [np.concatenate(tiles[i : i + self._columns], axis=1) for i in range(0, len(tiles), self._columns)]
        frame = np.concatenate(rows, axis=0)
        return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]


def captioned(frame: NDArray[np.uint8], caption: tuple[str, str, str]) -> NDArray[np.uint8]:
    """The frame `[H, W, 3]` above a bar with step, return and outcome; `[H + 28, W, 3]`."""
    height, width = frame.shape[:2]
    image = Image.new("RGB", (width, height + _BAR), _PAPER)
    image.paste(Image.fromarray(frame), (0, 0))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=13)
    middle = height + _BAR / 2
    draw.text((10, middle), caption[0], fill=_INK, font=font, anchor="lm")
    draw.text((width / 2, middle), caption[1], fill=_MUTED, font=font, anchor="mm")
    draw.text((width - 10, middle), caption[2], fill=_GREEN, font=font, anchor="rm")
    draw.rectangle((0, 0, width - 1, height + _BAR - 1), outline=_LINE)
    return np.asarray(image, np.uint8)
