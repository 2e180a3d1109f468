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
from typing import Any, cast

from rlinf.core.errors import DeadlineExceeded
from rlinf.scheduler.transport.encoding import Blobs
from rlinf.scheduler.transport.items import Entry, Items
from rlinf.scheduler.transport.transport import channel_of, label
from rlinf.scheduler.transport.waits import Monitor, Use, Uses, Wait
from rlinf.scheduler.transport.work import Problem, failure

Item = tuple[int, Blobs]
"""Weight and content."""


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
        self.queues.when_done(self, callback)

    def wait(self, wait: Wait) -> None:
        self.queues.await_end(self, wait)

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
    """Appends an item once fewer than `maxsize` are there; 0 for any number."""

    __slots__ = ("item", "maxsize")

    def __init__(self, name: Hashable, peer: str, item: Item, maxsize: int, *, now: bool = False) -> None:
        super().__init__(name, peer, now=now)
        self.item = item
        self.maxsize = maxsize


class Get(Request):
    """Takes the oldest item (`target` None), or the oldest ones whose weights reach `target`.

    Args:
        name: which queue.
        peer: the address of the process that asks.
        target: how much.
        now: fail instead of waiting.
        holds: the items may come back, until `Queues.took` says that they have arrived.
    """

    __slots__ = ("entries", "holds", "target")

    def __init__(self, name: Hashable, peer: str, target: int | None, *, now: bool = False, holds: bool = False) -> None:
        super().__init__(name, peer, now=now)
        self.target = target
        self.holds = holds
        self.entries: list[Entry] = []

    def take(self, wait: Wait) -> list[Blobs]:
        super().take(wait)
        items = [blobs for _, _, blobs in self.entries]
        if self.holds:
            self.queues.took(self)
        return items

    def cancel(self) -> bool:
        if not super().cancel():
            if self.problem is not None:
                return False
            self.queues.give_back(self)
        return True

    def abandon(self) -> None:
        self.queues.abandon(self)


class _Queue(Items):
    __slots__ = ("getters", "out", "putters")

    def __init__(self) -> None:
        super().__init__()
        self.getters: list[Get] = []
        self.putters: deque[Put] = deque()
        self.out: dict[str, int] = {}
        """How many gets of each peer hold items that may come back."""

    def vacant(self) -> bool:
        return not (self.entries or self.getters or self.putters or self.out)


class Queues:
    """All queues of one process. A queue exists while something is in it, or waits for it.

    Args:
        monitor: makes the monitor that decides how a thread waits for a request.
    """

    def __init__(self, monitor: Callable[[], Monitor]) -> None:
        self._make_monitor = monitor
        # A monitor for each thread, so that the end of a request wakes only its own thread.
        self._mine = threading.local()
        self._queues: dict[Hashable, _Queue] = {}
        self._lock = threading.Lock()
        self._ended: dict[Hashable, str] = {}
        self._closed = ""
        self._numbers = itertools.count()
        self._abandoned: deque[Get] = deque()
        self._uses = Uses()

    def monitor(self) -> Monitor:
        """That of this thread."""
        monitor = self._mine.__dict__.get("monitor")
        if monitor is None:
            monitor = self._mine.monitor = self._make_monitor()
        return monitor

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
        with self._lock:
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

    def await_end(self, request: Request, wait: Wait) -> None:
        """Returns when a request is done; at the deadline it goes on, and `DeadlineExceeded` is raised."""
        monitor = self.monitor()

        def wake() -> None:
            with monitor:
                monitor.changed()

        self.when_done(request, wake)
        try:
            with monitor:
                monitor.wait_until(lambda: request.done, wait)
        finally:
            if not request.done:
                with self._lock, contextlib.suppress(ValueError):
                    request.callbacks.remove(wake)  # it may outlive this wait

    def when_done(self, request: Request, callback: Callable[[], None]) -> None:
        """Calls back once when a request is done; at once if it is."""
        with self._lock:
            if not request.done:
                request.callbacks.append(callback)
                return
        callback()

    def cancel(self, request: Request) -> bool:
        """Ends a request that waits, with the last use of its queue as the reason; False if it is done."""
        with self._lock:
            waits = not request.done
            if waits:
                _, last = self.use(request.name).describe(for_room=isinstance(request, Put))
                self._withdraw(request, ("cancelled", last))
        if waits:
            self._tell([request])
        return waits

    def took(self, get: Get) -> None:
        """The items have arrived for good."""
        self._resolve(get, back=False)

    def give_back(self, get: Get) -> None:
        """The items did not arrive: they are where they were before."""
        self._resolve(get, back=True)

    def abandon(self, get: Get) -> None:
        """Nobody will ask for a get: it ends, or its items go back. Safe in a finaliser, whatever its thread was doing."""
        self._abandoned.append(get)
        self._sweep()

    def end(self, channel: str, reason: str) -> None:
        """Takes nothing more for a channel: its writers fail, its readers drain what is there and then come to the end."""
        done: list[Request] = []
        with self._lock:
            self._ended.setdefault(channel, reason)
            for name, queue in list(self._queues.items()):
                if channel_of(name) == channel:
                    self._settle(name, queue, done)
        self._tell(done)

    def close(self, reason: str) -> None:
        """Ends every request, now and later, with `ChannelClosed`; the first reason is kept."""
        done: list[Request] = []
        with self._lock:
            self._closed = self._closed or reason
            for name, queue in list(self._queues.items()):
                self._settle(name, queue, done)
        self._tell(done)

    def _line_up_put(self, queue: _Queue, put: Put, done: list[Request]) -> None:
        if put.maxsize:
            # A host learns the bound of a queue from the puts.
            queue.maxsize = put.maxsize
            queue.putters.append(put)
        elif self._closed or (self._ended and channel_of(put.name) in self._ended):
            # `_settle` fails it.
            queue.putters.append(put)
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
                if get.holds:
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

    def _resolve(self, get: Get, *, back: bool) -> None:
        done: list[Request] = []
        with self._lock:
            self._return(get, done, back=back)
        self._tell(done)

    def _return(self, get: Get, done: list[Request], *, back: bool) -> None:
        queue = self._queues.setdefault(get.name, _Queue())
        if get.holds and get.problem is None:
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
        while self._abandoned and self._lock.acquire(blocking=False):
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
                self._lock.release()
            self._tell(done)


def _fail(requests: Iterable[Request], problem: Problem, done: list[Request]) -> None:
    for request in requests:
        request.problem, request.done = problem, True
        done.append(request)
