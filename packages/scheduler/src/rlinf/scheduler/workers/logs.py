"""What workers log: a file for each, a prefix on the driver's console, and the last lines in the error when one fails."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from rlinf.core.errors import ConfigError
from rlinf.scheduler.transport.transport import label
from rlinf.scheduler.workers.calls import Failure

WORKERS = "rlinf.worker"
"""The logger above those of all workers."""
LEVEL_VARIABLE = "RLINF_LOG_LEVEL"
TAIL_LINES = 20
_ANNOUNCED = "rlinf_announced"
"""The attribute of a record by which the driver shows a failure that the worker's own process has written to its file."""
_LOG = logging.getLogger("rlinf.scheduler")
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def log_level() -> int:
    """What `RLINF_LOG_LEVEL` says; INFO without it.

    Raises:
        ConfigError: it is no level.
    """
    name = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    levels = logging.getLevelNamesMapping()
    if name not in levels:
        raise ConfigError(LEVEL_VARIABLE, f"expected the name of a log level, found '{name}'", f"Use one of {', '.join(levels)}.")
    return levels[name]


def log_path(log_dir: str, group: str, rank: int | str) -> Path:
    """Where a worker's log is."""
    return Path(log_dir) / "worker_logs" / group / f"rank_{rank}.log"


class Tail:
    """The last lines of a log."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)

    def add(self, line: str) -> None:
        """Appends a line, and forgets the oldest if there are too many."""
        self._lines.append(line)

    def text(self) -> str:
        """The lines below a heading, for an error; "" if there are none."""
        return "\n".join(["Last lines of its log:", *self._lines, ""]) if self._lines else ""


class _To(logging.Handler):
    """Gives each record's level and formatted text to a function."""

    def __init__(self, deliver: Callable[[int, str], None], formatter: logging.Formatter | None = None) -> None:
        super().__init__()
        self._deliver = deliver
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        self._deliver(record.levelno, self.format(record))


class _LogFile(logging.Handler):
    """Appends to a file. One that can't be written, as on a full disk, is given up with one warning."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.setFormatter(_FORMAT)
        self._path = path
        self._file: TextIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            self._give_up(error)

    def emit(self, record: logging.LogRecord) -> None:
        if self._file is None:
            return
        try:
            self._file.write(f"{self.format(record)}\n")
            # At once: a process that is killed must not take its last lines with it.
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        file, self._file = self._file, None
        # Closing writes what is buffered, which fails again on a full disk.
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()
        super().close()

    def _give_up(self, error: OSError) -> None:
        self.close()
        _LOG.warning("the log '%s' can't be written: %s. What follows is not in it.", self._path, error.strerror)


class WorkerLog:
    """Follows the logger of one worker until it is closed.

    Args:
        logger_name: the logger; those below it are followed, too.
        log_dir: where to write a file; None writes none.
        group: the worker's group.
        rank: its rank; of a child process, the path `0:3`.
        forward: called with the level and the message of each record.
    """

    def __init__(
        self, logger_name: str, log_dir: str | None, group: str, rank: int | str, forward: Callable[[int, str], None] | None = None
    ) -> None:
        self.tail = Tail()
        self._logger = logging.getLogger(logger_name)
        self._name = f"{WORKERS}.{group}.{rank}"
        self._file: logging.Handler = logging.NullHandler() if log_dir is None else _LogFile(log_path(log_dir, group, rank))
        self._handlers: list[logging.Handler] = [_To(lambda _, line: self.tail.add(line), _FORMAT), self._file]
        if forward is not None:
            self._handlers.append(_To(forward))
        for handler in self._handlers:
            handler.addFilter(lambda record: not hasattr(record, _ANNOUNCED))
            self._logger.addHandler(handler)
        _listen(self._logger)

    def failed(self, method: str, failure: Failure | None) -> None:
        """Writes how a call failed to the file, and nowhere else: the driver shows it, unless it is a mere consequence."""
        if failure is None:
            return
        level = logging.WARNING if failure.secondary else logging.ERROR
        text = f"{method}() failed: {failure.problem}" + ("" if failure.secondary else f"\n{failure.folded.rstrip()}")
        self._file.handle(logging.LogRecord(self._name, level, "(worker)", 0, text, (), None))

    def close(self) -> None:
        """Follows no more, and closes the file."""
        for handler in self._handlers:
            self._logger.removeHandler(handler)
            handler.close()


class Console:
    """Shows what workers log on the standard error of the driver, unless the program has set up logging by itself."""

    def __init__(self) -> None:
        logger = logging.getLogger(WORKERS)
        self._level = logger.level
        _listen(logger)
        self._handler: logging.Handler | None = None
        if not logger.hasHandlers():
            self._handler = logging.StreamHandler()
            self._handler.setFormatter(_Prefixed())
            logger.addHandler(self._handler)

    def close(self) -> None:
        """Shows no more, and leaves the logger as it was."""
        logger = logging.getLogger(WORKERS)
        logger.setLevel(self._level)
        if self._handler is not None:
            logger.removeHandler(self._handler)
            self._handler.close()


def relay(host: str, level: int, message: str) -> None:
    """Logs in the driver what the worker at an address has logged in its own process."""
    logger = logging.getLogger(f"{WORKERS}.{host}")
    # `handle` does not look at this logger's level: the worker's own has decided already.
    logger.handle(logger.makeRecord(logger.name, level, "(worker)", 0, message, (), None))


def announce(logger: logging.Logger, text: str) -> None:
    """Logs a failure in the driver, not into the file of a worker of this process, which has it already."""
    logger.error("%s", text, extra={_ANNOUNCED: True})


class _Prefixed(logging.Formatter):
    """`rollout[1] INFO: the message`."""

    def format(self, record: logging.LogRecord) -> str:
        who = label(record.name.removeprefix(f"{WORKERS}."))
        return "\n".join(f"{who} {record.levelname}: {line}" for line in super().format(record).splitlines())


def _listen(logger: logging.Logger) -> None:
    level = log_level()
    # A program that has asked for more keeps its level.
    if logger.getEffectiveLevel() > level:
        logger.setLevel(level)
