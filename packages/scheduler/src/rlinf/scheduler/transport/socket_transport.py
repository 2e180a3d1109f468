"""`SocketTransport`: the post of one process of a Ray cluster; serves its own queues and reaches those of others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from rlinf.core.errors import ChannelClosed, DeadlineExceeded, RLinfError
from rlinf.scheduler.group_registry import GroupRegistry
from rlinf.scheduler.transport import _cuda
from rlinf.scheduler.transport._collective import GroupCarrier
from rlinf.scheduler.transport.channel_desk import POSTS_S, ChannelDesk
from rlinf.scheduler.transport.channels import ChannelList, ChannelRegistry, LocalChannels, RemoteChannels, Status
from rlinf.scheduler.transport.client import Clients
from rlinf.scheduler.transport.control import ControlConnection, ControlConnections
from rlinf.scheduler.transport.encoding import Blob, Blobs
from rlinf.scheduler.transport.locks import Claim, Locks
from rlinf.scheduler.transport.pending import Pending
from rlinf.scheduler.transport.places import Directory, Location, RunInfo
from rlinf.scheduler.transport.queue_access import QueueAccess
from rlinf.scheduler.transport.queue_lines import QueueLines
from rlinf.scheduler.transport.queue_service import QueueService, Sender
from rlinf.scheduler.transport.queues import Queues
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.server import Answer, Server
from rlinf.scheduler.transport.transport import DRIVER, OPEN_TRANSPORTS, label
from rlinf.scheduler.transport.waiting import ThreadMonitor, Wait

R = TypeVar("R")
NEWS_S = 10.0
"""How long the driver may take to find out what became of a process that is gone."""


class SocketTransport:
    """Implements `Transport`, and the lock service.

    Args:
        meeting: where the processes of the run meet.
        me: this process's address.
        place: where this process is to be reached; a TCP port of 0 takes a free one.
    """

    def __init__(self, run_info: RunInfo, me: str, place: Location) -> None:
        self._run_info = run_info
        self._me = me
        self._who = label(me)
        self._pid = os.getpid()
        self.queues = Queues(lambda: ThreadMonitor(run_info.timeout_s))
        self.clients = Clients(run_info, me, place.node)
        self.carrier = GroupCarrier(Clients(run_info, me, place.node), me, place, run_info.timeout_s)
        self.routes = Routes(run_info.route, self.clients.reach, devices=self.clients.devices, carrier=self.carrier)
        if not place.path.startswith("\0"):
            Path(place.path).unlink(missing_ok=True)  # of a killed process that had this address
        self.server = Server(place, run_info.authkey)
        self.service = QueueService(self.queues)
        self.server.welcome("items", self.service.attend)
        self.server.serve("end", self._end)
        self.server.serve("devices", lambda _, __, ___: Answer(tuple(_cuda.devices())))
        self.carrier.serve(self.server)
        self._lines = QueueLines(self.clients, me, run_info.timeout_s, self._gone)
        self._remote = RemoteChannels(self._ask_channels, self._who)
        self._access = QueueAccess(me, self.queues, self._lines, run_info.timeout_s, self._status, self.routes)
        OPEN_TRANSPORTS[run_info.run] = self

    @property
    def run(self) -> str:
        """See `Transport`."""
        return self._run_info.run

    def who(self) -> str:
        """See `Transport`."""
        return self._who

    def in_worker(self) -> bool:
        """See `Transport`."""
        return self._me != DRIVER

    @property
    def asks_driver(self) -> bool:
        """See `Transport`."""
        return self._me != DRIVER

    def ask_driver(self, question: tuple[Any, ...], content: Sequence[Blob], wait: Wait) -> tuple[Any, list[Blob]]:
        """See `Transport`."""
        return self.clients.ask(DRIVER, question, content, wait)

    @property
    def channels(self) -> ChannelList:
        """See `Transport`."""
        return self._remote

    def put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False) -> None:
        """See `Transport`."""
        self._access.put(host, queue, weight, blobs, maxsize, wait, now=now)

    def get(self, host: str, queue: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> list[Blobs]:
        """See `Transport`."""
        return self._access.get(host, queue, target, wait, now=now)

    def size(self, host: str, queue: Hashable, wait: Wait) -> int:
        """See `Transport`."""
        return self._access.size(host, queue, wait)

    def start_put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait) -> Pending[None]:
        """See `Transport`."""
        return self._access.start_put(host, queue, weight, blobs, maxsize, wait)

    def start_get(
        self, host: str, queue: Hashable, target: int | None, wait: Wait, result: Callable[[list[Blobs]], R]
    ) -> Pending[R]:
        """See `Transport`."""
        return self._access.start_get(host, queue, target, wait, result)

    def acquire(self, claim: Claim, wait: Wait) -> None:
        """See `LockService`. A claim whose answer does not arrive is released."""
        self.clients.ask(DRIVER, ("lock", claim, wait.timeout), (), wait, receipt=True)

    def release(self, claim: Claim) -> None:
        """See `LockService`."""
        self.clients.ask(DRIVER, ("unlock", claim), (), Wait(claim.owner, "device lock", "its release"))

    def groups(self) -> dict[str, int]:
        """The groups that were launched so far, and their world sizes."""
        return self.clients.ask(DRIVER, ("groups",), (), Wait(self._who, "groups", "the driver's answer"))[0]

    def log(self, level: int, message: str) -> None:
        """Tells the driver what this process logs; a driver that is gone misses nothing."""
        if os.getpid() != self._pid:  # a forked child has no connection of its own
            return
        with contextlib.suppress(ChannelClosed, DeadlineExceeded):
            self.clients.tell(DRIVER, ("log", level, message), (), Wait(self._who, "log", "the driver"))

    def connect_control(self, on_end: Callable[[], None]) -> ControlConnection:
        """Ties this process to the driver, which knows from then on where it is. Start it when its answers are set.

        Args:
            on_end: called when the driver is gone.
        """
        sock = self.clients.connect(DRIVER, "connect_control", Wait(self._who, "connect_control", "the driver"), self.server.place)
        line = ControlConnection(sock, self.close, on_end)
        line.answer("channel ends", lambda news: self._access.end(*news))
        line.answer("channel lost", lambda news: self._access.lose(*news))
        line.answer("channel traffic", lambda which: self._access.traffic(*which))
        return line

    def close(self, reason: str) -> None:
        """Ends every wait on this process's queues."""
        self.queues.close(reason)

    def stop(self) -> None:
        """Accepts no connection any more."""
        OPEN_TRANSPORTS.pop(self._run_info.run, None)
        self.server.stop()
        self.carrier.close()

    def _end(self, _: str, request: tuple[Any, ...], __: list[Blob]) -> Answer:
        self.service.end(*request)
        return Answer()

    def _status(self, name: str) -> Status:
        return self._remote.status(name)

    def _ask_channels(self, question: tuple[Any, ...], wait: Wait) -> Any:
        return self.clients.ask(DRIVER, ("channel", *question), (), wait)[0]

    def _gone(self, host: str, queue: Hashable) -> str:
        """Why a host is gone; of a channel's, what the driver knows of the items that are lost."""
        if host != DRIVER and isinstance(queue, tuple) and len(cast("tuple[Any, ...]", queue)) == 2:
            with contextlib.suppress(RLinfError):
                return self._fate(str(queue[0]), host)  # pyright: ignore[reportUnknownArgumentType]
        return f"{label(host)}, which hosts it, is gone"

    def _fate(self, name: str, host: str) -> str:
        return self._remote.fate(name, host, NEWS_S)


class DriverTransport(SocketTransport):
    """The driver's: it knows where everybody is, holds all device locks, and shows what the others log.

    Args:
        meeting: where the processes of the run meet; its driver's TCP port may be 0.
        on_lost: called with the address and the id of a process that is gone; true if it may come back, which
            `directory.settle` ends.
        on_log: called with the address of a process, and the level and text of what it logged.
    """

    def __init__(self, run_info: RunInfo, on_lost: Callable[[str, int], object], on_log: Callable[[str, int, str], None]) -> None:
        super().__init__(run_info, DRIVER, run_info.driver)
        self._on_lost = on_lost
        self._stopped = False
        self.guard: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Entered while the driver puts or gets; see `Failures.guard`."""
        self.locks = Locks(lambda: ThreadMonitor(run_info.timeout_s))
        self.directory = Directory(run_info.timeout_s)
        self.controls = ControlConnections(self._lost)
        self.channel_list = ChannelRegistry(ThreadMonitor(run_info.timeout_s))
        self._desk = ChannelDesk(self.channel_list, self.controls.ask, self._access, self._end_at)
        self._local = LocalChannels(self.channel_list, self._desk.end, lambda: DRIVER)
        self.server.welcome("connect_control", self._attend)
        self.server.serve("channel", self._desk.answer)
        self.server.serve("where", self._where)
        self.server.serve("again", self._again)
        self.sizes: dict[str, int] = {}
        """The groups that were launched so far, and their world sizes."""
        self.group_registry = GroupRegistry(run_info.timeout_s)
        self.server.serve("group", self.group_registry.answer)
        self.server.serve("groups", lambda _, __, ___: Answer(dict(self.sizes)))
        self.server.serve("lock", self._lock)
        self.server.serve("unlock", self._unlock)

        def log(peer: str, request: tuple[Any, ...], _: list[Blob]) -> Answer:
            on_log(peer, *request)
            return Answer()

        self.server.serve("log", log, silent=True)
        self.directory.register(DRIVER, self.server.place)
        self.server.start()

    def put(self, host: str, queue: Hashable, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False) -> None:
        """See `Transport`."""
        with self.guard():
            super().put(host, queue, weight, blobs, maxsize, wait, now=now)

    def get(self, host: str, queue: Hashable, target: int | None, wait: Wait, *, now: bool = False) -> list[Blobs]:
        """See `Transport`."""
        with self.guard():
            return super().get(host, queue, target, wait, now=now)

    def close(self, reason: str) -> None:
        """Ends every wait of the run, but for those for device locks: who is gone holds none, and who lives gives them back."""
        super().close(reason)
        self.directory.close(reason)
        self.channel_list.close(reason)
        self.controls.tell(reason)

    def stop(self) -> None:
        """See `SocketTransport`; nobody is lost any more."""
        self._stopped = True
        super().stop()

    def _attend(self, *connection: Any) -> None:
        *_, peer, _, place = connection
        self.directory.register(peer, place)
        self.controls.attend(*connection)

    def _lost(self, peer: str, pid: int, place: Location) -> None:
        self.directory.expect(peer)
        self.directory.forget(peer, place)
        self.locks.forget(label(peer), pid)
        if self._stopped or not self._on_lost(peer, pid):
            self.directory.settle(peer)
        if not self._stopped:
            self._desk.lost(peer)

    @property
    def channels(self) -> ChannelList:
        """See `Transport`."""
        return self._local

    def _status(self, name: str) -> Status:
        return self.channel_list.status(name)

    def _fate(self, name: str, host: str) -> str:
        return self.channel_list.fate(name, host, Wait(self._who, f"channel '{name}'", f"news of {label(host)}", NEWS_S))

    def _end_at(self, host: str, name: str, reason: str, sent: dict[Sender, int]) -> None:
        if host == DRIVER:
            self.service.end(name, reason, sent, POSTS_S)
        else:
            self.clients.ask(host, ("end", name, reason, sent, POSTS_S), (), Wait(self._who, f"channel '{name}'", "its end"))

    def _where(self, peer: str, request: tuple[Any, ...], _: list[Blob]) -> Answer:
        host, timeout = request
        return Answer(self.directory.where(host, Wait(peer, f"the way to {label(host)}", "its start", timeout)))

    def _again(self, peer: str, request: tuple[Any, ...], _: list[Blob]) -> Answer:
        host, old, timeout = request
        return Answer(self.directory.again(host, old, Wait(peer, f"the way to {label(host)}", "its return", timeout)))

    def _lock(self, _: str, request: tuple[Any, ...], __: list[Blob]) -> Answer:
        claim, timeout = request
        self.locks.acquire(claim, Wait(claim.owner, "", "", timeout))
        return Answer(undo=lambda: self.locks.release(claim))

    def _unlock(self, _: str, request: tuple[Any, ...], __: list[Blob]) -> Answer:
        self.locks.release(request[0])
        return Answer()
