"""Transfers of items, recorded: a transport and a lock service around those of a process.

Every item carries a stamp as its last blob: its number, when it was put, its weight, and whose clock that was. So its put and its
get are known as a pair, and the getter knows how long it waited for the item and how long the item took to arrive.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Hashable
from typing import Any, cast

from rlinf.core.errors import ChannelEmpty, DeadlineExceeded
from rlinf.scheduler.trace.recorder import Recorder
from rlinf.scheduler.trace.spans import Kind
from rlinf.scheduler.transport.encoding import Blobs, Buffer
from rlinf.scheduler.transport.routes import route_of, size_of
from rlinf.scheduler.transport.transport import OPEN_TRANSPORTS, Transport, channel_of, label
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.transport.work import Operation, Problem
from rlinf.scheduler.workers.device_lock import Claim, LockService

_STAMP = struct.Struct("<QqdIq")
KEY_CHARACTERS = 64
"""As much of a key is written; nothing of an item is."""


def traced_transport(transport: Transport, recorder: Recorder | None) -> Transport:
    """The transport that a process uses: itself, or one around it that records, also for channels that arrive in messages."""
    if recorder is None:
        return transport
    OPEN_TRANSPORTS[transport.run] = around = TracedTransport(transport, recorder)
    return around


def traced_locks(service: LockService, recorder: Recorder | None) -> LockService:
    """The lock service that a worker uses: itself, or one around it that records."""
    return service if recorder is None else TracedLocks(service, recorder)


class TracedTransport(Transport):
    """A `Transport` that records each transfer."""

    def __init__(self, transport: Transport, recorder: Recorder) -> None:
        self._transport = transport
        self._recorder = recorder
        self.run = transport.run
        self.routes = transport.routes
        self.asks_driver = transport.asks_driver
        self.guard = lambda: transport.guard()  # the driver's is set later

    def who(self) -> str:
        return self._transport.who()

    def in_worker(self) -> bool:
        return self._transport.in_worker()

    def ask(self, kind: str, *question: Any, wait: Wait) -> Any:
        """See `Transport`; not recorded."""
        return self._transport.ask(kind, *question, wait=wait)

    def size(self, host: str, queue: Hashable, wait: Wait) -> int:
        """See `Transport`; not recorded."""
        return self._transport.size(host, queue, wait)

    def start_put(
        self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False
    ) -> Operation:
        """See `Transport`. Recorded when it has found room; time for room in a bounded queue is waited for, sending is work."""
        recorder, (kind, name, key) = self._recorder, _describe(queue, sends=True)
        number, start = recorder.number(), time.monotonic_ns()

        def failed() -> None:
            recorder.record(kind, wait.who, name, key, start, waited=time.monotonic_ns() - start, failed=True)

        try:
            blobs, route = self._transport.routes.staged(host, blobs, wait)
            stamped = [*blobs, _STAMP.pack(number, start, weight, *recorder.clock)]
            operation = self._transport.start_put(host, queue, weight, stamped, maxsize, wait, now=now)
        except BaseException:
            failed()
            raise
        size = size_of(blobs)

        def done() -> None:
            if operation.problem is None:
                waited = time.monotonic_ns() - start if maxsize else 0
                recorder.record(kind, wait.who, name, key, start, waited=waited, sizes=(1, size), ids=(number,), route=route)
            # No room is an answer to `put_nowait`, not a failure.
            elif operation.problem[0] != "full":
                failed()

        operation.when_done(done)
        return operation

    def start_get(self, host: str, queue: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> Operation:
        """See `Transport`. It is recorded when its result is asked for: it waits until what it takes was put; the rest is work."""
        start = time.monotonic_ns()
        operation = self._transport.start_get(host, queue, target, wait, now=now)
        return _TracedGet(operation, lambda items: self._got(items, host, queue, target, wait, start))

    def _got(self, items: list[Blobs] | None, host: str, queue: Hashable, target: int | None, wait: Wait, start: int) -> None:
        """Records what came, and takes the stamps off it; None if the get failed."""
        kind, name, key = _describe(queue, sends=False)
        waited = time.monotonic_ns() - start
        if items is None:
            self._recorder.record(kind, wait.who, name, key, start, waited=waited, failed=True)
            return
        stamps = [_STAMP.unpack(cast("Buffer", item.pop())) for item in items]
        # A batch below its target was ended by an item that it does not have, so that all of the time is waiting.
        if target is None or sum(weight for _, _, weight, _, _ in stamps) >= target:
            _, put, _, *clock = stamps[-1]
            waited = min(waited, max(0, put + self._shift(*clock) - start))
        size = sum(map(size_of, items))
        ids = [number for number, *_ in stamps]
        route = route_of([blob for item in items for blob in item], self._transport.routes.reach(host, wait))
        self._recorder.record(kind, wait.who, name, key, start, waited=waited, sizes=(len(items), size), ids=ids, route=route)

    def _shift(self, host: int, offset: int) -> int:
        """What must be added to a time by another clock; as `reading` does it."""
        mine, own = self._recorder.clock
        return 0 if host == mine else offset - own


class _TracedGet:
    """A get that tells what it took, or that it failed. Satisfies `Operation`."""

    def __init__(self, operation: Operation, got: Callable[[list[Blobs] | None], None]) -> None:
        self._operation = operation
        self._got = got
        self.monitor = operation.monitor
        self.detach = operation.detach
        self.when_done = operation.when_done
        self.wait = operation.wait
        self.cancel = operation.cancel
        self.abandon = operation.abandon

    @property
    def done(self) -> bool:
        return self._operation.done

    @property
    def problem(self) -> Problem | None:
        return self._operation.problem

    def take(self, wait: Wait) -> list[Blobs]:
        try:
            items = self._operation.take(wait)
        # No item is an answer to `get_nowait`, not a failure.
        except ChannelEmpty:
            raise
        except BaseException:
            self._got(None)
            raise
        self._got(items)
        return items

    def expire(self, error: DeadlineExceeded) -> None:
        try:
            self._operation.expire(error)
        except DeadlineExceeded:
            self._got(None)
            raise


class TracedLocks:
    """A `LockService` that records each wait for devices."""

    def __init__(self, service: LockService, recorder: Recorder) -> None:
        self._service = service
        self._recorder = recorder

    def acquire(self, claim: Claim, wait: Wait) -> None:
        start, failed = time.monotonic_ns(), True
        try:
            self._service.acquire(claim, wait)
            failed = False
        finally:
            self._recorder.record("lock", claim.owner, wait.place, "", start, waited=time.monotonic_ns() - start, failed=failed)

    def release(self, claim: Claim) -> None:
        """See `LockService`; not recorded."""
        self._service.release(claim)


def _describe(queue: Hashable, *, sends: bool) -> tuple[Kind, str, str]:
    """Kind, name and key of a transfer."""
    channel = channel_of(queue)
    if channel is not None:
        return "put" if sends else "get", channel, repr(cast("tuple[Hashable, ...]", queue)[1])[:KEY_CHARACTERS]
    _, to, sender, tag = cast("tuple[str, str, str, str]", queue)
    return ("send", tag, label(to)) if sends else ("recv", tag, label(sender))
