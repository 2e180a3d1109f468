"""`Recording`: the trace of one run, as its driver has it."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware.detection import virtual_nodes
from rlinf.scheduler.trace.chrome import merge
from rlinf.scheduler.trace.reading import ABOUT, CORES, PLACEMENT, VIRTUAL_DEVICES
from rlinf.scheduler.trace.recorder import Recorder
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.workers.logs import Console

_LOG = logging.getLogger("rlinf.scheduler")


class Recording:
    """The file of a run's trace, and the folder in which its processes write until then.

    Args:
        path: the file.
        run: tells runs apart.
        cores: CPU cores of a node, if its accelerators are virtual ones and share them; None if they are not.

    Raises:
        ConfigError: the folder can't be made.
    """

    def __init__(self, path: Path, run: str, *, cores: int | None = None) -> None:
        self.path = path.absolute()
        self.folder = self.path.with_name(f"{self.path.name}.{run}.parts")
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise ConfigError("cluster.tracer.path", f"can't write beside '{self.path}': {error.strerror}") from error
        self.recorder = Recorder(self.folder, DRIVER)
        self._placed: dict[str, list[list[int]]] = {}
        self._about: dict[str, Any] = {PLACEMENT: self._placed}
        if cores is not None:
            self._about |= {VIRTUAL_DEVICES: True, CORES: cores}
        self._tell()

    @classmethod
    def begin(cls, config: ClusterConfig, run: str) -> tuple[Recording | None, ExitStack]:
        """The recording of a run, None if the configuration does not ask for one; and what ends it, and the console of the logs."""
        with ExitStack() as started:
            started.callback(Console().close)
            if not config.tracer.enabled:
                return None, started.pop_all()
            path = Path(config.tracer.path or Path(config.log_dir or ".") / "trace.json")
            nodes = virtual_nodes(config) if config.virtual_accelerators is not None else ()
            recording = cls(path, run, cores=min((node.cores for node in nodes), default=None))
            started.callback(recording.end)
            return recording, started.pop_all()

    def placed(self, group: str, devices: Sequence[Sequence[int]]) -> None:
        """Notes where a group was launched.

        Args:
            group: its name.
            devices: the accelerators of each rank.
        """
        self._placed[group] = [list(each) for each in devices]
        self._tell()

    def _tell(self) -> None:
        # What is lost with a full disk is no more than the trace itself, of which the recorder warns.
        with contextlib.suppress(OSError):
            (self.folder / ABOUT).write_text(json.dumps(self._about), encoding="utf-8")

    def write(self, path: str | Path | None = None) -> Path:
        """Writes the trace so far; returns where.

        Raises:
            RLinfError: it can't be written there.
        """
        self.recorder.flush()
        target = Path(path or self.path)
        try:
            return merge(self.folder, target)
        except OSError as error:
            raise RLinfError(
                "write_trace", f"can't write '{target}': {error.strerror}", "Make room, or name another path."
            ) from error

    def end(self) -> None:
        """Writes the trace, and removes what it was made of. Nothing is recorded any more.

        A trace that can't be written is lost with a warning: the run itself has not failed.
        """
        self.recorder.close()
        try:
            self.write()
        except RLinfError as error:
            if not self.recorder.lost:
                _LOG.warning("the trace of this run is lost: %s", error)
        shutil.rmtree(self.folder, ignore_errors=True)
