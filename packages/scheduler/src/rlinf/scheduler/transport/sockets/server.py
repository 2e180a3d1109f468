"""`Server`: what a process does for others: it serves its queues, and answers questions.

One thread accepts, and one reads each connection. All frames of a peer come over its one connection, in the order in which it sent
them: so the items that a process has put are there before whatever it asks next, and its gets are served in their order.

    ("post", queue, weight) item                     no answer
    ("put", number, queue, weight, maxsize, now) item → (number, problem, None)
    ("get", number, queue, target, now)             → (number, problem, [blobs of each item]) items, then ("took", number)
    ("ask", number, kind) question                  → (number, problem, undoable) answer, then ("took", number) if it can be undone
    ("cancel", number)                              it is answered as cancelled, or what it took goes back
    ("tell", kind) question                         no answer
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from rlinf.core.errors import ChannelClosed, DeadlineExceeded, RLinfError
from rlinf.scheduler.transport.encoding import Blob, Buffer, decode, encode
from rlinf.scheduler.transport.queues import Get, Put, Queues, Request
from rlinf.scheduler.transport.sockets.locations import Location, as_socket, deadline
from rlinf.scheduler.transport.sockets.wire import FrameReader, begin_part, pack_frame, send_part
from rlinf.scheduler.transport.transport import channel_of, label

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Service:
    handler: Callable[..., Any]
    waits: bool
    peer: bool
    undo: Callable[..., None] | None

    def answer(self, peer: str, question: tuple[Any, ...]) -> Any:
        """What the handler says."""
        return self.handler(peer, *question) if self.peer else self.handler(*question)


GREET_S = 10.0
"""How long a client may take to show that it belongs to the run."""
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What the kernel says when it can open no further file now, but later may."""
SHORTAGE_S = 0.1
GREETINGS = 128
"""How many clients may be about to show it at a time, each in a thread of its own; the next ones wait to be accepted."""


class Server:
    """Listens on a Unix socket, and on TCP if it is to be reached from other nodes.

    Args:
        place: where to listen; a TCP port of 0 takes a free one.
        authkey: what a client must know.
        queues: what this process hosts for others.
    """

    def __init__(self, place: Location, authkey: bytes, queues: Queues) -> None:
        self.queues = queues
        self.services: dict[str, _Service] = {}
        self.handle_control: Callable[[socket.socket, str, int, Location], None] | None = None
        """The driver's: runs in the thread of each control connection, until it ends."""
        self.serve("size", queues.size)
        self.serve("end", queues.end)
        self.serve("arrived", lambda: None)
        self._authkey = authkey
        self._room = threading.Semaphore(GREETINGS)
        self._greeted: dict[Connection[Any, Any], float] = {}
        """The clients that have not shown yet that they belong to the run, and since when."""
        self._listeners = [_listening(socket.AF_UNIX, place.path)]
        if place.tcp is not None:
            self._listeners.append(_listening(socket.AF_INET, place.tcp))
            place = Location(place.node, place.path, (place.tcp[0], int(self._listeners[1].getsockname()[1])))
        self.place = place

    def serve(
        self,
        kind: str,
        handler: Callable[..., Any],
        *,
        waits: bool = False,
        peer: bool = False,
        undo: Callable[..., None] | None = None,
    ) -> None:
        """Answers questions of a kind from now on.

        Args:
            kind: the name of the service.
            handler: called with what is asked; what it returns is the answer.
            waits: it may wait for something, and so has a thread of its own for each question.
            peer: its first argument is the address of who asks.
            undo: called with what was asked if the answer did not arrive; the client says of each that did that it took it.
        """
        self.services[kind] = _Service(handler, waits, peer, undo)

    def start(self) -> None:
        """Accepts connections from now on."""
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), name="rlinf-accept", daemon=True).start()

    def stop(self) -> None:
        """Accepts no connection any more."""
        for listener in self._listeners:
            # Closing alone leaves the thread in `accept`, which the kernel begins anew when the process was stopped and goes on:
            # with the number of the descriptor, which may be another server's by then.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if not self.place.path.startswith("\0"):
            Path(self.place.path).unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection: Connection[Any, Any] = Connection(listener.accept()[0].detach())
            # The client was gone before it was accepted.
            except ConnectionError:
                continue
            except OSError as error:
                # It is closed, unless the process has too many files open: the clients wait until it has fewer.
                if error.errno not in SHORTAGE:
                    return
                time.sleep(SHORTAGE_S)
                continue
            self._greeted[connection] = time.monotonic()
            while not self._room.acquire(timeout=GREET_S / 4):
                self._drop_slow_clients()
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
        self._handle_connection(sock)

    def _drop_slow_clients(self) -> None:
        """Ends the connections of clients that say something now and then, but do not come to an end."""
        for connection, since in list(self._greeted.items()):
            if time.monotonic() - since > 2 * GREET_S:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as sock:
                    # Not closed here: its own thread still reads the descriptor.
                    sock.shutdown(socket.SHUT_RDWR)

    def _handle_connection(self, sock: socket.socket) -> None:
        reader = FrameReader(sock)
        with sock, contextlib.suppress(OSError, EOFError):
            (kind, peer, pid, place), _ = reader.read()
            if kind == "control" and self.handle_control is not None:
                self.handle_control(sock, peer, pid, place)
            else:
                _ServedConnection(self, sock, peer).run(reader)

    def answer(self, sock: socket.socket, peer: str) -> None:
        """Answers what a peer asks over a connection that this process has opened, until it ends."""
        with sock, contextlib.suppress(OSError, EOFError):
            _ServedConnection(self, sock, peer).run(FrameReader(sock))


def _listening(family: socket.AddressFamily, address: Any) -> socket.socket:
    listener = socket.socket(family)
    try:
        if family == socket.AF_INET:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


class _Question:
    """A question of a peer that is being answered, or whose answer the peer has not taken yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = True
        self._undo: Callable[[], None] | None = None

    def answered(self, undo: Callable[[], None]) -> None:
        """What was done is undone if the peer does not take the answer."""
        with self._lock:
            wanted, self._undo = self._wanted, undo
        if not wanted:
            undo()

    def cancel(self) -> None:
        """The peer does not want it any more."""
        with self._lock:
            self._wanted = False
            undo, self._undo = self._undo, None
        if undo is not None:
            undo()


class _ServedConnection:
    """One connection of another process: its thread only reads, so that whatever waits here keeps no later frame waiting.

    An answer is sent by whoever makes it possible, so that an item goes from one connection to another without a change of threads.
    What a get took is the peer's when the peer says so; if its connection ends before, the items are where they were.
    """

    def __init__(self, server: Server, sock: socket.socket, peer: str) -> None:
        self._server = server
        self._queues = server.queues
        self._sock = sock
        self._peer = peer
        self._requests: dict[int, Request | _Question] = {}
        """Those that are not done, or whose results the peer has not taken yet."""
        self._sending = threading.Lock()
        self._thread = threading.get_ident()

    def run(self, reader: FrameReader) -> None:
        """Does what the peer asks, until it goes."""
        try:
            while True:
                self._handle(*reader.read())
        finally:
            self._clear()

    def _handle(self, header: tuple[Any, ...], blobs: list[Blob]) -> None:
        match header:
            case ("post", name, weight):
                self._post(name, weight, blobs)
            case ("put", number, name, weight, maxsize, now):
                self._start(number, Put(name, self._peer, (weight, blobs), maxsize, now=now))
            case ("get", number, name, target, now):
                self._start(number, Get(name, self._peer, target, now=now))
            case ("took", number):
                self._took(number)
            case ("cancel", number):
                self._cancel(number)
            case ("ask", number, kind):
                service = self._server.services.get(kind)
                if service is None:
                    self._send((number, ("closed", f"it does not answer '{kind}'"), None))
                    return
                question = self._requests[number] = _Question()
                asked = (service, number, question, blobs)
                if service.waits:
                    threading.Thread(target=self._ask, args=asked, name=f"rlinf-{kind}", daemon=True).start()
                else:
                    self._ask(*asked)
            case ("tell", kind):
                self._server.services[kind].answer(self._peer, decode(blobs))
            case other:
                raise OSError(f"unknown frame {other!r}")

    def _post(self, name: Hashable, weight: int, blobs: list[Blob]) -> None:
        request = Put(name, self._peer, (weight, blobs), 0)
        self._queues.start(request)
        if request.problem is not None:
            # A post has no answer in which its sender could learn of it.
            channel = channel_of(name)
            what = "a message" if channel is None else f"an item of channel '{channel}'"
            _LOG.warning("%s from %s is lost: %s", what, label(self._peer), request.problem[1])

    def _start(self, number: int, request: Request) -> None:
        self._requests[number] = request
        request.callbacks.append(lambda: self._answer(number, request))
        self._queues.start(request)

    def _took(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if isinstance(request, Get):
            self._queues.resolve(request, back=False)

    def _cancel(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            request.cancel()

    def _clear(self) -> None:
        """The peer is gone: what it waited for is cancelled, what it did not get goes back."""
        for request in list(self._requests.values()):
            request.cancel()

    def _answer(self, number: int, request: Request) -> None:
        if isinstance(request, Get) and request.problem is None:
            # It stays among the requests until the peer has taken it: if the peer ends before, its items go back.
            counts = [len(blobs) for _, _, blobs in request.entries]
            self._send((number, None, counts), [blob for _, _, blobs in request.entries for blob in blobs])
        else:
            self._requests.pop(number, None)
            self._send((number, request.problem, None))

    def _ask(self, service: _Service, number: int, question: _Question, blobs: list[Blob]) -> None:
        problem: Any = None
        undo: Callable[[], None] | None = None
        answer: list[Blob] = []
        try:
            details: tuple[Any, ...] = decode(blobs)
            answer = encode(service.answer(self._peer, details), place=f"an answer to {label(self._peer)}")
            undo = None if service.undo is None else partial(service.undo, *details)
        except DeadlineExceeded as error:
            problem = ("expired", error.why)
        except ChannelClosed as error:
            # The reason alone: the peer's own error says who waited for what.
            problem = ("closed", error.problem.partition(": ")[2] or error.problem)
        except RLinfError as error:
            problem = ("error", error)
        except Exception as error:  # noqa: BLE001 - in a thread of its own, nobody else would tell the peer
            _LOG.exception("a question of %s failed", label(self._peer))
            problem = ("closed", f"its host failed: {error!r}")
        if undo is None:
            self._requests.pop(number, None)
        else:
            question.answered(undo)
        self._send((number, problem, undo is not None), answer)

    def _send(self, header: object, blobs: Sequence[Blob] = ()) -> None:
        """Sends an answer, but never makes another peer's thread wait for this peer to read."""
        parts = pack_frame(header, blobs, self._sock)
        own = threading.get_ident() == self._thread  # this peer's own thread may wait for it to read
        if self._sending.acquire(blocking=own):
            rest = parts if own else self._begin(parts)
            if own or not rest:
                self._finish(rest)
                return
            # The lock goes with the rest: unlike an RLock, another thread may release it.
            send = self._finish
        else:
            # Answers have numbers, so that one may be overtaken.
            send, rest = self._send_later, parts
        threading.Thread(target=send, args=(rest,), name="rlinf-answer", daemon=True).start()

    def _begin(self, parts: list[Buffer]) -> list[Buffer]:
        """Sends as much as the peer has room for; returns the rest."""
        for i, part in enumerate(parts):
            try:
                sent = begin_part(self._sock, part, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return parts[i:]
            except OSError:
                return []
            if sent < len(part):
                return [memoryview(part)[sent:], *parts[i + 1 :]]
        return []

    def _send_later(self, parts: list[Buffer]) -> None:
        # In a thread of its own: for as long as the peer does not read what is before it, or until the peer is gone.
        self._sending.acquire()
        self._finish(parts)

    def _finish(self, parts: list[Buffer]) -> None:
        """Sends what is left, and lets the next answer be sent."""
        try:
            for part in parts:
                send_part(self._sock, part)
        except OSError:
            pass  # the peer is gone, which the thread of its connection is told, too
        finally:
            self._sending.release()
