"""`Server`: answers the requests of other processes, one thread for each connection. What it answers is up to its services."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

from rlinf.core.errors import ChannelClosed, DeadlineExceeded, RLinfError
from rlinf.scheduler.transport.encoding import Blob
from rlinf.scheduler.transport.frames import FrameReader, send_frame
from rlinf.scheduler.transport.places import Location, as_socket, deadline


@dataclass(frozen=True, slots=True)
class Answer:
    """What a service answers."""

    value: Any = None
    content: Sequence[Blob] = ()
    undo: Callable[[], None] | None = None
    """Called if the answer did not arrive; the client then sends a receipt for each that did."""


Handler = Callable[[str, tuple[Any, ...], list[Blob]], Answer]
"""Of the peer's address, the request's arguments and its blobs."""


@dataclass(frozen=True, slots=True)
class _Service:
    handler: Handler
    silent: bool


GREET_S = 10.0
"""How long a client may take to show that it belongs to the run."""
GREETINGS = 128
"""How many clients may be about to show it at a time, each in a thread of its own; the next ones wait to be accepted."""


class Server:
    """Listens on a Unix socket, and on TCP if it is to be reached from other nodes.

    Args:
        place: where to listen; a TCP port of 0 takes a free one.
        authkey: what a client must know.
    """

    def __init__(self, place: Location, authkey: bytes) -> None:
        self._services: dict[str, _Service] = {}
        self._connections: dict[str, Callable[[socket.socket, FrameReader, str, int, Any], None]] = {}
        self._authkey = authkey
        self._room = threading.Semaphore(GREETINGS)
        self._greeted: dict[Connection[Any, Any], float] = {}
        """The clients that have not shown yet that they belong to the run, and since when."""
        self._listeners = [Listener(place.path, "AF_UNIX", backlog=64)]
        if place.tcp is not None:
            self._listeners.append(Listener(place.tcp, "AF_INET", backlog=64))
            place = Location(place.node, place.path, (place.tcp[0], self._listeners[1].address[1]))  # pyright: ignore[reportArgumentType]
        self.place = place

    def serve(self, kind: str, handler: Handler, *, silent: bool = False) -> None:
        """Answers requests of a kind from now on; a silent service sends no answer."""
        self._services[kind] = _Service(handler, silent)

    def welcome(self, kind: str, run: Callable[[socket.socket, FrameReader, str, int, Any], None]) -> None:
        """Runs a function on each connection of a kind: of socket, reader, the peer's address and id, and what it brought."""
        self._connections[kind] = run

    def start(self) -> None:
        """Accepts connections from now on."""
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), name="rlinf-accept", daemon=True).start()

    def stop(self) -> None:
        """Accepts no connection any more."""
        for listener in self._listeners:
            listener.close()

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = listener.accept()
            except ConnectionError:
                continue
            except OSError:
                return
            self._greeted[connection] = time.monotonic()
            while not self._room.acquire(timeout=GREET_S / 4):
                self._hurry()
            threading.Thread(target=self._greet, args=(connection,), name="rlinf-serve", daemon=True).start()

    def _greet(self, connection: Connection[Any, Any]) -> None:
        """In a thread of its own, so that a client that says nothing keeps nobody else waiting."""
        try:
            with deadline(connection, GREET_S):
                deliver_challenge(connection, self._authkey)
                answer_challenge(connection, self._authkey)
            sock = as_socket(connection)
        except (AuthenticationError, EOFError, OSError):
            connection.close()
            return
        finally:
            del self._greeted[connection]
            self._room.release()
        self._attend(sock)

    def _hurry(self) -> None:
        """Ends the connections of clients that say something now and then, but do not come to an end."""
        for connection, since in list(self._greeted.items()):
            if time.monotonic() - since > 2 * GREET_S:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as sock:
                    sock.shutdown(socket.SHUT_RDWR)

    def _attend(self, sock: socket.socket) -> None:
        reader = FrameReader(sock)
        with sock, contextlib.suppress(OSError, EOFError):
            (kind, peer, pid, extra), _ = reader.read()
            if kind in self._connections:
                self._connections[kind](sock, reader, peer, pid, extra)
                return
            while True:
                header, blobs = reader.read()
                self._answer(sock, reader, peer, header, blobs)

    def _answer(self, sock: socket.socket, reader: FrameReader, peer: str, header: tuple[Any, ...], blobs: list[Blob]) -> None:
        service = self._services[header[0]]
        answer = Answer()
        try:
            answer = service.handler(peer, header[1:], blobs)
            said = ("ok", answer.value)
        except DeadlineExceeded as error:
            said = ("expired", error.why)
        except ChannelClosed as error:
            said = ("closed", error.problem.partition(": ")[2] or error.problem)
        except RLinfError as error:
            said = ("error", error)
        if service.silent:
            return
        try:
            send_frame(sock, said, answer.content)
            if answer.undo is not None:
                reader.read()
        except (OSError, EOFError):
            if answer.undo is not None:
                answer.undo()
            raise
