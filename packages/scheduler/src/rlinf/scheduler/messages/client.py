"""Requests to the message servers of other processes, over one connection for each thread and host."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from rlinf.scheduler.messages.encoding import Blob
from rlinf.scheduler.messages.frames import FrameReader, send_frame
from rlinf.scheduler.messages.post import label
from rlinf.scheduler.messages.waiting import Wait

GRACE_S = 10.0
"""How long beyond its deadline a server may take to say so."""
RETRY_S = 0.02


def connect(folder: Path, host: str, authkey: bytes, me: str, kind: str, wait: Wait, seconds: float) -> socket.socket:
    """An authenticated connection to a host; waits for a host that is not there yet.

    Raises:
        DeadlineExceeded: it did not appear.
        ChannelClosed: it is gone.
    """
    path = str(folder / host)
    deadline = time.monotonic() + seconds
    while True:
        try:
            sock = as_socket(Client(path, "AF_UNIX", authkey=authkey))
        except FileNotFoundError as error:
            if not folder.is_dir():
                raise wait.closed("its cluster was shut down") from error
            if time.monotonic() >= deadline:
                raise wait.expired(seconds) from error
            time.sleep(RETRY_S)
        except (OSError, EOFError) as error:
            raise wait.closed(f"{label(host)} is gone") from error
        else:
            send_frame(sock, (kind, me, os.getpid()))
            return sock


def as_socket(connection: Connection[Any, Any]) -> socket.socket:
    """The socket of an authenticated connection, for frames of our own."""
    sock = socket.socket(fileno=os.dup(connection.fileno()))
    connection.close()
    return sock


class Clients:
    """This process's connections to other hosts."""

    def __init__(self, folder: Path, authkey: bytes, me: str, timeout_s: float) -> None:
        self._folder = folder
        self._authkey = authkey
        self._me = me
        self._timeout_s = timeout_s
        self._local = threading.local()

    def tell(self, host: str, header: object, blobs: Sequence[Blob], wait: Wait) -> None:
        """Sends without an answer."""
        sock, _ = self._connection(host, wait)
        try:
            send_frame(sock, header, blobs)
        except OSError as error:
            self._drop(host)
            raise wait.closed(f"{label(host)}, which hosts it, is gone") from error

    def ask(self, host: str, header: object, blobs: Sequence[Blob], wait: Wait) -> tuple[Any, list[Blob]]:
        """Sends and waits for the answer, which the host gives at the latest at the deadline."""
        sock, reader = self._connection(host, wait)
        seconds = self._timeout_s if wait.timeout is None else wait.timeout
        answered = False
        try:
            sock.settimeout(seconds + GRACE_S)
            send_frame(sock, header, blobs)
            answer, content = reader.read()
            answered = True
        except TimeoutError as error:
            raise wait.expired(seconds) from error
        except (OSError, EOFError) as error:
            raise wait.closed(f"{label(host)}, which hosts it, is gone") from error
        finally:
            if not answered:
                self._drop(host)
        if answer[0] == "expired":
            raise wait.expired(seconds)
        if answer[0] == "closed":
            raise wait.closed(answer[1])
        return answer[1], content

    def _connection(self, host: str, wait: Wait) -> tuple[socket.socket, FrameReader]:
        open_here: dict[str, tuple[socket.socket, FrameReader]] = self._local.__dict__.setdefault("open", {})
        if host not in open_here:
            seconds = self._timeout_s if wait.timeout is None else wait.timeout
            sock = connect(self._folder, host, self._authkey, self._me, "queue", wait, seconds)
            open_here[host] = sock, FrameReader(sock)
        return open_here[host]

    def _drop(self, host: str) -> None:
        sock, _ = self._local.open.pop(host)
        sock.close()
