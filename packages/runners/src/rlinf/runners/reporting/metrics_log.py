"""Where a run's numbers go: `metrics.jsonl`, and the loggers that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from rlinf.core.errors import RLinfError
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.schema import RunConfig
from rlinf.runners.reporting.loggers.files import remove_half_line
from rlinf.runners.reporting.loggers.registry import LoggedRun, open_loggers


class MetricsLog:
    """Writes the scalars of each iteration; a context manager that closes its files.

    A line that an earlier process could not write whole, as when the disk was full, is removed before a run goes on.

    Args:
        folder: the run's folder.
        cfg: names the run and its loggers.

    Raises:
        RLinfError: nothing can be written there.
    """

    def __init__(self, folder: RunFolder, cfg: RunConfig) -> None:
        runner, logger = cfg.runner, cfg.runner.logger
        run = LoggedRun(folder=folder.path, project=logger.project_name, name=runner.experiment_name, config=cfg.source)
        self._loggers = open_loggers(logger.logger_backends, run)
        self._path = folder.metrics
        try:
            for path in (folder.metrics, folder.transcripts):
                remove_half_line(path)
            # A run that goes on appends to the same file.
            self._lines = self._path.open("a")
        except OSError as error:
            raise self._unwritten(error) from error

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Records the scalars of iteration `step`.

        Raises:
            RLinfError: the disk is full, or the system refuses to write.
        """
        try:
            self._lines.write(json.dumps({"step": step, **scalars}) + "\n")
            # What was logged must outlive a process that is killed.
            self._lines.flush()
            for logger in self._loggers:
                logger.write(step, scalars)
        except OSError as error:
            raise self._unwritten(error) from error

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        # What could not be written before can't be now, and was told.
        with suppress(OSError):
            self._lines.close()
        for logger in self._loggers:
            with suppress(OSError):
                logger.close()

    def _unwritten(self, error: OSError) -> RLinfError:
        problem = f"the numbers of an iteration can't be written ({error.strerror or error})"
        return RLinfError(str(error.filename or self._path), problem, "Make room, then let the run go on from its last checkpoint.")
