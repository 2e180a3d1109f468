"""Where the processes of a run are, and how one connects to another: over a Unix socket on one node, over TCP between nodes."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from rlinf.scheduler.transport.routes import RouteChoice
from rlinf.scheduler.transport.sockets.wire import limit_socket, send_frame

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
