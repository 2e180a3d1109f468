"""Transfers of items, recorded: a post and a lock service around those of a process.

Every item carries a stamp as its last blob: its number, when it was put, and its weight. So its put and its get are known as a
pair, and the getter knows how long it waited for the item and how long the item took to arrive.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

from rlinf.core.errors import ChannelEmpty, ChannelFull
from rlinf.scheduler.trace.recorder import Recorder
from rlinf.scheduler.trace.spans import Kind
from rlinf.scheduler.transport.channels import ChannelList
from rlinf.scheduler.transport.encoding import Blob, Blobs, Buffer
from rlinf.scheduler.transport.locks import Claim, LockService
from rlinf.scheduler.transport.pending import Pending
from rlinf.scheduler.transport.routes import Routes, route_of, size_of
from rlinf.scheduler.transport.transport import OPEN_TRANSPORTS, Transport, label
from rlinf.scheduler.transport.waiting import Wait

R = TypeVar("R")
_STAMP = struct.Struct("<Qqd")
KEY_CHARACTERS = 64
"""As much of a key is written; nothing of an item is."""


def traced_transport(transport: Transport, recorder: Recorder | None) -> Transport:
    """The post that a process uses: itself, or one around it that records, also for channels that arrive in messages."""
    if recorder is None:
        return transport
    OPEN_TRANSPORTS[transport.run] = around = TracedTransport(transport, recorder)
    return around


def traced_locks(service: LockService, recorder: Recorder | None) -> LockService:
    """The lock service that a worker uses: itself, or one around it that records."""
    return service if recorder is None else TracedLocks(service, recorder)


class TracedTransport:
    """A `Transport` that records each transfer."""

    def __init__(self, transport: Transport, recorder: Recorder) -> None:
        self._transport = transport
        self._recorder = recorder

    @property
    def run(self) -> str:
        """See `Transport`."""
        return self._transport.run

    def who(self) -> str:
        """See `Transport`."""
        return self._transport.who()

    @property
    def routes(self) -> Routes:
        """See `Transport`."""
        return self._transport.routes

    def in_worker(self) -> bool:
        """See `Transport`."""
        return self._transport.in_worker()

    @property
    def asks_driver(self) -> bool:
        """See `Transport`."""
        return self._transport.asks_driver

    def ask_driver(self, question: tuple[Any, ...], content: Sequence[Blob], wait: Wait) -> tuple[Any, list[Blob]]:
        """See `Transport`; not recorded."""
        return self._transport.ask_driver(question, content, wait)

    @property
    def channels(self) -> ChannelList:
        """See `Transport`; not recorded."""
        return self._transport.channels

    def put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False) -> None:
        """See `Transport`. Time for room in a bounded queue is waited for; sending is work."""
        recorder = self._recorder
        kind, name, key = _describe(queue, sends=True)
        number, start = recorder.number(), time.monotonic_ns()
        try:
            blobs, route = self._transport.routes.staged(host, blobs, wait)
            self._transport.put(host, queue, weight, [*blobs, _STAMP.pack(number, start, weight)], maxsize, wait, now=now)
        except ChannelFull:
            raise
        except BaseException:
            recorder.record(kind, wait.who, name, key, start, waited=time.monotonic_ns() - start, failed=True)
            raise
        waited = time.monotonic_ns() - start if maxsize else 0
        recorder.record(kind, wait.who, name, key, start, waited=waited, sizes=(1, size_of(blobs)), ids=(number,), route=route)

    def get(self, host: str, queue: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> list[Blobs]:
        """See `Transport`. It waits until what it takes was put; the rest is work."""
        start = time.monotonic_ns()
        try:
            items = self._transport.get(host, queue, target, wait, now=now)
        except ChannelEmpty:
            raise
        except BaseException:
            kind, name, key = _describe(queue, sends=False)
            self._recorder.record(kind, wait.who, name, key, start, waited=time.monotonic_ns() - start, failed=True)
            raise
        self._got(items, host, queue, target, wait, start)
        return items

    def start_put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait) -> Pending[None]:
        """See `Transport`. It is recorded when it has found room."""
        recorder = self._recorder
        kind, name, key = _describe(queue, sends=True)
        number, start = recorder.number(), time.monotonic_ns()
        blobs, route = self._transport.routes.staged(host, blobs, wait)
        work = self._transport.start_put(host, queue, weight, [*blobs, _STAMP.pack(number, start, weight)], maxsize, wait)
        size = size_of(blobs)

        def done() -> None:
            waited = time.monotonic_ns() - start if maxsize else 0
            recorder.record(kind, wait.who, name, key, start, waited=waited, sizes=(1, size), ids=(number,), route=route)

        work.then(done)
        return work

    def start_get(
        self, host: str, queue: Hashable, target: int | None, wait: Wait, result: Callable[[list[Blobs]], R]
    ) -> Pending[R]:
        """See `Transport`. It is recorded when its result is asked for."""
        start = time.monotonic_ns()

        def got(items: list[Blobs]) -> R:
            self._got(items, host, queue, target, wait, start)
            return result(items)

        return self._transport.start_get(host, queue, target, wait, got)

    def size(self, host: str, queue: Hashable, wait: Wait) -> int:
        """See `Transport`; not recorded."""
        return self._transport.size(host, queue, wait)

    def _got(self, items: list[Blobs], host: str, queue: Hashable, target: int | None, wait: Wait, start: int) -> None:
        """Records what came, and takes the stamps off it."""
        kind, name, key = _describe(queue, sends=False)
        waited = time.monotonic_ns() - start
        stamps = [_STAMP.unpack(cast("Buffer", item.pop())) for item in items]
        # A batch below its target was ended by an item that it does not have, so that all of the time is waiting.
        if target is None or sum(weight for _, _, weight in stamps) >= target:
            waited = min(waited, max(0, stamps[-1][1] - start))
        size = sum(map(size_of, items))
        ids = [number for number, _, _ in stamps]
        route = route_of([blob for item in items for blob in item], self._transport.routes.reach(host, wait))
        self._recorder.record(kind, wait.who, name, key, start, waited=waited, sizes=(len(items), size), ids=ids, route=route)


class TracedLocks:
    """A `LockService` that records each wait for devices."""

    def __init__(self, service: LockService, recorder: Recorder) -> None:
        self._service = service
        self._recorder = recorder

    def acquire(self, claim: Claim, wait: Wait) -> None:
        """See `LockService`."""
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
    """Kind, name and key of a transfer: queues of channels are pairs, those of messages have four parts."""
    parts = cast("tuple[Hashable, ...]", queue)
    if len(parts) == 2:
        return "put" if sends else "get", str(parts[0]), repr(parts[1])[:KEY_CHARACTERS]
    _, to, sender, tag = cast("tuple[str, str, str, str]", parts)
    return ("send", tag, label(to)) if sends else ("recv", tag, label(sender))
