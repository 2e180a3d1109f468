"""`Lane`: a process's connection to a host for what needs no answer, and for answers that nobody waits for at once.

Items are posted in the order in which the process puts them, and asynchronous requests wait at the host without a thread for each.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from rlinf.scheduler.transport.encoding import Blob, Blobs
from rlinf.scheduler.transport.frames import FrameReader, limit_socket, send_frame
from rlinf.scheduler.transport.requests import Problem, failure
from rlinf.scheduler.transport.waiting import Wait

VERDICT_S = 10.0
"""How long a host may take to say whether a put was cancelled in time."""


class Errand:
    """A request under way to another process. Satisfies `Source`."""

    def __init__(self, lane: Lane, number: int, kind: str, name: Hashable) -> None:
        self.kind = kind
        self.name = name
        self.number = number
        self.given_up = False
        self._lane = lane
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._problem: Problem | None = None
        self._items: list[Blobs] = []

    @property
    def holds(self) -> bool:
        """The host gave items, and wants to know what became of them."""
        return self.kind == "get" and self.succeeded

    @property
    def succeeded(self) -> bool:
        """It is done, as it should be."""
        return self._done.is_set() and self._problem is None

    def answered(self, problem: Problem | None, items: list[Blobs]) -> None:
        """The host said how it ended."""
        self._problem, self._items = problem, items
        with self._lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def when_done(self, callback: Callable[[], None]) -> None:
        """See `Source`."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def take(self, wait: Wait) -> list[Blobs]:
        """See `Source`."""
        if self._problem is not None:
            raise failure(self._problem, wait)
        if self.kind == "get":
            self._lane.say("took", self, now=True)
        return self._items

    def cancel(self) -> bool:
        """See `Source`."""
        self.given_up = self.kind == "get"
        self._lane.say("cancel", self, now=True)
        return self.given_up or (self._done.wait(VERDICT_S) and self._problem is not None)

    def abandon(self) -> None:
        """See `Source`."""
        if self.kind == "get":
            self.given_up = True
            self._lane.say("cancel", self)


class Lane:
    """One connection.

    Args:
        sock: the connection, which is the lane's from now on.
        number: tells it from the process's others.
        timeout_s: how long the host may leave unread what is sent.
        ended: the channels that take nothing more, and why.
        gone: says why the host is gone, for a queue.
    """

    def __init__(
        self, sock: socket.socket, number: int, timeout_s: float, ended: dict[Hashable, str], gone: Callable[[Hashable], str]
    ) -> None:
        self.number = number
        self.begun = 0
        """How many items were posted and errands given up, or are about to be."""
        self.given_up = 0
        """How many there were when an errand was given up last."""
        self.broken = False
        self.pending: Counter[tuple[str, Hashable]] = Counter()
        """How many errands of each kind are under way for each queue."""
        self._sock = sock
        self._ended = ended
        self._gone = gone
        self._lock = threading.Lock()
        self._errands: dict[int, Errand] = {}
        self._words: deque[tuple[str, int]] = deque()
        self._reads = False
        self._last = 0
        self._counting = threading.Lock()
        limit_socket(sock, timeout_s, reads=False)

    def transport(self, name: Any, weight: int, blobs: Sequence[Blob], wait: Wait) -> None:
        """Sends an item that needs no answer.

        Raises:
            ChannelClosed: the channel takes nothing more, or its host is gone.
            DeadlineExceeded: the host does not read.
        """
        refused: list[str] = []

        def send() -> None:
            # Counted first: who ends the channel reads the count after setting `ended`, and so misses no item on its way.
            self.begun += 1
            if self._ended and name[0] in self._ended:
                refused.append(self._ended[name[0]])
                send_frame(self._sock, ("nothing",))
            else:
                send_frame(self._sock, ("post", name, weight), blobs)

        self._send(send, name, wait)
        if refused:
            raise wait.closed(refused[0])

    def start(self, kind: str, name: Hashable, detail: tuple[Any, ...], blobs: Sequence[Blob], wait: Wait) -> Errand:
        """Sends a request whose answer comes later; raises as `transport`."""
        made: list[Errand] = []

        def send() -> None:
            if not self._reads:
                self._reads = True
                threading.Thread(target=self._read, name="rlinf-lane", daemon=True).start()
            self._last += 1
            errand = self._errands[self._last] = Errand(self, self._last, kind, name)
            self._count(errand, 1)
            made.append(errand)
            send_frame(self._sock, (kind, self._last, name, *detail), blobs)

        self._send(send, name, wait)
        return made[0]

    def say(self, word: str, errand: Errand, *, now: bool = False) -> None:
        """Tells the host what becomes of an errand.

        Args:
            word: `took`, or `cancel`: it is not to be done, and what it took goes back.
            errand: which.
            now: not later, when whoever is sending has finished; never in a finaliser, nor in the thread that reads.
        """
        if errand.holds:
            self._errands.pop(errand.number, None)
        self._words.append((word, errand.number))
        if now:
            with contextlib.suppress(OSError), self._lock:
                self._flush()
        self._sweep()

    def _send(self, send: Callable[[], None], name: Hashable, wait: Wait) -> None:
        try:
            with self._lock:
                self._flush()
                send()
        except BlockingIOError as error:
            self._break()
            raise wait.expired(wait.timeout or 0.0, "Its host does not read.") from error
        except OSError as error:
            self._break()
            raise wait.closed(self._gone(name)) from error
        finally:
            self._sweep()

    def _sweep(self) -> None:
        """Sends the words that are left, unless another thread, or this one, is about to."""
        while self._words and self._lock.acquire(blocking=False):
            try:
                self._flush()
            except OSError:
                self._words.clear()
            finally:
                self._lock.release()

    def _flush(self) -> None:
        while self._words:
            word = self._words.popleft()
            if word[0] == "cancel":
                self.begun += 1
                self.given_up = self.begun
            send_frame(self._sock, word)

    def _read(self) -> None:
        reader = FrameReader(self._sock)
        try:
            with contextlib.suppress(OSError, EOFError):
                while True:
                    (number, problem, counts), blobs = reader.read()
                    self._answered(number, problem, counts, blobs)
        finally:
            self._break()
            for errand in list(self._errands.values()):
                if not errand.holds:
                    self._end(errand, ("closed", self._gone(errand.name)), [])

    def _answered(self, number: int, problem: Problem | None, counts: list[int] | None, blobs: Blobs) -> None:
        errand = self._errands[number]
        self._end(errand, problem, split(counts or [], blobs))
        if errand.given_up:
            self._errands.pop(number, None)

    def _end(self, errand: Errand, problem: Problem | None, items: list[Blobs]) -> None:
        if problem is not None or errand.kind == "put":
            self._errands.pop(errand.number, None)
        self._count(errand, -1)
        errand.answered(problem, items)

    def _count(self, errand: Errand, by: int) -> None:
        with self._counting:
            self.pending[errand.kind, errand.name] += by
            if not self.pending[errand.kind, errand.name]:
                del self.pending[errand.kind, errand.name]

    def _break(self) -> None:
        self.broken = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


def split(counts: Sequence[int], blobs: Blobs) -> list[Blobs]:
    """The blobs of each item."""
    items: list[Blobs] = []
    at = 0
    for count in counts:
        items.append(blobs[at : at + count])
        at += count
    return items
