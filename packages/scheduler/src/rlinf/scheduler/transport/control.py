"""The lifeline between the driver and each process: both learn at once when the other ends, and the driver can ask and tell."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf.scheduler.transport.frames import FrameReader, send_frame
from rlinf.scheduler.transport.places import Location


class ControlConnection:
    """A process's end.

    Args:
        sock: the connection to the driver.
        on_closed: called with the reason when the driver says that another process died.
        on_end: called when the driver is gone.
    """

    def __init__(self, sock: socket.socket, on_closed: Callable[[str], None], on_end: Callable[[], None]) -> None:
        self._sock = sock
        self._on_closed = on_closed
        self._on_end = on_end
        self._answers: dict[str, Callable[[Any], Any]] = {}

    def answer(self, question: str, function: Callable[[Any], Any]) -> None:
        """Answers a question of the driver from now on, in the lifeline's own thread: briefly, and without waiting."""
        self._answers[question] = function

    def start(self) -> None:
        """Watches from now on."""
        threading.Thread(target=self._watch, name="rlinf-lifeline", daemon=True).start()

    def _watch(self) -> None:
        reader = FrameReader(self._sock)
        with contextlib.suppress(OSError, EOFError):
            while True:
                match reader.read()[0]:
                    case ("closed", reason):
                        self._on_closed(reason)
                    case ("ask", number, question, detail):
                        send_frame(self._sock, (number, self._answers[question](detail)))
                    case other:
                        raise OSError(f"unknown frame {other!r}")
        self._on_end()


PATIENCE = 8
"""More questions than these would fill the connection to a process that is stopped, and block who asks."""


@dataclass(eq=False)
class _Line:
    sock: socket.socket
    pid: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    """One frame at a time."""
    unanswered: int = 0
    """Questions that have no answer yet."""


class ControlConnections:
    """The driver's ends.

    Args:
        on_lost: called with the address, the process id and the place of a process whose lifeline broke.
    """

    def __init__(self, on_lost: Callable[[str, int, Location], None]) -> None:
        self._on_lost = on_lost
        self._lines: dict[str, _Line] = {}
        self._answers: dict[int, Any] = {}
        self._open: set[int] = set()
        """The questions whose answers are still wanted."""
        self._numbers = itertools.count()
        self._came = threading.Condition()

    def attend(self, sock: socket.socket, reader: FrameReader, peer: str, pid: int, place: Location) -> None:
        """Runs in the thread of one lifeline until it breaks."""
        line = self._lines[peer] = _Line(sock, pid)
        with contextlib.suppress(OSError, EOFError):
            while True:
                number, value = reader.read()[0]
                with self._came:
                    line.unanswered -= 1
                    if number in self._open:
                        self._answers[number] = value
                        self._came.notify_all()
        if self._lines.get(peer) is line:
            del self._lines[peer]
        self._on_lost(peer, pid, place)

    def pids(self) -> dict[str, int]:
        """The processes that are tied to the driver: address → process id."""
        return {host: line.pid for host, line in list(self._lines.items())}

    def tell(self, reason: str) -> None:
        """Every process ends its waits, with a reason."""
        for line in list(self._lines.values()):
            _send(line, ("closed", reason))

    def ask(self, question: str, detail: Any = None, *, hosts: Sequence[str] | None = None, timeout: float) -> dict[str, Any]:
        """The answers of the processes that give one in time, by address. One that has left several open is asked no more."""
        asked: dict[int, str] = {}
        for host, line in list(self._lines.items()):
            if (hosts is None or host in hosts) and line.unanswered < PATIENCE:
                number = next(self._numbers)
                with self._came:
                    self._open.add(number)
                    line.unanswered += 1
                asked[number] = host
                _send(line, ("ask", number, question, detail))
        deadline = time.monotonic() + timeout
        with self._came:
            self._came.wait_for(lambda: asked.keys() <= self._answers.keys(), max(0.0, deadline - time.monotonic()))
            self._open -= asked.keys()
            return {host: self._answers.pop(number) for number, host in asked.items() if number in self._answers}


def _send(line: _Line, frame: object) -> bool:
    with line.lock, contextlib.suppress(OSError):
        send_frame(line.sock, frame)
        return True
    return False
