"""Named first-in first-out queues of encoded items, hosted by one process.

A put or a get is a request: it is done at once, or it waits its turn in the queue until another request makes way. Nobody's thread
waits here unless it wants to, so that a host serves any number of waiting peers, and a peer that is gone leaves no trace.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeAlias, cast

from rlinf.core.errors import DeadlineExceeded
from rlinf.scheduler.transport.encoding import Blobs
from rlinf.scheduler.transport.transport import channel_of, label
from rlinf.scheduler.transport.waits import Monitor, Use, Uses, Wait
from rlinf.scheduler.transport.work import Problem, failure

Entry: TypeAlias = tuple[int, int, Blobs]
"""Number in order of arrival, weight and content."""


class Request:
    """A put or a get that is done, or waits its turn. Satisfies `Operation` once `Queues.start` has begun it.

    Args:
        name: which queue.
        peer: the address of the process that asks.
        now: fail instead of waiting.
    """

    __slots__ = ("callbacks", "done", "name", "now", "peer", "problem", "queues")

    def __init__(self, name: Hashable, peer: str, *, now: bool = False) -> None:
        self.name = name
        self.peer = peer
        self.now = now
        self.done = False
        self.problem: Problem | None = None
        self.callbacks: list[Callable[[], None]] = []
        self.queues: Queues

    @property
    def monitor(self) -> Monitor:
        return self.queues.monitor()

    def detach(self) -> None:
        """See `Operation`; whoever makes way for it ends it."""

    def when_done(self, callback: Callable[[], None]) -> None:
        with self.queues.lock:
            if not self.done:
                self.callbacks.append(callback)
                return
        callback()

    def wait(self, wait: Wait) -> None:
        monitor = self.monitor

        def wake() -> None:
            with monitor:
                monitor.changed()

        self.when_done(wake)
        try:
            with monitor:
                monitor.wait_until(lambda: self.done, wait)
        finally:
            if not self.done:
                with self.queues.lock, contextlib.suppress(ValueError):
                    self.callbacks.remove(wake)  # it may outlive this wait

    def take(self, wait: Wait) -> list[Blobs]:
        if self.problem is not None:
            raise failure(self.problem, wait)
        return []

    def expire(self, error: DeadlineExceeded) -> None:
        if self.cancel():
            raise error.because(self.problem[1] if self.problem else "") from None

    def cancel(self) -> bool:
        return self.queues.cancel(self)

    def abandon(self) -> None:
        """See `Operation`; a put goes on."""


class Put(Request):
    """Appends an item, its weight and content, once fewer than `maxsize` are there; 0 for any number."""

    __slots__ = ("item", "maxsize")

    def __init__(self, name: Hashable, peer: str, item: tuple[int, Blobs], maxsize: int, *, now: bool = False) -> None:
        super().__init__(name, peer, now=now)
        self.item = item
        self.maxsize = maxsize


class Get(Request):
    """Takes the oldest item (`target` None), or the oldest ones whose weights reach `target`."""

    __slots__ = ("entries", "holds", "target")

    def __init__(self, name: Hashable, peer: str, target: int | None, *, now: bool = False) -> None:
        super().__init__(name, peer, now=now)
        self.target = target
        self.entries: list[Entry] = []
        self.holds = False
        """The entries may come back, until `Queues.resolve` says that they have arrived."""

    def take(self, wait: Wait) -> list[Blobs]:
        super().take(wait)
        items = [blobs for _, _, blobs in self.entries]
        self.queues.resolve(self, back=False)
        return items

    def cancel(self) -> bool:
        if not super().cancel():
            if self.problem is not None:
                return False
            self.queues.resolve(self, back=True)
        return True

    def abandon(self) -> None:
        self.queues.abandon(self)


class _Queue:
    """What is in a queue, in order of arrival, and what waits for it."""

    __slots__ = ("entries", "getters", "maxsize", "out", "putters", "weight")

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.maxsize = 0
        self.weight = 0
        """Of all entries."""
        self.getters: list[Get] = []
        self.putters: deque[Put] = deque()
        self.out: dict[str, int] = {}
        """How many gets of each peer hold items that may come back."""

    def append(self, entry: Entry) -> None:
        """An entry arrives."""
        self.entries.append(entry)
        self.weight += entry[1]

    def insert(self, entry: Entry) -> None:
        """An entry comes back to its place; those before it are few, as they came back, too."""
        at = 0
        for other in self.entries:
            if other[0] > entry[0]:
                break
            at += 1
        self.entries.insert(at, entry)
        self.weight += entry[1]

    def pop(self, count: int) -> list[Entry]:
        """Takes the oldest entries."""
        taken = [self.entries.popleft() for _ in range(count)]
        for _, weight, _ in taken:
            self.weight -= weight
        return taken

    def ready(self, target: int | None, *, ended: bool) -> int:
        """How many items a get may take now; 0 if it must wait.

        A batch ends where its weights reach the target, or where the next item would exceed it; it has at least one item. A full
        bounded queue can't grow any more, nor can one that has ended, so that what is there is the batch.
        """
        if target is None:
            return 1 if self.entries else 0
        if self.weight >= target:
            total = 0
            for count, (_, weight, _) in enumerate(self.entries):
                if count and total + weight > target:
                    return count
                total += weight
                if total >= target:
                    return count + 1
        full = self.maxsize and len(self.entries) >= self.maxsize
        return len(self.entries) if full or ended else 0

    def vacant(self) -> bool:
        return not (self.entries or self.getters or self.putters or self.out)


class Queues:
    """All queues of one process. A queue exists while something is in it, or waits for it.

    Args:
        monitor: decides how a thread waits. One for each wait, so that the end of a request wakes nobody else.
    """

    def __init__(self, monitor: Callable[[], Monitor]) -> None:
        self.monitor = monitor
        self._queues: dict[Hashable, _Queue] = {}
        self.lock = threading.Lock()
        """Of all queues, requests and items."""
        self._ended: dict[Hashable, str] = {}
        self._closed = ""
        self._numbers = itertools.count()
        self._abandoned: deque[Get] = deque()
        self._uses = Uses()

    def size(self, name: Hashable) -> int:
        """How many items wait."""
        queue = self._queues.get(name)
        return 0 if queue is None else len(queue.entries)

    def use(self, name: Hashable) -> Use:
        """Who put into a queue and got from it last."""
        return self._uses.of(name, self.size(name))

    def start(self, request: Request) -> Request:
        """Begins a request, and returns it; its callbacks run, in this thread or another, when it is done."""
        done: list[Request] = []
        request.queues = self
        with self.lock:
            name = request.name
            queue = self._queues.get(name)
            if queue is None:
                queue = self._queues[name] = _Queue()
            if isinstance(request, Put):
                self._line_up_put(queue, request, done)
            else:
                queue.getters.append(cast("Get", request))
            # A put that was taken at once and that nobody waits for has nothing to settle.
            if queue.getters or not request.done:
                self._settle(name, queue, done)
            if request.now and not request.done:
                self._withdraw(request, ("empty" if isinstance(request, Get) else "full", ""))
                done.append(request)
        self._tell(done)
        return request

    def cancel(self, request: Request) -> bool:
        """Ends a request that waits, with the last use of its queue as the reason; False if it is done."""
        with self.lock:
            waits = not request.done
            if waits:
                _, last = self.use(request.name).describe(for_room=isinstance(request, Put))
                self._withdraw(request, ("cancelled", last))
        if waits:
            self._tell([request])
        return waits

    def resolve(self, get: Get, *, back: bool) -> None:
        """The items have arrived for good, or did not: then they are `back` where they were before."""
        done: list[Request] = []
        with self.lock:
            self._return(get, done, back=back)
        self._tell(done)

    def abandon(self, get: Get) -> None:
        """Nobody will ask for a get: it ends, or its items go back. Safe in a finaliser, whatever its thread was doing."""
        self._abandoned.append(get)
        self._sweep()

    def end(self, channel: str, reason: str) -> None:
        """Takes nothing more for a channel: its writers fail, its readers drain what is there and then come to the end."""
        with self.lock:
            self._ended.setdefault(channel, reason)
        self._settle_all()

    def close(self, reason: str) -> None:
        """Ends every request, now and later, with `ChannelClosed`; the first reason is kept."""
        with self.lock:
            self._closed = self._closed or reason
        self._settle_all()

    def _settle_all(self) -> None:
        done: list[Request] = []
        with self.lock:
            for name, queue in list(self._queues.items()):
                self._settle(name, queue, done)
        self._tell(done)

    def _line_up_put(self, queue: _Queue, put: Put, done: list[Request]) -> None:
        if put.maxsize:
            # A host learns the bound of a queue from the puts.
            queue.maxsize = put.maxsize
        if put.maxsize or self._closed or (self._ended and channel_of(put.name) in self._ended):
            queue.putters.append(put)  # `_settle` lets it in, or fails it
        else:
            self._append(queue, put, done)

    def _append(self, queue: _Queue, put: Put, done: list[Request]) -> None:
        weight, blobs = put.item
        queue.append((next(self._numbers), weight, blobs))
        put.done = True
        done.append(put)

    def _settle(self, name: Hashable, queue: _Queue, done: list[Request]) -> None:
        """Does all that can be done at a queue now, oldest request first, and drops the queue if nothing is left."""
        if self._closed:
            _fail([*queue.getters, *queue.putters], ("closed", self._closed), done)
            queue.getters.clear()
            queue.putters.clear()
        ended = self._ended.get(channel_of(name)) if self._ended else None
        if ended is not None:
            _fail(queue.putters, ("closed", ended), done)
            queue.putters.clear()
        if queue.putters:
            self._admit(queue, done)
        # What a get takes makes room for a put, whose item may be what the next get waits for.
        while queue.entries and queue.getters and self._serve(queue, ended is not None, done):
            self._admit(queue, done)
        if ended is not None and not queue.entries:
            # What another peer has not acknowledged may come back, and would be for these.
            over = [get for get in queue.getters if all(peer == get.peer for peer in queue.out)]
            _fail(over, ("end", ended), done)
            queue.getters = [get for get in queue.getters if not get.done]
        if queue.vacant():
            self._queues.pop(name, None)

    def _serve(self, queue: _Queue, ended: bool, done: list[Request]) -> bool:
        """Gives items to the gets that can be served; whether there were any."""
        served = 0
        for get in queue.getters if queue.entries else ():
            count = queue.ready(get.target, ended=ended)
            # A batch that is not complete keeps nobody behind it waiting.
            if not count and not queue.entries:
                break
            get.entries += queue.pop(count)
            if count:
                served += 1
                get.done = True
                done.append(get)
                get.holds = True
                queue.out[get.peer] = queue.out.get(get.peer, 0) + 1
        if served == len(queue.getters):
            queue.getters.clear()
        elif served:
            queue.getters = [get for get in queue.getters if not get.done]
        return served > 0

    def _admit(self, queue: _Queue, done: list[Request]) -> None:
        """Lets puts in while there is room."""
        while queue.putters and len(queue.entries) < queue.maxsize:
            self._append(queue, queue.putters.popleft(), done)

    def _withdraw(self, request: Request, problem: Problem) -> None:
        queue = self._queues[request.name]
        line: Any = queue.getters if isinstance(request, Get) else queue.putters
        line.remove(request)
        request.problem, request.done = problem, True
        if queue.vacant():
            del self._queues[request.name]

    def _return(self, get: Get, done: list[Request], *, back: bool) -> None:
        queue = self._queues.setdefault(get.name, _Queue())
        if get.holds:
            get.holds = False
            queue.out[get.peer] -= 1
            if not queue.out[get.peer]:
                del queue.out[get.peer]
        if back:
            for entry in get.entries:
                queue.insert(entry)
        get.entries = []
        self._settle(get.name, queue, done)

    def _tell(self, done: Iterable[Request]) -> None:
        for request in done:
            if request.peer and request.problem is None:
                self._uses.note(request.name, label(request.peer), put=isinstance(request, Put))
            # Without the lock: a callback may start a request of its own.
            for callback in request.callbacks:
                callback()
        self._sweep()

    def _sweep(self) -> None:
        """Settles the gets that were abandoned, unless this thread, or another, is about to."""
        while self._abandoned and self.lock.acquire(blocking=False):
            done: list[Request] = []
            try:
                get = self._abandoned.popleft()
                if get.done:
                    self._return(get, done, back=True)
                else:
                    self._withdraw(get, ("cancelled", ""))
            except IndexError:  # another thread has taken the last one
                pass
            finally:
                self.lock.release()
            self._tell(done)


def _fail(requests: Iterable[Request], problem: Problem, done: list[Request]) -> None:
    for request in requests:
        request.problem, request.done = problem, True
        done.append(request)
