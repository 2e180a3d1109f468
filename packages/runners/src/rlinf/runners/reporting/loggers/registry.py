"""What a logger is, and which there are.

A logger is a class that is given the run, and then the numbers of each iteration. Ours are registered as any other package
registers its own, by an entry point of the group `rlinf.loggers`; a script uses the decorator:

    @register_logger("mine")
    class Mine:
        def __init__(self, run: LoggedRun) -> None: ...
        def write(self, step: int, scalars: Mapping[str, float]) -> None: ...
        def close(self) -> None: ...

`runner.logger.logger_backends: [tensorboard, mine]` in a recipe then writes to both; `module:Class` names one that
nobody registered.
A class with a static method `check(place: str) -> None` is asked before anything starts whether it can work here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from rlinf.core.declarations import Checks
from rlinf.core.errors import ConfigError
from rlinf.core.registry import Registry

KEY: Final = "runner.logger.logger_backends"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """The run whose numbers are logged."""

    folder: Path
    """Where it writes; a run that resumes goes on in the same one."""
    project: str
    """`runner.logger.project_name`."""
    name: str
    """`runner.experiment_name`."""
    config: Mapping[str, Any]
    """What it was configured with."""

    def identity(self) -> str:
        """21 letters and digits that name the run on a server; the same when it goes on in its folder."""
        file = self.folder / "run_id.txt"
        if not file.exists():
            file.write_text(uuid.uuid4().hex[:21] + "\n")
        return file.read_text().strip()


class MetricsLogger(Protocol):
    """Takes the numbers of a run."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Records the numbers of iteration `step`; the last one comes twice, the second time with the last evaluation."""
        ...

    def close(self) -> None:
        """Writes what is still to be written."""
        ...


LOGGERS: Final[Registry[Callable[[LoggedRun], MetricsLogger]]] = Registry("logger", "rlinf.loggers")
register_logger = LOGGERS.register


def check_logger(name: str) -> None:
    """Refuses a logger that could not work here.

    Raises:
        ConfigError: nobody registered it, or what it needs is not installed.
    """
    made = LOGGERS.get(name, place=KEY)
    if isinstance(made, Checks):
        made.check(KEY)


def open_loggers(names: Sequence[str], run: LoggedRun) -> list[MetricsLogger]:
    """The loggers of a run.

    Raises:
        ConfigError: one of them can't begin.
    """
    opened: list[MetricsLogger] = []
    try:
        for name in names:
            opened.append(LOGGERS.get(name, place=KEY)(run))
    except BaseException:
        for logger in opened:
            logger.close()
        raise
    return opened


def refusal(name: str, error: Exception, remedy: str) -> ConfigError:
    """What is said where the library behind a logger can't begin."""
    return ConfigError(KEY, f"{name} can't begin ({str(error).strip() or type(error).__name__})", remedy)
