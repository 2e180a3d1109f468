"""`SocketTransport`: the transport of one process of a Ray cluster; serves its own queues and reaches those of others.

process a                                 process b
Channel, send ─► SocketTransport                                 one connection from a to b for all
Connections ─────────► Server ─► Queues      puts, gets and questions of a's threads
Server ◄────────────── Connections           (and one the other way, if b has any)
Server ◄────────────── the driver's ControlConnections: its questions, its news, its end
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlinf.core.errors import ChannelClosed, DeadlineExceeded
from rlinf.scheduler.transport import _cuda
from rlinf.scheduler.transport._process_groups import GroupCarrier
from rlinf.scheduler.transport.channel_registry import ANSWERS_S, ChannelRegistry, KnownChannels, Traffic
from rlinf.scheduler.transport.encoding import Blobs, snapshot
from rlinf.scheduler.transport.queues import Get, Put, Queues
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.sockets.connections import Connections, ControlConnections
from rlinf.scheduler.transport.sockets.locations import Directory, Location, RunInfo
from rlinf.scheduler.transport.sockets.server import Server
from rlinf.scheduler.transport.transport import DRIVER, OPEN_TRANSPORTS, Transport, channel_of, label
from rlinf.scheduler.transport.waits import ThreadMonitor, Wait
from rlinf.scheduler.transport.work import SENT, Done, Operation
from rlinf.scheduler.workers.device_lock import Claim, Locks
from rlinf.scheduler.workers.group_registry import GroupRegistry


class SocketTransport(Transport):
    """A `Transport` over sockets, and the lock service.

    Args:
        run_info: what the processes of the run share.
        me: this process's address.
        place: where this process is to be reached; a TCP port of 0 takes a free one.
    """

    def __init__(self, run_info: RunInfo, me: str, place: Location) -> None:
        self.run = run_info.run
        self.asks_driver = me != DRIVER
        self._me = me
        self._who = label(me)
        self._pid = os.getpid()
        self.queues = Queues(lambda: ThreadMonitor(run_info.timeout_s))
        self.known = KnownChannels(self._who, self.ask)
        self.connections = Connections(run_info, me, place.node, self.known)
        # Its own connections: to it, a process that was started again is the same as before, which must not mislead puts.
        self.carrier = GroupCarrier(Connections(run_info, me, place.node, self.known), me, place, run_info.timeout_s)
        self.routes = Routes(run_info.route, self.connections.reach, devices=self._devices, carrier=self.carrier)
        if not place.path.startswith("\0"):
            Path(place.path).unlink(missing_ok=True)  # of a killed process that had this address
        self.server = Server(place, run_info.authkey, self.queues)
        serve = self.server.serve
        serve("devices", lambda: tuple(_cuda.devices()))
        serve("stop puts", self.stop_puts, waits=True)
        serve("channel lost", self.known.lose)
        serve("channel traffic", self.known.traffic)
        serve("closed", self.close)
        self.carrier.serve(self.server)
        OPEN_TRANSPORTS[run_info.run] = self

    def who(self) -> str:
        return self._who

    def in_worker(self) -> bool:
        return self.asks_driver

    def ask(self, kind: str, *question: Any, wait: Wait) -> Any:
        return self.connections.ask(DRIVER, kind, *question, wait=wait)

    def start_put(
        self, host: str, queue: Any, weight: int, blobs: Blobs, maxsize: int, wait: Wait, *, now: bool = False
    ) -> Operation:
        self.known.check(queue, host, wait)
        blobs, _ = self.routes.staged(host, blobs, wait)
        if host == self._me:
            return self.queues.start(Put(queue, self._me, (weight, snapshot(blobs)), maxsize, now=now))
        if maxsize:
            return self.connections.to(host, wait).start("put", queue, (weight, maxsize, now), blobs, wait)
        while True:
            try:
                self.connections.to(host, wait).post(queue, weight, blobs, wait)
            except (ChannelClosed, DeadlineExceeded) as error:
                if channel_of(queue) is not None or isinstance(error, DeadlineExceeded):
                    # Raised where the result is asked for, as with a put that is under way.
                    return Done(error)
                # A message to a process that is being started again waits for it; a channel that it had is lost.
                self.routes.forget(host)
                self.connections.await_return(host, wait)
            else:
                return SENT

    def start_get(self, host: str, queue: Any, target: int | None, wait: Wait, *, now: bool = False) -> Operation:
        self.known.check(queue, host, wait)
        if host == self._me:
            return self.queues.start(Get(queue, self._me, target, now=now))
        return self.connections.to(host, wait).start("get", queue, (target, now), (), wait)

    def size(self, host: str, queue: Any, wait: Wait) -> int:
        self.known.check(queue, host, wait)
        return self.queues.size(queue) if host == self._me else self.connections.ask(host, "size", queue, wait=wait)

    def acquire(self, claim: Claim, wait: Wait) -> None:
        """See `LockService`. A claim whose answer does not arrive is released."""
        self.connections.ask(DRIVER, "lock", claim, wait.timeout, wait=wait)

    def release(self, claim: Claim) -> None:
        self.connections.ask(DRIVER, "unlock", claim, wait=Wait(claim.owner, "device lock", "it to be released"))

    def groups(self) -> dict[str, int]:
        """The groups that were launched so far, and their world sizes."""
        return self.ask("groups", wait=Wait(self._who, "groups", "the driver's answer"))

    def log(self, level: int, message: str) -> None:
        """Tells the driver what this process logs; a driver that is gone misses nothing."""
        if os.getpid() != self._pid:  # a forked child has no connection of its own
            return
        with suppress(ChannelClosed, DeadlineExceeded):
            self.connections.tell(DRIVER, "log", level, message, wait=Wait(self._who, "log", "the driver"))

    def connect_control(self, on_end: Callable[[], None]) -> None:
        """Ties this process to the driver, which then knows where it is, and asks. Last: each answer must be set.

        Args:
            on_end: called when the driver is gone.
        """
        wait = Wait(self._who, "control connection", "the driver")
        ready = threading.Event()
        self.server.serve("control ready", ready.set)
        sock = self.connections.connect(DRIVER, "control", wait, self.server.place)

        def serve_driver() -> None:
            self.server.answer(sock, DRIVER)
            on_end()

        threading.Thread(target=serve_driver, name="rlinf-control", daemon=True).start()
        # Before, news of a channel that this process already uses would pass it by.
        if not ready.wait(self.connections.timeout_s):
            raise wait.expired(self.connections.timeout_s)

    def close(self, reason: str) -> None:
        """Ends every wait on this process's queues."""
        self.queues.close(reason)

    def stop(self) -> None:
        """Accepts no connection any more."""
        OPEN_TRANSPORTS.pop(self.run, None)
        self.server.stop()
        self.carrier.close()

    def stop_puts(self, channel: str, reason: str, hosts: Sequence[str]) -> None:
        """Puts nothing more into a channel; returns when its hosts have read what was put before."""
        self.known.ended[channel] = reason
        self.connections.await_arrival(hosts, ANSWERS_S)

    def _devices(self, host: str, wait: Wait) -> tuple[str, ...]:
        return self.connections.ask(host, "devices", wait=wait)


class DriverTransport(SocketTransport):
    """The driver's: it knows where everybody is, holds all device locks, and shows what the others log.

    Satisfies `Processes`, all processes of the run, for the channel registry.

    Args:
        run_info: what the processes of the run share; its driver's TCP port may be 0.
        on_lost: called with the address and the id of a process that is gone; true if it may come back, which
            `directory.settle` ends.
        on_log: called with the address of a process, and the level and text of what it logged.
    """

    def __init__(self, run_info: RunInfo, on_lost: Callable[[str, int], object], on_log: Callable[[str, int, str], None]) -> None:
        super().__init__(run_info, DRIVER, run_info.driver)
        self._on_lost = on_lost
        self._stopped = False
        self.locks = Locks(lambda: ThreadMonitor(run_info.timeout_s))
        self.directory = Directory(run_info.timeout_s)
        self.controls = ControlConnections(run_info.timeout_s, self.known, self._process_lost)
        self.channels = ChannelRegistry(ThreadMonitor(run_info.timeout_s), self)
        self.sizes: dict[str, int] = {}
        """The groups that were launched so far, and their world sizes."""
        self.group_registry = GroupRegistry(run_info.timeout_s)
        serve = self.server.serve
        serve("channel", self.channels.answer, waits=True, peer=True)
        serve("where", self._where, waits=True, peer=True)
        serve("again", self._again, waits=True, peer=True)
        serve("group", self.group_registry.answer, waits=True)
        serve("groups", lambda: dict(self.sizes))
        serve("lock", self._lock, waits=True, undo=self._unlock)
        serve("unlock", self._unlock)
        serve("log", on_log, peer=True)
        self.server.handle_control = self._handle_control
        self.directory.register(DRIVER, self.server.place)
        # Last: whoever connects finds all services.
        self.server.start()

    def ask(self, kind: str, *question: Any, wait: Wait) -> Any:
        """See `Transport`; nothing is sent."""
        return self.server.services[kind].answer(DRIVER, question)

    def close(self, reason: str) -> None:
        """Ends every wait of the run but those for device locks: a process that is gone holds none, others give them back."""
        super().close(reason)
        self.directory.close(reason)
        self.channels.close(reason)
        self.controls.tell("closed", reason)

    def stop(self) -> None:
        """See `SocketTransport`; nobody is lost any more."""
        self._stopped = True
        super().stop()

    def stop_puts(self, channel: str, reason: str, hosts: Sequence[str]) -> None:
        """See `Processes`; the driver's own come first, while the others answer all at once."""
        super().stop_puts(channel, reason, hosts)
        self.controls.ask("stop puts", channel, reason, hosts, timeout=ANSWERS_S)

    def end_queues(self, channel: str, reason: str, hosts: Sequence[str]) -> None:
        if DRIVER in hosts:
            self.queues.end(channel, reason)
        # Not over the control connections: the end must not overtake what the driver itself has put.
        others = [host for host in hosts if host != DRIVER]
        self.connections.ask_all(others, "end", channel, reason, wait=Wait(DRIVER, f"channel '{channel}'", "it to end", ANSWERS_S))

    def traffic(self, channels: Sequence[str], host: str) -> list[Traffic]:
        answers = self.controls.ask("channel traffic", channels, host, timeout=ANSWERS_S)
        return [self.known.traffic(channels, host), *answers.values()]

    def lose(self, host: str, reasons: Mapping[str, str]) -> None:
        self.known.lose(host, reasons)
        self.controls.ask("channel lost", host, reasons, timeout=ANSWERS_S)

    def _handle_control(self, sock: socket.socket, peer: str, pid: int, place: Location) -> None:
        self.directory.register(peer, place)
        self.controls.handle(sock, peer, pid, place)

    def _process_lost(self, peer: str, pid: int, place: Location) -> None:
        # Expected before it is forgotten: else `Directory.again` could take it for gone for good in between.
        self.directory.expect(peer)
        self.directory.forget(peer, place)
        self.locks.forget(label(peer), pid)
        if self._stopped or not self._on_lost(peer, pid):
            self.directory.settle(peer)
        if not self._stopped:
            self.channels.lose(peer)

    def _where(self, peer: str, host: str, timeout: float | None) -> Location:
        return self.directory.where(host, Wait(peer, label(host), "it to start", timeout))

    def _again(self, peer: str, host: str, old: Location | None, timeout: float | None) -> Location:
        return self.directory.again(host, old, Wait(peer, label(host), "it to come back", timeout))

    def _lock(self, claim: Claim, timeout: float | None) -> None:
        self.locks.acquire(claim, Wait(claim.owner, "", "", timeout))

    def _unlock(self, claim: Claim, *_: object) -> None:
        self.locks.release(claim)
