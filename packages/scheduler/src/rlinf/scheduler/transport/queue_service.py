"""The host's side of queues: what other processes put and get over their connections.

A connection carries any number of requests at once, told apart by numbers of the peer's. The thread of a connection only reads; an
answer is sent by whoever makes it possible, so that an item goes from one connection to another without a change of threads. What a
get took is the peer's when the peer says so; if its connection ends before, the items are where they were.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias, cast

from rlinf.scheduler.transport.encoding import Blob, Buffer
from rlinf.scheduler.transport.frames import FrameReader, begin_part, pack_frame, send_part
from rlinf.scheduler.transport.queues import Queues
from rlinf.scheduler.transport.requests import Get, Put, Request
from rlinf.scheduler.transport.transport import label

Sender: TypeAlias = tuple[str, int, int]
"""A connection on which items are posted: the peer's address, its process id, and the connection's number there, which is not 0."""
LOOK_S = 0.001
_LOG = logging.getLogger(__name__)


class _Posts:
    """How many items came over a connection so far, or requests were given up, and whether it has ended."""

    __slots__ = ("count", "ended")

    def __init__(self) -> None:
        self.count = 0
        self.ended = False


class QueueService:
    """Serves the queues of this process to others.

    Args:
        queues: what is served.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._posts: dict[Sender, _Posts] = {}

    def attend(self, sock: socket.socket, reader: FrameReader, peer: str, pid: int, number: int) -> None:
        """Runs in the thread of one connection until it ends."""
        posts = _Posts()
        if number:
            self._posts[peer, pid, number] = posts
        connection = _Connection(self, self._queues, sock, peer, posts)
        try:
            connection.run(reader)
        finally:
            posts.ended = True
            connection.clear()

    def end(self, channel: str, reason: str, sent: Mapping[Sender, int], seconds: float) -> None:
        """Ends a channel once the items have come that were sent before; see `Queues.end`."""
        deadline = time.monotonic() + seconds
        for sender, count in sent.items():
            self.await_posts(sender, count, deadline)
        self._queues.end(channel, reason)

    def await_posts(self, sender: Sender, count: int, deadline: float) -> None:
        """Returns when so many items have come over a connection, when no more can come, or at the deadline."""
        while time.monotonic() < deadline:
            posts = self._posts.get(sender)
            if posts is not None and (posts.count >= count or posts.ended):
                return
            time.sleep(LOOK_S)


class _Connection:
    """One connection of a peer."""

    def __init__(self, service: QueueService, queues: Queues, sock: socket.socket, peer: str, posts: _Posts) -> None:
        self._service = service
        self._queues = queues
        self._sock = sock
        self._peer = peer
        self._posts = posts
        self._requests: dict[int, Request] = {}
        self._sending = threading.Lock()
        self._thread = threading.get_ident()

    def run(self, reader: FrameReader) -> None:
        """Does what the peer asks, until it goes."""
        while True:
            header, blobs = reader.read()
            match header:
                case ("post", name, weight):
                    self._transport(name, weight, blobs)
                case ("nothing",):
                    self._posts.count += 1
                case ("put", number, name, weight, maxsize, now):
                    self._start(number, Put(name, self._peer, (weight, blobs), maxsize, now=now))
                case ("get", number, name, target, now):
                    self._start(number, Get(name, self._peer, target, now=now, holds=True))
                case ("took", number):
                    self._took(number)
                case ("cancel", number):
                    self._cancel(number)
                    self._posts.count += 1
                case ("after", sender, count):
                    self._service.await_posts(sender, count, time.monotonic() + 5.0)
                case ("size", number, name):
                    self._send((number, None, self._queues.size(name)))
                case other:
                    raise OSError(f"unknown frame {other!r}")

    def clear(self) -> None:
        """The peer is gone: what it waited for is cancelled, what it did not get goes back."""
        for request in list(self._requests.values()):
            if not self._queues.cancel(request) and isinstance(request, Get):
                self._queues.give_back(request)

    def _transport(self, name: Hashable, weight: int, blobs: list[Blob]) -> None:
        request = Put(name, self._peer, (weight, blobs), 0)
        self._queues.start(request)
        self._posts.count += 1
        if request.problem is not None:
            channel = cast("tuple[Hashable, ...]", name)[0]
            _LOG.warning("channel '%s': an item of %s is lost: %s", channel, label(self._peer), request.problem[1])

    def _start(self, number: int, request: Request) -> None:
        self._requests[number] = request
        request.callbacks.append(lambda: self._answer(number, request))
        self._queues.start(request)

    def _cancel(self, number: int) -> None:
        request = self._requests.get(number)
        if request is not None and not self._queues.cancel(request) and isinstance(request, Get) and request.problem is None:
            del self._requests[number]
            self._queues.give_back(request)

    def _took(self, number: int) -> None:
        request = self._requests.pop(number)
        assert isinstance(request, Get)
        self._queues.took(request)

    def _answer(self, number: int, request: Request) -> None:
        if isinstance(request, Get) and request.problem is None:
            items = request.entries
            counts = [len(blobs) for _, _, blobs in items]
            self._send((number, None, counts), [blob for _, _, blobs in items for blob in blobs])
        else:
            self._requests.pop(number, None)
            self._send((number, request.problem, None))

    def _send(self, header: object, blobs: Sequence[Blob] = ()) -> None:
        """Sends an answer, but never makes another peer's thread wait for this peer to read."""
        parts = pack_frame(header, blobs, self._sock)
        if threading.get_ident() == self._thread:
            with self._sending:
                self._finish(parts)
        elif not self._sending.acquire(blocking=False):
            threading.Thread(target=self._send_later, args=(parts,), name="rlinf-answer", daemon=True).start()
        else:
            rest = self._begin(parts)
            if rest:
                threading.Thread(target=self._send_rest, args=(rest,), name="rlinf-answer", daemon=True).start()
            else:
                self._sending.release()

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

    def _send_rest(self, parts: list[Buffer]) -> None:
        try:
            self._finish(parts)
        finally:
            self._sending.release()

    def _send_later(self, parts: list[Buffer]) -> None:
        with self._sending:
            self._finish(parts)

    def _finish(self, parts: list[Buffer]) -> None:
        try:
            for part in parts:
                send_part(self._sock, part)
        except OSError:
            pass  # the peer is gone, which the thread of its connection is told, too
