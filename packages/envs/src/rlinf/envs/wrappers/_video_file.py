"""Tiles, captions and mp4 files, with Pillow and imageio's own ffmpeg."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import imageio
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from rlinf.core.errors import RLinfError

_LINE_HEIGHT, _SECOND_LINE = 28, 18
_PAPER, _INK, _MUTED, _GREEN, _LINE = (255, 255, 255), (58, 60, 66), (110, 113, 120), (34, 128, 70), (222, 222, 218)
_HOLD_S = 0.75
_SIZES = (13, 11, 9)
_NARROWEST = 160
_LONGEST_REASON = 400

Caption = tuple[str, str, str, str]
"""What stands beneath a frame: left, middle and right of the first line, and a second line, which is left out if it is empty."""
Tile = tuple[NDArray[np.uint8], Caption]

_logger = logging.getLogger("rlinf.envs")


class VideoFile:
    """An mp4 file that grows frame by frame.

    Args:
        path: where the complete file will be; folders are made.
        tiles: how many environments are shown side by side.
        fps: frames a second.

    Raises:
        RLinfError: the folder can't be made; `add` and `close` raise it too, when a frame can't be encoded or the file not written.
    """

    def __init__(self, path: Path, tiles: int, fps: int) -> None:
        with failures_named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        # It still ends in .mp4, by which imageio chooses the format.
        self._part = path.with_suffix(".part.mp4")
        self._columns = math.ceil(math.sqrt(tiles))
        self._tiles: list[NDArray[np.uint8] | None] = [None] * (self._columns * math.ceil(tiles / self._columns))
        self._fps = fps
        self._frame: NDArray[np.uint8] | None = None
        # An even size is all that the pixel format asks for; the default would stretch the frame to a multiple of 16.
        self._writer = imageio.get_writer(self._part, fps=fps, codec="libx264", quality=7, macro_block_size=2)  # pyright: ignore[reportUnknownMemberType]

    def add(self, tiles: Mapping[int, Tile]) -> None:
        """One frame: new tiles where given, the former ones elsewhere."""
        for index, (frame, caption) in tiles.items():
            self._tiles[index] = captioned(frame, caption)
        with failures_named(self._path):
            self._frame = self._compose()
            self._writer.append_data(self._frame)

    def close(self) -> None:
        """Holds the last frame for a moment and completes the file."""
        with failures_named(self._path):
            try:
                if self._frame is not None:
                    for _ in range(int(_HOLD_S * self._fps)):
                        self._writer.append_data(self._frame)
            finally:
                self._writer.close()
            os.replace(self._part, self._path)
        _logger.info("video written: %s", self._path)

    def _compose(self) -> NDArray[np.uint8]:
        shape = next(tile.shape for tile in self._tiles if tile is not None)
        blank = np.full(shape, 255, np.uint8)
        tiles = [blank if tile is None else tile for tile in self._tiles]
        rows = [np.concatenate(tiles[i : i + self._columns], axis=1) for i in range(0, len(tiles), self._columns)]
        frame = np.concatenate(rows, axis=0)
        # An odd row or column is cut off, as imageio would rescale the whole frame to make its size even.
        return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]


def captioned(frame: NDArray[np.uint8], caption: Caption) -> NDArray[np.uint8]:
    """The frame `[H, W, 3]` above a bar with step, reward and outcome, and the task where there is one.

    A frame of less than 160 pixels is enlarged by a whole number n, so that the words have room; n is 1 for others.

    Returns:
        `[n · H + 28, n · W, 3]`, or `[n · H + 46, n · W, 3]` with a task.
    """
    times = math.ceil(_NARROWEST / frame.shape[1])
    frame = frame.repeat(times, axis=0).repeat(times, axis=1)
    height, width = frame.shape[:2]
    *line, task = caption
    image = Image.new("RGB", (width, height + _LINE_HEIGHT + (_SECOND_LINE if task else 0)), _PAPER)
    image.paste(Image.fromarray(frame), (0, 0))
    draw = ImageDraw.Draw(image)
    middle = height + _LINE_HEIGHT / 2
    font = _fitting(draw, "  ".join(line), width)
    draw.text((10, middle), line[0], fill=_INK, font=font, anchor="lm")
    if draw.textlength("  ".join(line), font=font) <= width - 20:
        left, worth = (draw.textlength(text, font=font) for text in (f"{line[0]}  ", line[1]))
        draw.text((max(10 + left, (width - worth) / 2), middle), line[1], fill=_MUTED, font=font, anchor="lm")
    draw.text((width - 10, middle), line[2], fill=_GREEN, font=font, anchor="rm")
    if task:
        draw.text((10, middle + _SECOND_LINE), task, fill=_INK, font=_fitting(draw, task, width), anchor="lm")
    draw.rectangle((0, 0, width - 1, image.height - 1), outline=_LINE)
    return np.asarray(image, np.uint8)


def _fitting(draw: ImageDraw.ImageDraw, text: str, width: int) -> Any:
    """The font in which a line fits, as long as it can be read."""
    for size in _SIZES:
        font = ImageFont.load_default(size=size)
        if draw.textlength(text, font=font) <= width - 20:
            return font
    return ImageFont.load_default(size=_SIZES[-1])


@contextlib.contextmanager
def failures_named(path: Path) -> Generator[None]:
    """Says of what fails within which video it was."""
    try:
        yield
    except (OSError, ValueError, StopIteration) as error:
        # Imageio's writer is a generator, and over when ffmpeg has died before the first frame.
        reason = " ".join(str(error).split())[:_LONGEST_REASON] or "ffmpeg has ended, with its own message on stderr"
        remedy = "Look for a full disk, a folder that can't be written and frames of different sizes; or record no video."
        raise RLinfError("video", f"{path} can't be written: {reason}", remedy) from error
