"""What the index of an MP4 file says of it, which tells a whole film from a cut one; no frame is read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

_HEADER: Final = 8
"""Bytes of a box's size and kind."""
_OF_FRAMES: Final = ("mdia", "minf", "stbl", "stsz")
"""Where a track says how many samples it has."""


def frame_count(path: Path) -> int | None:
    """How many frames a film has; None if its index does not say, as that of a film in fragments.

    Raises:
        OSError: it can't be read.
        ValueError: it is no MP4, or it was cut.
    """
    with path.open("rb") as file:
        boxes = {kind: span for kind, *span in _boxes(file, 0, path.stat().st_size)}
        if "moov" not in boxes:
            raise ValueError("it is no MP4, or was cut before its index")
        inside = list(_boxes(file, *boxes["moov"]))
        if any(kind == "mvex" for kind, *_ in inside):
            return None
        counts = [_samples(file, start, end) for kind, start, end in inside if kind == "trak"]
        return max((count for count in counts if count is not None), default=None)


def _samples(file: IO[bytes], start: int, end: int) -> int | None:
    """Those of a track with pictures; None for other tracks."""
    for name in _OF_FRAMES:
        boxes = {kind: span for kind, *span in _boxes(file, start, end)}
        if "hdlr" in boxes and _read(file, boxes["hdlr"][0] + _HEADER, 4) != b"vide":
            return None
        if name not in boxes:
            return None
        start, end = boxes[name]
    # Version and flags, the size of all samples if they have one, and how many there are.
    return struct.unpack(">I", _read(file, start + _HEADER, 4))[0]


def _boxes(file: IO[bytes], start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """The boxes within a span, each with the span of its content."""
    while start < end:
        size, kind = struct.unpack(">I4s", _read(file, start, _HEADER))
        content = start + _HEADER
        if size == 1:
            size, content = struct.unpack(">Q", _read(file, content, 8))[0], content + 8
        elif size == 0:
            size = end - start
        if not content - start <= size <= end - start:
            raise ValueError(f"it was cut, {start + size - end} bytes are missing" if size > end - start else "it is no MP4")
        yield kind.decode("latin-1"), content, start + size
        start += size


def _read(file: IO[bytes], at: int, count: int) -> bytes:
    file.seek(at)
    found = file.read(count)
    if len(found) < count:
        raise ValueError("it was cut")
    return found
