"""The user's side of queues that other processes host.

A thread that waits for an answer has a connection of its own to the host, and reads it itself: one round trip, and no other thread
takes part. All else takes the process's lane.
"""

from __future__ import annotations

import itertools
import math
import os
import select
import socket
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from rlinf.core.errors import DeadlineExceeded
from rlinf.scheduler.transport import activity
from rlinf.scheduler.transport.client import GRACE_S, Clients
from rlinf.scheduler.transport.encoding import Blob, Blobs
from rlinf.scheduler.transport.frames import FrameReader, limit_socket, send_frame
from rlinf.scheduler.transport.lanes import Errand, Lane, split
from rlinf.scheduler.transport.pending import Pending
from rlinf.scheduler.transport.queue_service import Sender
from rlinf.scheduler.transport.requests import Problem, failure
from rlinf.scheduler.transport.waiting import ThreadMonitor, Wait


class _Line:
    """One thread's connection to one host."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        limit_socket(sock, seconds)
        self.sock = sock
        self.reader = FrameReader(sock)
        self.number = 0
        self.after: tuple[int, int] = (0, 0)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def readable(self, seconds: float) -> bool:
        return bool(self._poll.poll(math.ceil(seconds * 1000)))

    def __del__(self) -> None:
        self.sock.close()


class QueueLines:
    """This process's access to the queues of others.

    Args:
        clients: makes connections.
        me: this process's address.
        timeout_s: the default deadline of a wait.
        gone: says why a host is gone, for a host and a queue.
    """

    def __init__(self, clients: Clients, me: str, timeout_s: float, gone: Callable[[str, Hashable], str]) -> None:
        self._clients = clients
        self._me = me
        self._timeout_s = timeout_s
        self._gone = gone
        self._numbers = itertools.count(1)
        self.ended: dict[Hashable, str] = {}
        """Channels that take nothing more, and why."""
        self._forget()

    def put(self, host: str, name: Hashable, item: tuple[int, Blobs], maxsize: int, wait: Wait, *, now: bool = False) -> None:
        """Appends an item; returns when it has found room, or, if there is always room, when it is on its way."""
        weight, blobs = item
        if not maxsize:
            self._lane(host, wait).transport(name, weight, blobs, wait)
        elif self._busy(host, "put", name):
            self._through_lane(self.start_put(host, name, item, maxsize, wait), wait)
        else:
            self._ask(host, "put", name, (weight, maxsize, now), blobs, wait)

    def get(self, host: str, name: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> list[Blobs]:
        """The oldest item, or those whose weights reach `target`."""
        if self._busy(host, "get", name) and not now:
            return self._through_lane(self.start_get(host, name, target, wait), wait)
        counts, blobs = self._ask(host, "get", name, (target, now), (), wait, abreast=now)
        return split(counts, blobs)

    def size(self, host: str, name: Hashable, wait: Wait) -> int:
        """How many items wait."""
        return self._ask(host, "size", name, (), (), wait, abreast=True)[0]

    def start_put(self, host: str, name: Hashable, item: tuple[int, Blobs], maxsize: int, wait: Wait) -> Errand:
        """Begins to append an item to a bounded queue."""
        weight, blobs = item
        return self._lane(host, wait).start("put", name, (weight, maxsize, False), blobs, wait)

    def start_get(self, host: str, name: Hashable, target: int | None, wait: Wait) -> Errand:
        """Begins a get."""
        return self._lane(host, wait).start("get", name, (target, False), (), wait)

    def await_return(self, host: str, wait: Wait) -> None:
        """See `Clients.await_return`."""
        self._clients.await_return(host, wait)

    def sent(self, host: str) -> dict[Sender, int]:
        """How many items were posted to a host on each lane."""
        with self._opening:
            lanes = [lane for of, lane in self._all if of == host]
        return {(self._me, os.getpid(), lane.number): lane.begun for lane in lanes if lane.begun}

    def _ask(
        self,
        host: str,
        kind: str,
        name: Hashable,
        detail: tuple[Any, ...],
        blobs: Sequence[Blob],
        wait: Wait,
        *,
        abreast: bool = False,
    ) -> tuple[Any, Blobs]:
        """One request and its answer; `abreast` of all items that this process has posted before."""
        line = self._line(host, wait)
        seconds = self._clients.seconds(wait)
        line.number += 1
        answered = False
        doing = activity.begin(wait)
        try:
            self._come_abreast(line, host, of_all=abreast)
            send_frame(line.sock, (kind, line.number, name, *detail), blobs)
            late = not line.readable(seconds)
            if late:
                send_frame(line.sock, ("cancel", line.number))
                if not line.readable(GRACE_S):
                    raise wait.expired(seconds)
            (_, problem, value), content = line.reader.read()
            if kind == "get" and problem is None:
                if late:
                    self._await_cancelled(line, name, wait, seconds)
                    problem = ("cancelled", "")
                else:
                    send_frame(line.sock, ("took", line.number))
            answered = True
        except DeadlineExceeded:
            raise
        except BlockingIOError as error:
            raise wait.expired(seconds) from error
        except (OSError, EOFError) as error:
            raise wait.closed(self._gone(host, name)) from error
        finally:
            activity.end(doing)
            if not answered:
                del self._mine.lines[host]
        if problem is not None:
            raise _failure(problem, wait, seconds)
        return value, content

    def _await_cancelled(self, line: _Line, name: Hashable, wait: Wait, seconds: float) -> None:
        """An answer crossed its cancellation: returns when the host has put the items back, lest the next get overtake them."""
        send_frame(line.sock, ("size", line.number, name))
        if not line.readable(GRACE_S):
            raise wait.expired(seconds)
        line.reader.read()

    def _come_abreast(self, line: _Line, host: str, *, of_all: bool) -> None:
        """Lets the host wait until it has read what this process gave up on its lane, or all that it said there."""
        lane = self._lanes.get(host)
        if lane is None:
            return
        after = (lane.number, lane.begun if of_all else lane.given_up)
        if after[1] and after > line.after:
            line.after = after
            send_frame(line.sock, ("after", (self._me, os.getpid(), lane.number), after[1]))

    def _through_lane(self, errand: Errand, wait: Wait) -> list[Blobs]:
        """Waits for an answer on the lane, behind those that this process waits for already."""
        work: Pending[list[Blobs]] = Pending(errand, wait, lambda items: items, ThreadMonitor(self._timeout_s))
        try:
            return work.wait()
        except BaseException:
            if not work.cancel() and errand.kind == "put" and errand.succeeded:
                return []
            raise

    def _busy(self, host: str, kind: str, name: Hashable) -> bool:
        lane = self._lanes.get(host)
        return lane is not None and bool(lane.pending) and (kind, name) in lane.pending

    def _line(self, host: str, wait: Wait) -> _Line:
        if os.getpid() != self._pid:
            self._forget()
        lines: dict[str, _Line] | None = self._mine.__dict__.get("lines")
        if lines is None:
            lines = self._mine.lines = {}
        if host not in lines:
            lines[host] = _Line(self._clients.connect(host, "items", wait, 0), self._timeout_s + GRACE_S)
        return lines[host]

    def _lane(self, host: str, wait: Wait) -> Lane:
        if os.getpid() != self._pid:
            self._forget()
        lane = self._lanes.get(host)
        if lane is not None and not lane.broken:
            return lane
        with self._opening:
            lane = self._lanes.get(host)
            if lane is None or lane.broken:
                number = next(self._numbers)
                sock = self._clients.connect(host, "items", wait, number)
                lane = Lane(sock, number, self._timeout_s, self.ended, lambda name: self._gone(host, name))
                self._lanes[host] = lane
                self._all.append((host, lane))
        return lane

    def _forget(self) -> None:
        """A new process, or one that was forked off, which has no connections of its own yet."""
        self._pid = os.getpid()
        self._mine = threading.local()
        self._lanes: dict[str, Lane] = {}
        self._all: list[tuple[str, Lane]] = []
        self._opening = threading.Lock()


def _failure(problem: Problem, wait: Wait, seconds: float) -> Exception:
    return wait.expired(seconds, problem[1]) if problem[0] == "cancelled" else failure(problem, wait)
