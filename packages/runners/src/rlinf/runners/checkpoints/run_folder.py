"""The folder of a run: made before any worker starts, and never on top of an earlier run."""

from __future__ import annotations

import fcntl
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TextIO

from rlinf.core.checkpoints.weight_files import find_weights, newest_checkpoint
from rlinf.core.errors import ConfigError
from rlinf.runners.config.schema import RunConfig

AUTO = "auto"
"""The value of `runner.resume_dir` that means the run's own folder."""
_CLAIMS: dict[Path, TextIO] = {}
"""Held open for as long as this process lives."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`<log_path>/<experiment_name>`, and what is in it."""

    path: Path
    started: float = field(default_factory=time.monotonic, compare=False)
    """When the run began, on the clock of `time.monotonic`."""
    former: Path | None = field(default=None, compare=False)
    """Where the earlier run of the same name is kept; None if there was none."""

    @property
    def wall_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started

    def discard(self) -> None:
        """Removes the folder of a run that was refused before it did anything, and gives the earlier run its name back.

        One with a checkpoint or with numbers stays.
        """
        if self.checkpoints.exists() or self.metrics.exists():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self.former is not None and not self.path.exists():
            self.former.rename(self.path)

    @property
    def checkpoints(self) -> Path:
        """Holds a `global_step_N` folder for each checkpoint."""
        return self.path / "checkpoints"

    @property
    def video(self) -> Path:
        """An episode of the last evaluation."""
        return self.path / "video" / "eval.mp4"

    @property
    def failures(self) -> Path:
        """Films of episodes that were not solved."""
        return self.path / "video" / "failures"

    @property
    def transcripts(self) -> Path:
        """What language models wrote, one JSON object for each problem."""
        return self.path / "transcripts.jsonl"

    @property
    def metrics(self) -> Path:
        """Every logged number, one JSON object for each iteration."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """The result of the run."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        """All of this as a page for people, written by `rlinf report` and at the end of the run."""
        return self.path / "report.html"


def run_folder(cfg: RunConfig) -> RunFolder:
    """The folder of a run, whether or not it exists."""
    return RunFolder(Path(cfg.runner.logger.log_path).expanduser().absolute() / cfg.runner.experiment_name)


def resume_folder(cfg: RunConfig) -> Path | None:
    """What `runner.resume_dir` names, or with `auto` the newest checkpoint of the run's own folder; None if it starts anew."""
    named = cfg.runner.resume_dir
    if named is None:
        return None
    if named != AUTO:
        return Path(named).expanduser()
    own = run_folder(cfg).checkpoints
    return newest_checkpoint(own) if own.is_dir() else None


def open_run_folder(cfg: RunConfig, planned: RunFolder | None = None) -> RunFolder:
    """Makes the run's folder; an earlier run of the same name is kept as `<experiment_name>.1`, `.2`, ….

    A run that resumes a checkpoint of this very folder goes on in it.

    Args:
        cfg: the configuration of the run.
        planned: what `run_folder` returned when the run began, from when on its time counts; None if it begins now.

    Raises:
        ConfigError: the folder can't be written.
        CheckpointError: there are no weights where `runner.ckpt_path` says.
    """
    # Looked for first, so that a wrong path leaves no folder behind.
    if cfg.runner.ckpt_path is not None:
        find_weights(cfg.runner.ckpt_path, place="runner.ckpt_path")
    folder = replace(run_folder(cfg), started=time.monotonic() if planned is None else planned.started)
    path = folder.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Before the look at what is there: of two runs that start together, each would move the other's folder away.
        _claim(path)
        if path.exists() and not _resumes_here(cfg, path):
            folder = replace(folder, former=path.rename(_free_name(path)))
        make_writable(path)
    except OSError as error:
        problem = f"can't write to '{path}' ({error.strerror})"
        raise ConfigError("runner.logger.log_path", problem, "Name a folder that you may write to.") from error
    return folder


def expect_writable(folder: Path) -> None:
    """Refuses a folder that could not be made, or not be written to; leaves nothing behind.

    Raises:
        OSError: the system refuses.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    # What a system says of rights is not all: nobody writes to /proc, and nothing below a file.
    with TemporaryFile(dir=there):
        pass


def make_writable(folder: Path) -> None:
    """Makes a folder that files can be written to.

    Raises:
        OSError: the system refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # `mkdir` does not fail for a folder that is there and can't be written to.
    expect_writable(folder)


def _claim(path: Path) -> None:
    """Refuses a folder that a run which still lives writes to; the claim ends with the process."""
    # A lock belongs to an opened file: a second one would be refused within one process, too.
    if path in _CLAIMS:
        return
    # Beside the folder, not in it, as the folder is renamed when a run of the same name begins.
    lock = path.with_name(f".{path.name}.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        problem = f"another run is writing to '{path}'"
        raise ConfigError("runner.experiment_name", problem, "Choose another name, or wait for its end.") from error
    except OSError:
        pass  # some file systems have no locks; there nobody notices a second run
    _CLAIMS[path] = lock


def _resumes_here(cfg: RunConfig, path: Path) -> bool:
    resume = resume_folder(cfg)
    return resume is not None and resume.resolve().is_relative_to(path.resolve())


def _free_name(path: Path) -> Path:
    number = 1
    while (path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return path.with_name(f"{path.name}.{number}")
