"""Control connections between the driver and each process: both learn at once when the other ends, and the driver asks and tells.

It is apart from the connections that carry items, so that a large item keeps no question waiting, and silence means what it says.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf.scheduler.transport.sockets.locations import Location
from rlinf.scheduler.transport.sockets.wire import FrameReader, send_frame
from rlinf.scheduler.transport.waits import ThreadMonitor, Wait


class ControlConnection:
    """A process's end.

    Args:
        sock: the connection to the driver.
        on_closed: called with the reason when the driver says why all waits of the run end.
        on_end: called when the driver is gone.
    """

    def __init__(self, sock: socket.socket, on_closed: Callable[[str], None], on_end: Callable[[], None]) -> None:
        self._sock = sock
        self._on_closed = on_closed
        self._on_end = on_end
        self._sending = threading.Lock()
        self._answers: dict[str, tuple[Callable[[Any], Any], bool]] = {}

    def answer(self, question: str, function: Callable[[Any], Any], *, waits: bool = False) -> None:
        """Answers a question of the driver from now on, in a thread of its own if that `waits` for anything."""
        self._answers[question] = function, waits

    def start(self) -> None:
        """Watches from now on."""
        threading.Thread(target=self._watch, name="rlinf-control", daemon=True).start()

    def _watch(self) -> None:
        reader = FrameReader(self._sock)
        with contextlib.suppress(OSError, EOFError):
            while True:
                match reader.read()[0]:
                    case ("closed", reason):
                        self._on_closed(reason)
                    case ("ask", number, question, detail):
                        if question not in self._answers:
                            continue  # a child of a worker answers less; this thread must go on, as it hears of the driver's end
                        function, waits = self._answers[question]
                        if waits:
                            # A function that waits must not keep the next question waiting.
                            threading.Thread(target=self._say, args=(number, function, detail), daemon=True).start()
                        else:
                            self._say(number, function, detail)
                    case other:
                        raise OSError(f"unknown frame {other!r}")
        self._on_end()

    def _say(self, number: int, function: Callable[[Any], Any], detail: Any) -> None:
        value = function(detail)
        with self._sending, contextlib.suppress(OSError):  # a driver that is gone is noticed by the thread that reads
            send_frame(self._sock, (number, value))


PATIENCE = 8
"""More questions than these would fill the connection to a process that is stopped, and block who asks."""


@dataclass(eq=False)
class _Process:
    sock: socket.socket
    pid: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    """One frame at a time."""
    unanswered: int = 0
    """Questions that have no answer yet."""


class ControlConnections:
    """The driver's ends.

    Args:
        on_lost: called with the address, the process id and the place of a process whose connection broke.
    """

    def __init__(self, on_lost: Callable[[str, int, Location], None]) -> None:
        self._on_lost = on_lost
        self._processes: dict[str, _Process] = {}
        self._answers: dict[int, Any] = {}
        self._open: set[int] = set()
        """The questions whose answers are still wanted."""
        self._numbers = itertools.count()
        self._came = threading.Condition()

    def attend(self, sock: socket.socket, reader: FrameReader, peer: str, pid: int, place: Location) -> None:
        """Runs in the thread of one connection until it breaks."""
        process = self._processes[peer] = _Process(sock, pid)
        with contextlib.suppress(OSError, EOFError):
            while True:
                number, value = reader.read()[0]
                with self._came:
                    process.unanswered -= 1
                    if number in self._open:
                        # What comes too late is dropped.
                        self._answers[number] = value
                        self._came.notify_all()
        # Its successor may have come before its connection broke.
        if self._processes.get(peer) is process:
            del self._processes[peer]
        self._on_lost(peer, pid, place)

    def pids(self) -> dict[str, int]:
        """The processes that are tied to the driver: address → process id."""
        return {host: process.pid for host, process in list(self._processes.items())}

    def tell(self, reason: str) -> None:
        """Every process ends its waits, with a reason."""
        for process in list(self._processes.values()):
            _send(process, ("closed", reason))

    def ask(self, question: str, detail: Any = None, *, hosts: Sequence[str] | None = None, timeout: float) -> dict[str, Any]:
        """The answers of the processes that give one in time, by address. One that has left several open is no longer asked."""
        asked: dict[int, str] = {}
        for host, process in list(self._processes.items()):
            if (hosts is None or host in hosts) and process.unanswered < PATIENCE:
                number = next(self._numbers)
                with self._came:
                    # Open before it is sent, as the answer may come at once.
                    self._open.add(number)
                    process.unanswered += 1
                asked[number] = host
                _send(process, ("ask", number, question, detail))
        deadline = time.monotonic() + timeout
        with self._came:
            self._came.wait_for(lambda: asked.keys() <= self._answers.keys(), max(0.0, deadline - time.monotonic()))
            self._open -= asked.keys()
            return {host: self._answers.pop(number) for number, host in asked.items() if number in self._answers}


def _send(process: _Process, frame: object) -> None:
    with process.lock, contextlib.suppress(OSError):
        send_frame(process.sock, frame)


class Directory:
    """The driver's list of where everybody is."""

    def __init__(self, timeout_s: float) -> None:
        self._monitor = ThreadMonitor(timeout_s)
        self._places: dict[str, Location] = {}
        self._expected: Counter[str] = Counter()
        self._closed = ""

    def register(self, host: str, place: Location) -> None:
        """A process can be reached from now on."""
        with self._monitor:
            self._places[host] = place
            self._monitor.changed()

    def forget(self, host: str, place: Location) -> None:
        """A process is gone; one that has replaced it stays."""
        with self._monitor:
            if self._places.get(host) == place:
                del self._places[host]
                self._monitor.changed()

    def await_absence(self, hosts: Sequence[str], wait: Wait) -> None:
        """Returns when none of some processes can be reached any more."""
        with self._monitor:
            self._monitor.wait_until(lambda: not any(host in self._places for host in hosts), wait)

    def where(self, host: str, wait: Wait) -> Location:
        """Where a process is; waits for one that has not come yet."""
        with self._monitor:
            self._monitor.wait_until(lambda: bool(self._closed) or host in self._places, wait)
            if host not in self._places:
                raise wait.closed(self._closed)
            return self._places[host]

    def expect(self, host: str) -> None:
        """A process is gone, and may come back in another place."""
        with self._monitor:
            self._expected[host] += 1

    def settle(self, host: str) -> None:
        """A process that was gone has come back, or never will."""
        with self._monitor:
            self._expected[host] -= 1
            self._monitor.changed()

    def again(self, host: str, old: Location | None, wait: Wait) -> Location:
        """Where a process is now that was in a place where it isn't any more; waits while it may come back.

        Raises:
            ChannelClosed: it does not.
        """

        def known() -> bool:
            place = self._places.get(host)
            return place != old if place is not None else not self._expected[host]

        with self._monitor:
            self._monitor.wait_until(lambda: bool(self._closed) or known(), wait)
            if host not in self._places or self._places[host] == old:
                raise wait.closed(self._closed or f"{host} is gone")
            return self._places[host]

    def node(self, host: str) -> str:
        """The node of a process; "" if nobody knows."""
        place = self._places.get(host)
        return "" if place is None else place.node

    def hosts(self, node: str) -> list[str]:
        """The processes of a node."""
        return [host for host, place in list(self._places.items()) if place.node == node]

    def close(self, reason: str) -> None:
        """Ends every wait for a process that has not come."""
        with self._monitor:
            self._closed = self._closed or reason
            self._monitor.changed()
