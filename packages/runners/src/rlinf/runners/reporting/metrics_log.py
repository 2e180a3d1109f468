"""Where a run's numbers go: TensorBoard and `metrics.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.schema import LoggerConfig


class MetricsLog:
    """Writes the scalars of each iteration; a context manager that closes its files.

    Args:
        folder: the run's folder.
        config: which backends.
    """

    def __init__(self, folder: RunFolder, config: LoggerConfig) -> None:
        # A run that goes on appends to the same file.
        self._lines = folder.metrics.open("a")
        self._writer: Any = None
        if "tensorboard" in config.logger_backends:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(folder.tensorboard))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Records the scalars of iteration `step`."""
        self._lines.write(json.dumps({"step": step, **scalars}) + "\n")
        # What was logged must outlive a process that is killed.
        self._lines.flush()
        if self._writer is not None:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, step)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._lines.close()
        if self._writer is not None:
            self._writer.close()
