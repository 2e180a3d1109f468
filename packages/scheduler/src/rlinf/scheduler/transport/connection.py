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
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

from rlinf.core.errors import DeadlineExceeded, RLinfError
from rlinf.scheduler.transport import waits
from rlinf.scheduler.transport.encoding import Blob, Blobs
from rlinf.scheduler.transport.routes import Reach
from rlinf.scheduler.transport.sockets import Location, RunInfo, connect
from rlinf.scheduler.transport.transport import DRIVER, label
from rlinf.scheduler.transport.waits import Monitor, ThreadMonitor, Wait
from rlinf.scheduler.transport.wire import FrameReader, limit_socket, send_frame
from rlinf.scheduler.transport.work import Operation, failure

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
        for lock in list(self.waiting):
            _release(lock)
        for callback in callbacks:
            callback()

    def detach(self) -> None:
        """See `Operation`."""
        self._connection.leave_to_background(self)

    def when_done(self, callback: Callable[[], None]) -> None:
        """See `Operation`."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, wait: Wait) -> None:
        """See `Operation`."""
        self._connection.await_answer(self, wait)

    def take(self, wait: Wait) -> list[Blobs]:
        """See `Operation`."""
        if self.problem is not None:
            gone = self.problem[0] == GONE
            raise wait.closed(self._connection.gone(self.name)) if gone else failure(self.problem, wait)
        if self.kind != "get":
            return []
        self._connection.say("took", self, now=True)
        items: list[Blobs] = []
        at = 0
        for count in self.value:
            items.append(self.blobs[at : at + count])
            at += count
        self._connection.count(self.name, gets=len(items))
        return items

    def expire(self, error: DeadlineExceeded) -> None:
        """See `Operation`. A host puts back what crosses a cancellation before it reads this process's next request."""
        self._connection.say("cancel", self, now=True)
        if not self._connection.read_until(self, GRACE_S):
            self.detach()
            raise error
        if self.problem is None and self.kind == "get":
            raise error
        if self.problem is not None and self.problem[0] == "cancelled":
            raise error.because(self.problem[1]) from None

    def cancel(self) -> bool:
        """See `Operation`."""
        if self.done and (self.kind == "put" or self.problem is not None):
            return False
        self._connection.say("cancel", self, now=True)
        self.detach()
        if self.kind == "get":
            self.end(("cancelled", ""))
            return True
        return self._connection.read_until(self, GRACE_S) and self.problem is not None

    def abandon(self) -> None:
        """See `Operation`."""
        if self.kind == "get":
            self._connection.say("cancel", self)


class Done:
    """A put that was on its way when it was made, or that failed then. Satisfies `Operation`."""

    done = True
    monitor: Monitor = RemoteRequest.monitor

    def __init__(self, error: Exception | None = None) -> None:
        self.problem = None if error is None else ("closed", str(error))
        self._error = error

    def detach(self) -> None:
        """See `Operation`."""

    def when_done(self, callback: Callable[[], None]) -> None:
        """See `Operation`."""
        callback()

    def wait(self, wait: Wait) -> None:
        """See `Operation`."""

    def take(self, wait: Wait) -> list[Blobs]:
        """See `Operation`."""
        if self._error is not None:
            raise self._error
        return []

    def expire(self, error: DeadlineExceeded) -> None:
        """See `Operation`."""

    def cancel(self) -> bool:
        """See `Operation`."""
        return False

    def abandon(self) -> None:
        """See `Operation`."""


SENT: Operation = Done()


class Connection:
    """One connection.

    Args:
        sock: the connection, which belongs to this object from now on.
        host: where it leads.
        connections: all connections of the process.
    """

    def __init__(self, sock: socket.socket, host: str, connections: Connections) -> None:
        self.broken = ""
        """Why it carries nothing any more."""
        self._sock = sock
        self._host = host
        self._connections = connections
        self._timeout_s = connections.timeout_s
        self._reader = FrameReader(sock)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._sending = threading.Lock()
        self._words: deque[tuple[str, int]] = deque()
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
        limit_socket(sock, self._timeout_s)

    def post(self, name: Any, weight: int, blobs: Sequence[Blob], wait: Wait) -> None:
        """Sends an item that needs no answer.

        Raises:
            ChannelClosed: the channel takes nothing more, or its host is gone.
            DeadlineExceeded: the host does not read.
        """
        ended = self._connections.ended
        with self._frames(name, wait):
            # Looked at under the lock: an end that comes later waits until the host has read what is sent before.
            if ended and name[0] in ended:
                raise wait.closed(ended[name[0]])
            send_frame(self._sock, ("post", name, weight), blobs)
        self.count(name, puts=1)

    def start(self, kind: str, name: Hashable, detail: tuple[Any, ...], blobs: Sequence[Blob], wait: Wait) -> RemoteRequest:
        """Sends a request; raises as `post`."""
        request = RemoteRequest(self, kind, name)
        with self._frames(name, wait):
            request.number = next(self._numbers)
            self._requests[request.number] = request
            send_frame(self._sock, (kind, request.number, name, *detail), blobs)
        return request

    def tell(self, kind: str, detail: tuple[Any, ...], wait: Wait) -> None:
        """Sends something that needs no answer; raises as `post`."""
        with self._frames(None, wait):
            send_frame(self._sock, ("tell", kind, detail))

    def say(self, word: str, request: RemoteRequest, *, now: bool = False) -> None:
        """Tells the host what becomes of a request.

        Args:
            word: `took`, or `cancel`: it is not to be done, and what it took goes back.
            request: which.
            now: not later, when the thread that is sending has finished; never in a finaliser, nor in the thread that reads.
        """
        self._words.append((word, request.number))
        if now:
            with contextlib.suppress(OSError), self._sending:
                self._flush()
        self._sweep()

    def await_answer(self, request: RemoteRequest, wait: Wait) -> None:
        """Returns when a request is answered; at the deadline it goes on, and `DeadlineExceeded` is raised."""
        seconds = self._timeout_s if wait.timeout is None else wait.timeout
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
                    try:
                        while not request.done and self._readable(deadline - time.monotonic()):
                            self._receive()
                    finally:
                        self._reading.release()
                        self._wake_next()
                elif lock is None:  # once it can be woken, it must look again whether the other one has just left
                    lock = _held_lock()
                    request.waiting.append(lock)
                    self._waiting[lock] = request
                else:
                    lock.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        finally:
            if lock is not None:
                del self._waiting[lock]
                request.waiting.remove(lock)
                self._wake_next()  # it may have been chosen when it gave up
        return request.done

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

    def count(self, name: Any, *, puts: int = 0, gets: int = 0) -> None:
        """Counts what went into a channel's queue, or came out of it."""
        if type(name) is tuple and len(queue := cast("tuple[Hashable, ...]", name)) == 2:
            self._connections.count(queue[0], self._host, puts, gets)

    def gone(self, name: Hashable) -> str:
        """Why the host is gone; of a queue of a channel, what is known of its items."""
        return self._connections.gone(self._host, name, self.broken or "gone")

    @contextlib.contextmanager
    def _frames(self, name: Hashable, wait: Wait) -> Any:
        """One frame is sent inside, after what is to be said before it."""
        try:
            with self._sending:
                self._flush()
                yield
        except RLinfError:  # some of them are an `OSError`, too
            raise
        except BlockingIOError as error:
            self._break(error)
            raise wait.expired(self._timeout_s, "Its host does not read.") from error
        except OSError as error:
            self._break(error)
            raise wait.closed(self.gone(name)) from error
        finally:
            self._sweep()

    def _sweep(self) -> None:
        """Says what is left, unless another thread, or this one, is about to."""
        while self._words and self._sending.acquire(blocking=False):
            try:
                self._flush()
            except OSError:
                self._words.clear()
            finally:
                self._sending.release()

    def _flush(self) -> None:
        while self._words:
            send_frame(self._sock, self._words.popleft())

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
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._counting:
            requests, self._unattended = list(self._requests.values()), 0
            self._requests.clear()
        for request in requests:
            request.end((GONE, ""))
        if self._wanted is not None:
            _release(self._wanted)


class Connections:
    """This process's connections to other hosts.

    Args:
        run_info: what the processes of the run share.
        me: this process's address.
        node: where this process is.
    """

    def __init__(self, run_info: RunInfo, me: str, node: str) -> None:
        self.timeout_s = run_info.timeout_s
        self.ended: dict[Hashable, str] = {}
        """Channels that take nothing more, and why."""
        self.fate: Callable[[str, str], str] | None = None
        """What is known of the items that a channel had at a host that is gone; given both names."""
        self._run_info = run_info
        self._me = me
        self._node = node
        self._places: dict[str, Location] = {DRIVER: run_info.driver}
        self._left: dict[str, Location] = {}
        """Where hosts were that did not answer there."""
        self._traffic: dict[tuple[Hashable, str], list[int]] = {}
        self._forget()

    def to(self, host: str, wait: Wait) -> Connection:
        """The connection to a host, which waits for one that has not come yet.

        Raises:
            DeadlineExceeded: it did not come.
            ChannelClosed: it is gone.
        """
        if os.getpid() != self._pid:
            self._forget()
        found = self._open.get(host)
        if found is not None and not found.broken:
            return found
        with self._opening.setdefault(host, threading.Lock()):
            found = self._open.get(host)
            if found is None or found.broken:
                found = self._open[host] = Connection(self.connect(host, "requests", wait), host, self)
        return found

    def ask(
        self, host: str, kind: str, *question: Any, wait: Wait, content: Sequence[Blob] = (), receipt: bool = False
    ) -> tuple[Any, list[Blob]]:
        """The answer of a host to a question, which it gives at the latest at the deadline.

        Args:
            host: whom.
            kind: which service of the host answers.
            question: its arguments.
            wait: who waits for what.
            content: what goes with it.
            receipt: say that the answer has come; without that, the host undoes what it did.
        """
        connection = self.to(host, wait)
        seconds = self.seconds(wait)
        request = connection.start("ask", kind, (question,), content, wait)
        answered = False
        doing = waits.begin(wait)
        try:
            answered = connection.read_until(request, seconds + GRACE_S)
        finally:
            waits.end(doing)
            if not answered:
                request.detach()
            if receipt or not answered:
                connection.say("took" if answered and request.problem is None else "cancel", request, now=True)
        if not answered:
            raise wait.expired(seconds)
        if request.problem is not None:
            how, why = request.problem
            if how == "error":
                raise why
            raise wait.expired(seconds, why) if how == "expired" else wait.closed(connection.gone(None) if how == GONE else why)
        return request.value, request.blobs

    def tell(self, host: str, kind: str, *detail: Any, wait: Wait) -> None:
        """Sends what needs no answer."""
        self.to(host, wait).tell(kind, detail, wait)

    def await_arrival(self, hosts: Sequence[str], wait: Wait, seconds: float) -> None:
        """Returns when all that was sent to some hosts before has been read there, or they are gone, or the time is over."""
        deadline = time.monotonic() + seconds
        asked: list[tuple[Connection, RemoteRequest]] = []
        for connection in [self._open[host] for host in hosts if host in self._open]:
            with contextlib.suppress(RLinfError):
                asked.append((connection, connection.start("ask", "arrived", ((),), (), wait)))
        for connection, request in asked:
            if not connection.read_until(request, deadline - time.monotonic()):
                request.detach()

    def seconds(self, wait: Wait) -> float:
        """How long a wait may take."""
        return self.timeout_s if wait.timeout is None else wait.timeout

    def reach(self, host: str, wait: Wait) -> Reach:
        """Where a host is; waits for one that has not come yet."""
        if host == self._me:
            return "process"
        near = not self._run_info.networked or self._place(host, wait).node == self._node
        return "node" if near else "network"

    def connect(self, host: str, kind: str, wait: Wait, extra: Any = None) -> socket.socket:
        """A new connection of a kind; raises as `to`."""
        place = self._place(host, wait)
        try:
            return connect(place, self._node, self._run_info.authkey, (kind, self._me, os.getpid(), extra), self.seconds(wait))
        except BlockingIOError as error:
            raise wait.expired(self.seconds(wait), f"{label(host)} does not answer") from error
        except (OSError, EOFError) as error:
            self._leave(host)
            reason = "its cluster was shut down" if self._run_info.over(self._node) else f"{label(host)} is gone"
            raise wait.closed(reason) from error

    def await_return(self, host: str, wait: Wait) -> None:
        """Waits until a host that is gone has come back, if its supervisor starts it again.

        Raises:
            ChannelClosed: it does not come back.
        """
        self._leave(host)
        self._places[host], _ = self.ask(DRIVER, "again", host, self._left.get(host), wait.timeout, wait=wait)

    def count(self, channel: Hashable, host: str, puts: int, gets: int) -> None:
        """Items went into a channel at a host, or came out of it."""
        with self._counting:
            counts = self._traffic.setdefault((channel, host), [0, 0])
            counts[0] += puts
            counts[1] += gets

    def traffic(self, channels: Sequence[str], host: str) -> list[tuple[int, int]]:
        """How many items this process has put into channels at a host, and how many it has got, for each."""
        with self._counting:
            found = [self._traffic.get((channel, host), (0, 0)) for channel in channels]
            return [(puts, gets) for puts, gets in found]

    def gone(self, host: str, name: Hashable, how: str) -> str:
        """Why a host is gone; of a queue of a channel, what is known of its items."""
        if host != DRIVER and self.fate is not None and isinstance(name, tuple):
            queue = cast("tuple[Hashable, ...]", name)
            if len(queue) == 2:
                with contextlib.suppress(RLinfError):
                    return self.fate(str(queue[0]), host)
        return f"{label(host)}, which hosts it, is {how}"

    def _leave(self, host: str) -> None:
        place = None if host == DRIVER else self._places.pop(host, None)
        if place is not None:
            self._left[host] = place

    def _place(self, host: str, wait: Wait) -> Location:
        place = self._places.get(host)
        if place is None:
            place, _ = self.ask(DRIVER, "where", host, wait.timeout, wait=wait)
            self._places[host] = place
        return place

    def _forget(self) -> None:
        """A new process, or one that was forked off: the connections of its parent are not its own."""
        self._pid = os.getpid()
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._counting = threading.Lock()


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _release(lock: threading.Lock) -> None:
    with contextlib.suppress(RuntimeError):  # it was released already
        lock.release()
