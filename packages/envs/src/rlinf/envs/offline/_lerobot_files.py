"""What is in a file of a LeRobot dataset. Only imported when one is opened."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.offline import Array

parquet: Any = importlib.import_module("pyarrow.parquet")
_ffmpeg: Any = importlib.import_module("imageio_ffmpeg")


def rows(path: Path) -> list[dict[str, Any]]:
    schema = parquet.read_schema(path)
    # Statistics of each episode are most of the file, and of no use here.
    return parquet.read_table(path, columns=[name for name in schema.names if not name.startswith("stats/")]).to_pylist()


def tasks(path: Path) -> list[str]:
    """The tasks in words; pandas gives an index without a name one of its own."""
    table = parquet.read_table(path).to_pydict()
    texts = table.get("task", table.get("__index_level_0__", []))
    return [str(text) for text in texts]


def column(column: Any, shape: tuple[int, ...]) -> Array:
    """A column as `[frames, *]`, whichever kind of list it is."""
    chunks = column.combine_chunks()
    while hasattr(chunks.type, "value_type"):
        chunks = chunks.flatten()
    values = np.asarray(chunks.to_numpy(zero_copy_only=False))
    return values.reshape(len(column), *shape)


def film(path: Path, size: tuple[int, ...]) -> Iterator[NDArray[np.uint8]]:
    """The frames of a video as they were encoded, none doubled or dropped."""
    film = _ffmpeg.read_frames(str(path), pix_fmt="rgb24", output_params=["-fps_mode", "passthrough"])
    try:
        width, height = next(film)["source_size"]
        if (height, width) != tuple(size):
            raise ValueError(f"expected {size[0]} × {size[1]} pixels in '{path}', found {height} × {width}")
        for frame in film:
            yield np.frombuffer(frame, np.uint8).reshape(height, width, 3)
    finally:
        film.close()
