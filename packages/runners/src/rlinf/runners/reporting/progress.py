"""What a person sees while a run goes on: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

LINE_EVERY_S = 10.0
NAME_WIDTH = len("transcripts ")
"""Of what stands before a path, at the end of every run."""


class ProgressDisplay:
    """Shows iterations, what is said of them, and the time left; a context manager.

    Args:
        total: the number of iterations.
        start: the iteration that the run begins with.
        doing: what each of them does, in a word.
    """

    def __init__(self, total: int, start: int = 0, doing: str = "train") -> None:
        # Where nothing is shown, as when a recipe is refused, nothing of it is imported.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = Console(file=sys.stderr, highlight=False)
        self._total, self._start, self._doing = total, start, doing
        self._began = self._last_line = time.monotonic()
        self._evaluated = ""
        self._bar = Progress(
            TextColumn(f"[bold]{doing}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(doing, total=total, completed=start, numbers="starting")

    def note(self, text: str) -> None:
        """Prints a line above the bar."""
        # Text may hold brackets, which rich would take for markup.
        self._console.print(text, markup=False, soft_wrap=True)

    def paths(self, found: Mapping[str, Path | str | None]) -> None:
        """Prints where things are, one a line; None is left out."""
        for name, path in found.items():
            if path is not None:
                self.note(f"{name:{NAME_WIDTH}}{path}")

    def iteration(self, done: int, *parts: str) -> None:
        """Shows that `done` iterations are over since the run's beginning, and what is to be said of the last one."""
        numbers = "  ".join([*parts, self._evaluated]).rstrip()
        self._bar.update(self._task, completed=done, numbers=numbers)
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._last_line > LINE_EVERY_S or done == self._total):
            self._last_line = now
            left = (now - self._began) / max(1, done - self._start) * (self._total - done)
            self.note(f"{self._doing} {done}/{self._total}  {numbers}  left {left:.0f} s")

    def evaluation(self, text: str) -> None:
        """Shows what the newest evaluation found."""
        self._evaluated = f"eval {text}"

    def __enter__(self) -> ProgressDisplay:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._bar.stop()
