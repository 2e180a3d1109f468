"""Requests to the message servers of other processes, over one connection for each thread and host."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from rlinf.scheduler.transport import activity
from rlinf.scheduler.transport.encoding import Blob
from rlinf.scheduler.transport.frames import FrameReader, send_frame
from rlinf.scheduler.transport.places import Location, RunInfo, connect
from rlinf.scheduler.transport.routes import Reach
from rlinf.scheduler.transport.transport import DRIVER, label
from rlinf.scheduler.transport.waiting import Wait

GRACE_S = 10.0
"""How long beyond its deadline a server may take to say so."""


class Clients:
    """This process's connections to other hosts.

    Args:
        meeting: where the processes of the run meet.
        me: this process's address.
        node: where this process is.
    """

    def __init__(self, run_info: RunInfo, me: str, node: str) -> None:
        self._run_info = run_info
        self._me = me
        self._node = node
        self._places: dict[str, Location] = {DRIVER: run_info.driver}
        self._left: dict[str, Location] = {}
        """Where hosts were that did not answer there."""
        self._local = threading.local()

    def tell(self, host: str, header: object, blobs: Sequence[Blob], wait: Wait) -> None:
        """Sends without an answer."""
        sock, _ = self._connection(host, wait)
        try:
            send_frame(sock, header, blobs)
        except OSError as error:
            self._drop(host)
            raise wait.closed(f"{label(host)}, which hosts it, is gone") from error

    def ask(self, host: str, header: object, blobs: Sequence[Blob], wait: Wait, *, receipt: bool = False) -> tuple[Any, list[Blob]]:
        """Sends and waits for the answer, which the host gives at the latest at the deadline.

        Args:
            host: whom.
            header: the request, its kind first.
            blobs: what goes with it.
            wait: who waits for what.
            receipt: say that the answer has come; without a receipt the host undoes what it did.
        """
        sock, reader = self._connection(host, wait)
        seconds = self.seconds(wait)
        answered = False
        number = activity.begin(wait)
        try:
            sock.settimeout(seconds + GRACE_S)
            send_frame(sock, header, blobs)
            answer, content = reader.read()
            if receipt and answer[0] == "ok":
                send_frame(sock, RECEIPT)
            answered = True
        except TimeoutError as error:
            if error.errno is not None:  # not our own deadline: the network gave up
                raise wait.closed(f"{label(host)}, which hosts it, is cut off") from error
            raise wait.expired(seconds) from error
        except (OSError, EOFError) as error:
            raise wait.closed(f"{label(host)}, which hosts it, is gone") from error
        finally:
            activity.end(number)
            if not answered:
                self._drop(host)
        if answer[0] == "expired":
            raise wait.expired(seconds, answer[1])
        if answer[0] == "closed":
            raise wait.closed(answer[1])
        if answer[0] == "error":
            raise answer[1]
        return answer[1], content

    def seconds(self, wait: Wait) -> float:
        """How long a wait may take."""
        return self._run_info.timeout_s if wait.timeout is None else wait.timeout

    def reach(self, host: str, wait: Wait) -> Reach:
        """Where a host is; waits for one that has not come yet."""
        if host == self._me:
            return "process"
        near = not self._run_info.networked or self._place(host, wait).node == self._node
        return "node" if near else "network"

    def devices(self, host: str, wait: Wait) -> tuple[str, ...]:
        """The GPUs that a host sees, by UUID."""
        return self.ask(host, ("devices",), (), wait)[0]

    def connect(self, host: str, kind: str, wait: Wait, extra: Any = None) -> socket.socket:
        """A new connection to a host, which waits for one that has not come yet.

        Raises:
            DeadlineExceeded: it did not come.
            ChannelClosed: it is gone.
        """
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
        self._places[host], _ = self.ask(DRIVER, ("again", host, self._left.get(host), wait.timeout), (), wait)

    def _leave(self, host: str) -> None:
        place = None if host == DRIVER else self._places.pop(host, None)
        if place is not None:
            self._left[host] = place

    def _place(self, host: str, wait: Wait) -> Location:
        place = self._places.get(host)
        if place is None:
            place, _ = self.ask(DRIVER, ("where", host, wait.timeout), (), wait)
            self._places[host] = place
        return place

    def _connection(self, host: str, wait: Wait) -> tuple[socket.socket, FrameReader]:
        open_here: dict[str, tuple[socket.socket, FrameReader]] = self._local.__dict__.setdefault("open", {})
        if host not in open_here:
            sock = self.connect(host, "queue", wait)
            open_here[host] = sock, FrameReader(sock)
        return open_here[host]

    def _drop(self, host: str) -> None:
        sock, _ = self._local.open.pop(host)
        sock.close()
        self._leave(host)


RECEIPT = ("receipt",)
