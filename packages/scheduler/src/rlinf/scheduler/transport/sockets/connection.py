"""The client's side: one `Connection` to each host, for the requests of all threads of this process.

A thread that waits for an answer reads the connection itself, for all that wait: one round trip, and no other thread takes part.
Threads that wait meanwhile are woken with their answers, and one of them reads on when the first has its own. A thread in the
background reads only while there are requests that nobody waits for, such as those of handles.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from rlinf.core.errors import DeadlineExceeded, RLinfError
from rlinf.scheduler.transport import waits
from rlinf.scheduler.transport.channel_registry import KnownChannels
from rlinf.scheduler.transport.encoding import Blob, Blobs
from rlinf.scheduler.transport.sockets.wire import FrameReader, send_frame
from rlinf.scheduler.transport.transport import label
from rlinf.scheduler.transport.waits import Monitor, ThreadMonitor, Wait
from rlinf.scheduler.transport.work import failure

GRACE_S = 10.0
"""How long beyond a deadline a host may take to say what became of a request."""
GONE = "gone"
"""The problem of a request whose host is gone; why, is found out by the thread that asks for its result."""


class RemoteRequest:
    """A put, a get or a question to another process. Satisfies `Operation`.

    Args:
        connection: to its host.
        kind: `put`, `get`, or `ask`.
        name: the queue, or the kind of the question.
    """

    monitor: Monitor = ThreadMonitor(0.0)  # only `give_way` and `cooperative` are asked for

    def __init__(self, connection: Connection, kind: str, name: Hashable) -> None:
        self.kind = kind
        self.name = name
        self.number = 0
        self.done = False
        self.problem: Any = None
        self.value: Any = None
        self.blobs: list[Blob] = []
        self.unattended = False
        """No thread waits for it, so that the one in the background must read."""
        self.waiting: list[threading.Lock] = []
        """Locks on which threads wait; released when it is done."""
        self._connection = connection
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def end(self, problem: Any, value: Any = None, blobs: Sequence[Blob] = ()) -> None:
        """The host has answered, or never will, or the answer is not wanted any more."""
        with self._lock:
            if self.done:
                return
            self.problem, self.value, self.blobs = problem, value, list(blobs)
            self.done = True
            callbacks, self._callbacks = self._callbacks, []
        # A copy: a thread whose own deadline comes meanwhile takes its lock away.
        for lock in list(self.waiting):
            _release(lock)
        for callback in callbacks:
            callback()

    def detach(self) -> None:
        self._connection.leave_to_background(self)

    def when_done(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, wait: Wait) -> None:
        self._connection.await_answer(self, wait)

    def take(self, wait: Wait) -> list[Blobs]:
        if self.problem is not None:
            raise self._failure(wait)
        if self.value:
            # Until the host hears it, what it did would be undone if this process ended.
            self._connection.say("took", self, now=True)
        if self.kind == "ask":
            return [self.blobs]
        if self.kind == "put":
            return []
        items: list[Blobs] = []
        at = 0
        for count in self.value:
            items.append(self.blobs[at : at + count])
            at += count
        self._connection.count(self.name, gets=len(items))
        return items

    def expire(self, error: DeadlineExceeded) -> None:
        """See `Operation`. A host puts back what crosses a cancellation before it reads this process's next request."""
        if self.kind != "ask":  # whose deadline the host has kept, and it knows best why it passed
            self._connection.say("cancel", self, now=True)
        if not self._connection.read_until(self, GRACE_S):
            if self.kind == "ask":
                self._connection.say("cancel", self, now=True)
            self.detach()
            raise error
        if self.problem is None and self.kind == "get":
            raise error
        if self.problem is not None and self.problem[0] in ("cancelled", "expired"):
            raise error.because(self.problem[1]) from None

    def cancel(self) -> bool:
        if self.done and (self.kind == "put" or self.problem is not None):
            return False
        self._connection.say("cancel", self, now=True)
        self.detach()
        if self.kind != "put":
            self.end(("cancelled", ""))
            return True
        # Only the host knows whether the item was put before the word came.
        return self._connection.read_until(self, GRACE_S) and self.problem is not None

    def abandon(self) -> None:
        if self.kind == "get":
            self._connection.say("cancel", self)

    def _failure(self, wait: Wait) -> RLinfError:
        how, why = self.problem
        if how == GONE:
            return wait.closed(self._connection.gone(self.name))
        if how == "expired":
            return wait.expired(wait.seconds(self._connection.timeout_s), why)
        return why if how == "error" else failure(self.problem, wait)


class Connection:
    """One connection.

    Args:
        sock: the connection, which belongs to this object from now on.
        host: where it leads.
        timeout_s: the default deadline of a wait.
        channels: what this process knows of channels.
    """

    def __init__(self, sock: socket.socket, host: str, timeout_s: float, channels: KnownChannels) -> None:
        self.broken = ""
        """Why it carries nothing any more."""
        self._sock = sock
        self._host = host
        self.timeout_s = timeout_s
        self._channels = channels
        self._reader = FrameReader(sock)
        # Not `select.select`, which refuses descriptors from 1024 on; leases are descriptors, too.
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._sending = threading.Lock()
        self._notices: deque[tuple[str, int]] = deque()
        """What is to be said of requests before the next frame."""
        self._numbers = itertools.count(1)
        self._requests: dict[int, RemoteRequest] = {}
        self._counting = threading.Lock()
        self._unattended = 0
        self._reading = threading.Lock()
        """Held by the thread that reads."""
        self._waiting: dict[threading.Lock, RemoteRequest] = {}
        """Threads that wait for the one that reads, by the locks on which they wait."""
        self._wanted: threading.Lock | None = None
        """The lock on which the thread in the background waits; None until there is one."""

    def post(self, name: Any, weight: int, blobs: Sequence[Blob], wait: Wait) -> None:
        """Sends an item that needs no answer.

        Raises:
            ChannelClosed: the channel takes nothing more, or its host is gone.
            DeadlineExceeded: the host does not read.
        """
        self._send(("post", name, weight), blobs, name, wait)
        self.count(name, puts=1)

    def start(self, kind: str, name: Hashable, detail: tuple[Any, ...], blobs: Sequence[Blob], wait: Wait) -> RemoteRequest:
        """Sends a request; raises as `post`."""
        request = RemoteRequest(self, kind, name)
        request.number = next(self._numbers)
        # Known before it is sent: another thread may read the answer before `_send` returns.
        self._requests[request.number] = request
        self._send((kind, request.number, name, *detail), blobs, name, wait)
        return request

    def tell(self, kind: str, detail: Sequence[Blob], wait: Wait) -> None:
        """Sends something that needs no answer; raises as `post`."""
        self._send(("tell", kind), detail, None, wait)

    def say(self, notice: str, request: RemoteRequest, *, now: bool = False) -> None:
        """Tells the host what becomes of a request.

        Args:
            notice: `took`, or `cancel`: it is not to be done, and what it took goes back.
            request: which.
            now: not later, when the thread that is sending has finished; never in a finaliser, nor in the thread that reads.
        """
        # An append to a deque takes no lock, so that a finaliser may do it at any moment.
        self._notices.append((notice, request.number))
        if now:
            with contextlib.suppress(OSError), self._sending:
                self._flush()
        self._sweep()

    def await_answer(self, request: RemoteRequest, wait: Wait) -> None:
        """Returns when a request is answered; at the deadline it goes on, and `DeadlineExceeded` is raised."""
        seconds = wait.seconds(self.timeout_s)
        doing = waits.begin(wait)
        try:
            if not self.read_until(request, seconds):
                raise wait.expired(seconds)
        finally:
            waits.end(doing)

    def read_until(self, request: RemoteRequest, seconds: float) -> bool:
        """Whether a request is answered in time. This thread reads for all, or waits for the one that does."""
        deadline = time.monotonic() + seconds
        lock: threading.Lock | None = None
        try:
            while not request.done and (left := deadline - time.monotonic()) > 0:
                if self._reading.acquire(blocking=False):
                    self._read_for_all(request, deadline)
                elif lock is None:  # once it can be woken, it must look again whether the other one has just left
                    lock = _held_lock()
                    request.waiting.append(lock)
                    self._waiting[lock] = request
                else:
                    # More would be an `OverflowError`.
                    lock.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        finally:
            if lock is not None:
                del self._waiting[lock]
                request.waiting.remove(lock)
                self._wake_next()  # it may have been chosen when it gave up
        return request.done

    def _read_for_all(self, request: RemoteRequest, deadline: float) -> None:
        """This thread, which has the lock `_reading`, hands on answers until its own has come, or the deadline has."""
        try:
            while not request.done and self._readable(deadline - time.monotonic()):
                self._receive()
        finally:
            self._reading.release()
            # After the release: who is woken must find it free.
            self._wake_next()

    def read_to_its_end(self) -> None:
        """This thread reads for all that ask, until the host is gone."""
        with self._reading:
            while not self.broken:
                if self._readable(None):
                    self._receive()

    @property
    def unanswered(self) -> int:
        """How many requests have no answer yet."""
        return len(self._requests)

    def leave_to_background(self, request: RemoteRequest) -> None:
        """No thread waits for the answer to a request from now on."""
        with self._counting:
            if request.unattended or request.number not in self._requests:
                return
            request.unattended = True
            self._unattended += 1
            if self._wanted is None:
                self._wanted = _held_lock()
                threading.Thread(target=self._read_unattended, args=(self._wanted,), name="rlinf-read", daemon=True).start()
            _release(self._wanted)

    def count(self, name: Hashable, *, puts: int = 0, gets: int = 0) -> None:
        """Items went into a queue, or came out of it."""
        self._channels.count(name, self._host, puts=puts, gets=gets)

    def gone(self, name: Hashable) -> str:
        """Why the host is gone; of a queue of a channel, what is known of its items."""
        return self._channels.loss(name, self._host) or f"{label(self._host)}, which hosts it, is {self.broken or 'gone'}"

    def _send(self, header: tuple[Any, ...], blobs: Sequence[Blob], name: Any, wait: Wait) -> None:
        """Sends one frame, after what is to be said before it."""
        ended = self._channels.ended
        refused = ""
        try:
            with self._sending:
                self._flush()
                # Looked at under the lock: an end that comes later waits until the host has read what is sent before.
                if ended and header[0] == "post" and name[0] in ended:
                    refused = ended[name[0]]
                else:
                    send_frame(self._sock, header, blobs)
        # A part of the frame may have gone, after which no other frame can follow.
        except BlockingIOError as error:
            self._break(error)
            raise wait.expired(self.timeout_s, "Its host does not read.") from error
        except OSError as error:
            self._break(error)
            raise wait.closed(self.gone(name)) from error
        finally:
            self._sweep()
        if refused:
            raise wait.closed(refused)

    def _sweep(self) -> None:
        """Says what is left, unless another thread, or this one, is about to."""
        while self._notices and self._sending.acquire(blocking=False):
            try:
                self._flush()
            except OSError:
                self._notices.clear()
            finally:
                self._sending.release()

    def _flush(self) -> None:
        while self._notices:
            send_frame(self._sock, self._notices.popleft())

    def _readable(self, seconds: float | None) -> bool:
        if self._reader.ahead:
            return True
        return bool(self._poll.poll(None if seconds is None else math.ceil(max(seconds, 0.0) * 1000)))

    def _receive(self) -> None:
        """Hands on one answer."""
        try:
            (number, problem, value), blobs = self._reader.read()
        except (OSError, EOFError) as error:
            self._break(error)
            return
        with self._counting:
            request = self._requests.pop(number)
            self._unattended -= request.unattended
        if request.kind == "put" and problem is None:
            self.count(request.name, puts=1)
        request.end(problem, value, blobs)

    def _wake_next(self) -> None:
        """One of the threads that wait is to read from now on."""
        for lock, request in list(self._waiting.items()):
            if not request.done:
                _release(lock)
                return

    def _read_unattended(self, wanted: threading.Lock) -> None:
        while not self.broken:
            wanted.acquire()
            # Whoever reads now does so for all, also for those requests.
            with self._reading:
                while self._unattended and not self.broken:
                    if self._readable(None):
                        self._receive()
            self._wake_next()

    def _break(self, error: BaseException) -> None:
        """Nothing more comes: every request has failed. Those that are sent later fail as they are sent."""
        cut = isinstance(error, OSError) and error.errno == errno.ETIMEDOUT  # what the kernel says of a network that gave up
        self.broken = self.broken or ("cut off" if cut else "gone")
        with contextlib.suppress(OSError):
            # Not closed: a thread may be reading it, and its descriptor would go to the next file that is opened.
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._counting:
            requests, self._unattended = list(self._requests.values()), 0
            self._requests.clear()
        for request in requests:
            request.end((GONE, ""))
        if self._wanted is not None:
            _release(self._wanted)


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _release(lock: threading.Lock) -> None:
    with contextlib.suppress(RuntimeError):  # it was released already
        lock.release()
