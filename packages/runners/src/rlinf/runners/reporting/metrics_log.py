"""Where a run's numbers go: `metrics.jsonl`, and the loggers that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType

from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.schema import RunConfig
from rlinf.runners.reporting.loggers.registry import LoggedRun, open_loggers


class MetricsLog:
    """Writes the scalars of each iteration; a context manager that closes its files.

    Args:
        folder: the run's folder.
        cfg: names the run and its loggers.
    """

    def __init__(self, folder: RunFolder, cfg: RunConfig) -> None:
        runner, logger = cfg.runner, cfg.runner.logger
        run = LoggedRun(folder=folder.path, project=logger.project_name, name=runner.experiment_name, config=cfg.source)
        self._loggers = open_loggers(logger.logger_backends, run)
        # A run that goes on appends to the same file.
        self._lines = folder.metrics.open("a")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Records the scalars of iteration `step`."""
        self._lines.write(json.dumps({"step": step, **scalars}) + "\n")
        # What was logged must outlive a process that is killed.
        self._lines.flush()
        for logger in self._loggers:
            logger.write(step, scalars)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._lines.close()
        for logger in self._loggers:
            logger.close()
