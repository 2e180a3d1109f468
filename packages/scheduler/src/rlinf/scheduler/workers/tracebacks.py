"""Tracebacks for those who wrote the code that failed: their own frames, with those of this project folded."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rlinf.core.errors import RLinfError

SHOWN = 40
"""As many frames of one exception are shown; of a longer stack, such as a recursion's, the middle is left out."""


def folded(error: BaseException) -> str:
    """The traceback of an error as Python shows it, but each run of frames of this project is one line: `[3 more frames of rlinf]`.

    The frame that raised is always shown.
    """
    shown = traceback.TracebackException.from_exception(error)
    _fold(shown)
    return "".join(shown.format())


def says_all(error: BaseException) -> bool:
    """Whether an error needs no traceback: it is one of ours, and no frame of it, nor of its causes, is of its user's own code."""
    return isinstance(error, RLinfError) and not any(_is_own(frame.f_code.co_filename) for frame in _frames(error))


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield from (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_own(filename: str) -> bool:
    """Whether a file is neither of this project nor of Python or an installed library."""
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not filename.startswith(("<", *_ours(), *(f"{folder}/" for folder in libraries)))


def _ours() -> tuple[str, ...]:
    return tuple(f"{Path(folder)}/" for folder in sys.modules["rlinf"].__path__)


def _fold(shown: traceback.TracebackException) -> None:
    shown.stack = _Folded(shown.stack)
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _fold(other)


class _Folded(traceback.StackSummary):
    """A stack of which some frames are hidden, and the first of each hidden run says how many."""

    def __init__(self, frames: traceback.StackSummary) -> None:
        super().__init__(frames)
        ours = [frame.filename.startswith(_ours()) for frame in self]
        shown = [index for index, own in enumerate(ours) if not own or index == len(ours) - 1]
        if len(shown) > SHOWN:
            shown[SHOWN // 2 : -SHOWN // 2] = []
        self._lines: dict[int, str] = {}
        """By the identity of a hidden frame: what stands in its place."""
        for start, end in zip([-1, *shown], [*shown, len(ours)], strict=True):
            hidden = range(start + 1, end)
            plural = "frame" if len(hidden) == 1 else "frames"
            of = " of rlinf" if all(ours[index] for index in hidden) else ""
            # Frames of a recursion are equal, so that only their identity tells them apart.
            self._lines |= {id(self[index]): "" for index in hidden}
            if hidden:
                self._lines[id(self[hidden[0]])] = f"  [{len(hidden)} more {plural}{of}]\n"

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: Any) -> str:
        """See `traceback.StackSummary`, whose `format` calls it; later versions of Python give it options."""
        line = self._lines.get(id(frame_summary))
        return super().format_frame_summary(frame_summary, **options) if line is None else line
