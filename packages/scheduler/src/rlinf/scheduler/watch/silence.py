"""`SilenceWatch`: says soon which process does not answer, and ends the wait for one that stays stopped.

A process that is stopped (state T, as by SIGSTOP) runs no code until somebody continues it, so that nothing it owes will come. One
that is merely silent works in native code that holds Python's lock, for as long as that takes: it is named, and left alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlinf.core.errors import error_text
from rlinf.scheduler.watch.heartbeat import LOG
from rlinf.scheduler.watch.processes import STOPPED
from rlinf.scheduler.workers.logs import WORKERS

LOOK_S = 2.5
SILENT_S = 10.0
"""How long a process may be silent before the log says so; one that is stopped is named at once."""
FAILED_LOOKS = 3
"""How many looks in a row fail before the log says so: one may meet a process that just ends."""


@dataclass
class _Silence:
    pid: int
    seconds: float = 0.0
    """Since it was noticed."""
    stopped: float = 0.0
    """For how much of this time, up to now, it has been stopped."""
    told: str = ""
    """What the log has said of it."""
    over: bool = False


class SilenceWatch:
    """Looks from a thread of its own, until it is ended.

    Args:
        look: the processes that do not answer now, by address: process id, and how it looks from outside.
        on_stopped: called with address, id and seconds of a process that has been stopped for `grace_s`, once.
        grace_s: how long a process may be stopped; 0 for any time.
        look_s: seconds between two looks.
    """

    def __init__(
        self,
        look: Callable[[], Mapping[str, tuple[int, str]]],
        on_stopped: Callable[[str, int, float], None],
        grace_s: float,
        look_s: float = LOOK_S,
    ) -> None:
        self._look = look
        self._on_stopped = on_stopped
        self._grace_s = grace_s
        self._look_s = look_s
        self._silent: dict[str, _Silence] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="rlinf-silence", daemon=True).start()

    def end(self) -> None:
        """Looks no more."""
        self._ended.set()

    def _run(self) -> None:
        last, failed = time.monotonic(), 0
        while not self._ended.wait(self._look_s):
            try:
                found = self._look()
            except Exception as error:  # noqa: BLE001 - a look that fails must not be the last one
                failed += 1
                level = logging.WARNING if failed == FAILED_LOOKS else logging.DEBUG
                LOG.log(level, "processes that are stopped are not noticed now: %s", error_text(error), exc_info=True)
                continue
            failed = 0
            now = time.monotonic()
            # What is counted is what this process itself has seen: it may have been stopped, too.
            self._note(found, min(now - last, 4 * self._look_s))
            last = now

    def _note(self, found: Mapping[str, tuple[int, str]], elapsed: float) -> None:
        for host, silence in list(self._silent.items()):
            if host not in found or found[host][0] != silence.pid:
                del self._silent[host]
                if silence.told and host not in found:
                    _log(host).info("pid %d answers again", silence.pid)
        for host, (pid, state) in found.items():
            known = self._silent.get(host)
            silence = self._silent.setdefault(host, _Silence(pid))
            # For how long it was silent before the first look is not known, and not counted.
            silence.seconds += elapsed if known else 0.0
            stopped = state.startswith(STOPPED)
            silence.stopped = (silence.stopped + (elapsed if known else 0.0)) if stopped else 0.0
            self._tell(host, silence, state, stopped=stopped)

    def _tell(self, host: str, silence: _Silence, state: str, *, stopped: bool) -> None:
        if stopped and silence.told != STOPPED:
            silence.told = STOPPED
            end = f"; the run waits {self._grace_s:g} s for it (cluster.stopped_grace_s)" if self._grace_s else ""
            _log(host).warning("its process is stopped (state T, as by SIGSTOP): `kill -CONT %d` continues it%s", silence.pid, end)
        elif not stopped and not silence.told and silence.seconds >= SILENT_S:
            silence.told = state
            _log(host).info("has not answered for %.0f s: %s", silence.seconds, state)
        if stopped and self._grace_s and silence.stopped >= self._grace_s and not silence.over and not self._ended.is_set():
            silence.over = True
            self._on_stopped(host, silence.pid, silence.stopped)


def _log(host: str) -> logging.Logger:
    return logging.getLogger(f"{WORKERS}.{host}")
