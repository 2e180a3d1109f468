"""`Connections`: where the other processes are, and this process's connection to each of them.

`ControlConnections` are the driver's own, one to each process: so both learn at once when the other ends. They are apart from those
that carry items, so that a large item keeps no question waiting, and silence means what it says.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlinf.core.errors import RLinfError
from rlinf.scheduler.transport.channel_registry import KnownChannels
from rlinf.scheduler.transport.encoding import decode, encode
from rlinf.scheduler.transport.routes import Reach
from rlinf.scheduler.transport.sockets.connection import Connection, RemoteRequest
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo, connect
from rlinf.scheduler.transport.sockets.wire import limit_socket
from rlinf.scheduler.transport.transport import DRIVER, label
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.transport.work import complete


class Connections:
    """This process's connections to other hosts.

    Args:
        run_info: what the processes of the run share.
        me: this process's address.
        node: where this process is.
        channels: what this process knows of channels.
    """

    def __init__(self, run_info: RunInfo, me: str, node: str, channels: KnownChannels) -> None:
        self.timeout_s = run_info.timeout_s
        self._run_info = run_info
        self._me = me
        self._node = node
        self._channels = channels
        self._places: dict[str, Location] = {DRIVER: run_info.driver}
        self._left: dict[str, Location] = {}
        """Where hosts were that did not answer there."""
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
        # A lock for each host, so that one that does not come keeps nobody waiting for another.
        with self._opening.setdefault(host, threading.Lock()):
            found = self._open.get(host)
            if found is None or found.broken:
                sock = self.connect(host, "requests", wait)
                limit_socket(sock, self.timeout_s)
                found = self._open[host] = Connection(sock, host, self.timeout_s, self._channels)
        return found

    def ask(self, host: str, kind: str, *question: Any, wait: Wait) -> Any:
        """The answer of a host to a question, which it gives at the latest at the deadline.

        Args:
            host: whom.
            kind: which service of the host answers.
            question: its arguments.
            wait: who waits for what.
        """
        request = self.to(host, wait).start("ask", kind, (), encode(question), wait)
        (answer,) = complete(request, wait)
        return decode(answer)

    def ask_all(self, hosts: Sequence[str], kind: str, *question: Any, wait: Wait) -> None:
        """Asks hosts something all at once; one that is gone, or does not answer in time, is not waited for."""
        asked: dict[str, Connection] = {}
        for host in hosts:
            with contextlib.suppress(RLinfError):
                asked[host] = self.to(host, wait)
        _answers(asked, kind, question, wait.seconds(self.timeout_s))

    def tell(self, host: str, kind: str, *detail: Any, wait: Wait) -> None:
        """Sends what needs no answer."""
        self.to(host, wait).tell(kind, encode(detail), wait)

    def await_arrival(self, hosts: Sequence[str], seconds: float) -> None:
        """Returns when all that was sent to some hosts before has been read there, or they are gone, or the time is over."""
        # Frames are read in their order: the answer says that all before it has arrived.
        _answers({host: self._open[host] for host in hosts if host in self._open}, "arrived", (), seconds)

    def reach(self, host: str, wait: Wait) -> Reach:
        """Where a host is; waits for one that has not come yet."""
        if host == self._me:
            return "process"
        # On a single node nobody need be asked.
        near = not self._run_info.networked or self._place(host, wait).node == self._node
        return "node" if near else "network"

    def connect(self, host: str, kind: str, wait: Wait, extra: Any = None) -> socket.socket:
        """A new connection of a kind; raises as `to`."""
        place, seconds = self._place(host, wait), wait.seconds(self.timeout_s)
        try:
            return connect(place, self._node, self._run_info.authkey, (kind, self._me, os.getpid(), extra), seconds)
        except BlockingIOError as error:
            raise wait.expired(seconds, f"{label(host)} does not answer") from error
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
        self._places[host] = self.ask(DRIVER, "again", host, self._left.get(host), wait.timeout, wait=wait)

    def _leave(self, host: str) -> None:
        # The driver's place is kept: nobody else could be asked for it.
        place = None if host == DRIVER else self._places.pop(host, None)
        if place is not None:
            self._left[host] = place

    def _place(self, host: str, wait: Wait) -> Location:
        place = self._places.get(host)
        if place is None:
            place = self._places[host] = self.ask(DRIVER, "where", host, wait.timeout, wait=wait)
        return place

    def _forget(self) -> None:
        """A new process, or one that was forked off: the connections of its parent are not its own."""
        self._pid = os.getpid()
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._channels.after_fork()


MOST_UNANSWERED = 8
"""More questions than these would fill the connection to a process that is stopped, and block who asks."""


class ControlConnections:
    """The driver's control connections. A process answers over its end as it does over any connection.

    Args:
        timeout_s: the default deadline of a wait.
        channels: what the driver knows of channels.
        on_lost: called with the address, the process id and the place of a process whose connection broke.
    """

    def __init__(self, timeout_s: float, channels: KnownChannels, on_lost: Callable[[str, int, Location], None]) -> None:
        self._timeout_s = timeout_s
        self._channels = channels
        self._on_lost = on_lost
        self._open: dict[str, tuple[Connection, int]] = {}
        """With the process ids."""

    def handle(self, sock: socket.socket, peer: str, pid: int, place: Location) -> None:
        """Runs in the thread of one connection until it breaks."""
        connection = Connection(sock, peer, self._timeout_s, self._channels)
        opened = self._open[peer] = connection, pid
        with contextlib.suppress(RLinfError):  # it may be gone already
            connection.tell("control ready", encode(()), Wait(DRIVER, f"control connection of {label(peer)}", "delivery"))
        connection.read_to_its_end()
        # Its successor may have come before its connection broke.
        if self._open.get(peer) is opened:
            del self._open[peer]
        self._on_lost(peer, pid, place)

    def pids(self) -> dict[str, int]:
        """The processes that are tied to the driver: address → process id."""
        return {host: pid for host, (_, pid) in list(self._open.items())}

    def tell(self, kind: str, *detail: Any) -> None:
        """Sends every process what needs no answer."""
        for host, (connection, _) in list(self._open.items()):
            with contextlib.suppress(RLinfError):
                connection.tell(kind, encode(detail), Wait(DRIVER, f"'{kind}' to {label(host)}", "delivery"))

    def ask(self, kind: str, *question: Any, hosts: Sequence[str] | None = None, timeout: float) -> dict[str, Any]:
        """The answers of the processes that give one in time, by address. One that has left several open is no longer asked."""
        asked = {host: connection for host, (connection, _) in list(self._open.items()) if hosts is None or host in hosts}
        answering = {host: connection for host, connection in asked.items() if connection.unanswered < MOST_UNANSWERED}
        return _answers(answering, kind, question, timeout)


def _answers(connections: Mapping[str, Connection], kind: str, question: tuple[Any, ...], seconds: float) -> dict[str, Any]:
    """What those say that answer a question in time, by their addresses. All are asked at once."""
    deadline = time.monotonic() + seconds
    asked: dict[str, RemoteRequest] = {}
    for host, connection in connections.items():
        with contextlib.suppress(RLinfError):
            wait = Wait(label(host), f"'{kind}'", "it to arrive")
            asked[host] = connection.start("ask", kind, (), encode(question), wait)
    answers: dict[str, Any] = {}
    for host, request in asked.items():
        if connections[host].read_until(request, deadline - time.monotonic()) and request.problem is None:
            answers[host] = decode(request.blobs)
    return answers
