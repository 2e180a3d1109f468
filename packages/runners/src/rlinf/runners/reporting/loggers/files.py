"""Loggers that write to this machine: TensorBoard, a table, and lines of text."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf.runners.reporting.loggers.registry import LoggedRun


class TensorBoardLogger:
    """`tensorboard`: event files in the folder `tensorboard` of the run."""

    def __init__(self, run: LoggedRun) -> None:
        # The writer of torch is this one, too, and importing torch takes seconds.
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer: Any = EventFileWriter(str(run.folder / "tensorboard"))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds a point to the curve of each number."""
        from tensorboard.compat.proto import event_pb2, summary_pb2

        events: Any = event_pb2
        summaries: Any = summary_pb2
        for name, value in scalars.items():
            point = summaries.Summary.Value(tag=name, simple_value=float(value))
            summary = summaries.Summary(value=[point])
            self._writer.add_event(events.Event(step=step, wall_time=time.time(), summary=summary))

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


class CSVLogger:
    """`csv`: the table `metrics.csv` with a row for each iteration, and a column for each number that any of them had."""

    def __init__(self, run: LoggedRun) -> None:
        self._path = run.folder / "metrics.csv"
        remove_half_line(self._path)
        self._columns = _header(self._path)
        # A run that goes on appends to the same file.
        self._file = self._path.open("a", newline="", encoding="utf-8")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends a row; a number that no iteration had before becomes a column, empty in the rows above."""
        new = [name for name in ("step", *scalars) if name not in self._columns]
        if new:
            self._widen(new)
        csv.DictWriter(self._file, self._columns).writerow({"step": step, **scalars})
        # What was logged must outlive a process that is killed.
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _widen(self, new: list[str]) -> None:
        self._file.close()
        with self._path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self._columns = [*self._columns, *new]
        # Written beside the old one and moved over it, so that a reader never finds half a table.
        partial = self._path.with_name(f".{self._path.name}.partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self._path)
        self._file = self._path.open("a", newline="", encoding="utf-8")


class StdoutLogger:
    """`stdout`: a line `step 3  env/return=0.5 …` for each iteration, for a terminal or the log of a batch system."""

    def __init__(self, run: LoggedRun) -> None:
        self._name = run.name

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Prints the numbers with five digits, in alphabetical order."""
        numbers = " ".join(f"{name}={scalars[name]:.5g}" for name in sorted(scalars))
        sys.stdout.write(f"{self._name} step {step}  {numbers}\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is held back."""


def _header(path: Path) -> list[str]:
    """The columns of a table; none if it is not there yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), list[str]())


def remove_half_line(path: Path) -> None:
    """Removes a last line without its end, which a process that was killed could not write whole."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
