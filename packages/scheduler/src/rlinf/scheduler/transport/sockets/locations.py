"""Where the processes of a run are, and how one connects to another: over a Unix socket on one node, over TCP between nodes."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from rlinf.scheduler.transport.routes import RouteChoice
from rlinf.scheduler.transport.sockets.wire import limit_socket, send_frame
from rlinf.scheduler.transport.waits import ThreadMonitor, Wait

KEEPALIVE_S = 5
SILENCE_S = 20
"""How long the other end of a TCP connection may leave sent data, or a probe, without an acknowledgement."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where one process can be reached."""

    node: str
    """Tells the nodes apart; processes of one node share a folder."""
    path: str
    """Its Unix socket, for those on its node; it has no file if it starts with a null character."""
    tcp: tuple[str, int] | None = None
    """Its address for those on other nodes; None if the run has one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What the processes of one run share."""

    run: str
    """Tells runs apart."""
    driver: Location
    """Where the driver is, who knows where all others are."""
    authkey: bytes
    """What a process must know to connect."""
    timeout_s: float
    """The default deadline of every wait."""
    route: RouteChoice = "auto"
    """How items go from process to process."""

    @property
    def networked(self) -> bool:
        """Whether the run has several nodes."""
        return self.driver.tcp is not None

    def over(self, node: str) -> bool:
        """Whether a process of that node can see that the run has ended."""
        # Its folder is removed at the end of the run.
        return node == self.driver.node and not Path(self.driver.path).parent.is_dir()


def short_folder() -> Path:
    """Where the sockets of a run go: a Unix socket's path has room for some hundred characters."""
    folder = tempfile.gettempdir()
    return Path(folder if len(folder) < 40 else "/tmp")  # noqa: S108


def connect(place: Location, node: str, authkey: bytes, hello: object, seconds: float) -> socket.socket:
    """An authenticated connection from a process of `node`; `hello` is its first frame.

    Raises:
        BlockingIOError: the process there says nothing for so long.
        OSError, EOFError: nobody answers there.
    """
    if place.node == node:
        sock, target = socket.socket(socket.AF_UNIX), place.path
    elif place.tcp is not None:
        sock, target = socket.socket(socket.AF_INET), place.tcp
    else:
        raise ConnectionRefusedError(f"{place.path} is on another node")
    try:
        # A host that is cut off refuses nothing, and the kernel would try to reach it for minutes.
        limit = seconds if place.node == node else min(seconds, SILENCE_S)
        sock.settimeout(limit)
        _reach(sock, target, limit)
        # A timeout makes the descriptor non-blocking, and the duplicate below with it.
        sock.settimeout(None)
        _notice_silence(sock)
        # The challenges of `multiprocessing` take connections of its own only.
        connection: Connection[Any, Any] = Connection(os.dup(sock.fileno()))
    finally:
        sock.close()
    try:
        with deadline(connection, seconds):
            # The server challenges first, in `Server._greet`.
            answer_challenge(connection, authkey)
            deliver_challenge(connection, authkey)
        sock = as_socket(connection)
    except BaseException:
        connection.close()
        raise
    send_frame(sock, hello)
    return sock


@contextlib.contextmanager
def deadline(connection: Connection[Any, Any], seconds: float) -> Generator[None]:
    """Each step of a connection's beginning fails inside with `BlockingIOError` if the other end takes longer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        limit_socket(sock, max(seconds, 0.001))
        yield
        limit_socket(sock, 0.0)


def _reach(sock: socket.socket, target: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            return sock.connect(target)
        except BlockingIOError:  # a Unix socket with many clients that it has not accepted yet says so at once
            if time.monotonic() >= end:
                raise
            time.sleep(0.01)


def as_socket(connection: Connection[Any, Any]) -> socket.socket:
    """The socket of an authenticated connection, for frames of our own; over TCP it notices a peer that was cut off."""
    sock = socket.socket(fileno=os.dup(connection.fileno()))
    connection.close()
    _notice_silence(sock)
    return sock


def _notice_silence(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        # Frames are often small, and Nagle's algorithm would hold them back.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
        # The first probe goes after KEEPALIVE_S of silence: with so many more, SILENCE_S are over.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, SILENCE_S // KEEPALIVE_S - 1))
        # There are no probes while sent data waits for its acknowledgement, for which this is the limit.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)


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
