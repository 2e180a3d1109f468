"""What the error of a wait that reached its deadline says: the wait graph, and the stacks of all workers."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlinf.core.errors import DeadlineExceeded, WorkerError
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.watch.graph import WaitGraph
from rlinf.scheduler.watch.heartbeat import LOG
from rlinf.scheduler.watch.stacks import Stack, in_calls

GRAPH = "Who waits for whom:"
WORKERS_SHOWN = 8
QUIET_S = 30.0
"""After the stacks of all workers were written, later errors in this time have the wait graph only."""


class Stalls:
    """Explains the errors of one run.

    Args:
        wait_graph: who waits for whom now.
        stacks: the stacks of all workers now.
        log_dir: where to write the stacks, in full; None takes a new folder among the temporary files.
    """

    def __init__(
        self, wait_graph: Callable[[], WaitGraph], stacks: Callable[[], Mapping[str, Sequence[Stack]]], log_dir: str | None
    ) -> None:
        self._wait_graph = wait_graph
        self._stacks = stacks
        self._log_dir = log_dir
        self._lock = threading.Lock()
        self._last = -QUIET_S

    def explain(self, error: DeadlineExceeded | WorkerError) -> None:
        """Adds to an error the wait graph, and to that of a deadline, unless there was one shortly before, the workers' stacks."""
        if GRAPH in str(error):
            return
        try:
            found = self._wait_graph().describe()
            graph = f"{GRAPH}\n{found}" if found else ""  # what the wait was for may have ended meanwhile
            if isinstance(error, WorkerError):
                if graph:
                    error.add_note(graph)
                return
            error.remedy = "\n".join(filter(None, (error.remedy, graph)))
            # What unpickling calls the constructor with.
            error.args = (error.place, error.problem, error.remedy)
            with self._lock:
                # Under the lock: of several waits that end at the same time, one has the stacks.
                due = time.monotonic() - self._last >= QUIET_S
                self._last = time.monotonic() if due else self._last
            if due:
                stacks = self._stacks()
                where = self._write(f"{error.place}: {error.problem}\n{graph}\n{full(stacks)}")
                error.add_note(shortened(stacks) + (f"\nAll stacks: {where}" if where else ""))
        except Exception:  # noqa: BLE001 - the error itself must not be lost
            LOG.exception("a deadline could not be explained")

    def _write(self, text: str) -> Path | None:
        if self._log_dir is None:
            self._log_dir = tempfile.mkdtemp(prefix="rlinf-")
        path = Path(self._log_dir).absolute() / "stalls" / f"{time.strftime('%Y%m%d-%H%M%S')}.txt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            LOG.warning("all stacks are lost: '%s' can't be written: %s", path, error.strerror)
            return None
        LOG.warning("a wait reached its deadline; who waits for whom, and all stacks: %s", path)
        return path


def full(stacks: Mapping[str, Sequence[Stack]]) -> str:
    """All stacks as text."""
    return "\n".join("\n".join([f"{who}:", *[stack.describe() for stack in found]]) for who, found in stacks.items())


def shortened(stacks: Mapping[str, Sequence[Stack]]) -> str:
    """The innermost frames of each worker's call."""
    lines = ["What the workers run (most recent call first):"]
    shown = 0
    for who, found in stacks.items():
        frames = in_calls(found) or [stack.thread for stack in found if not stack.frames]
        if who != DRIVER and frames:
            shown += 1
            if shown <= WORKERS_SHOWN:
                lines.append(f"  {who}: {' < '.join(frames)}")
    if shown > WORKERS_SHOWN:
        lines.append(f"  … and {shown - WORKERS_SHOWN} more")
    return "\n".join(lines) if shown else "No worker runs a method."
