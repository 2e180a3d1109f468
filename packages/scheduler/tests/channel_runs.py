"""A run without Ray: the transports of a driver and of workers in one process."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf.scheduler import Channel
from rlinf.scheduler.transport.channel_registry import KnownChannels, Site
from rlinf.scheduler.transport.sockets.connections import Connections
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport, SocketTransport
from rlinf.scheduler.transport.waits import Wait


@dataclass
class Run:
    driver: DriverTransport
    run_info: RunInfo
    transports: list[SocketTransport]

    def transport(self, me: str) -> SocketTransport:
        made = SocketTransport(self.run_info, me, Location("here", str(Path(self.run_info.driver.path).parent / me)))
        made.server.start()
        made.connect_control(lambda: None)
        self.transports.append(made)
        return made

    def create(self, name: str, by: SocketTransport | None = None, maxsize: int = 0, **site: Any) -> Channel:
        transport = by or self.driver
        return Channel.create_at(transport, name, maxsize, Site(**site))


def connections(run_info: RunInfo, me: str, node: str = "here") -> Connections:
    """Those of a process that uses no channels."""

    def ask(*_: Any, wait: Wait) -> Any:
        raise wait.closed("it uses none")

    return Connections(run_info, me, node, KnownChannels(me, ask))


def through(transport: SocketTransport, channel: Channel) -> Channel:
    """The same channel, as another process uses it."""
    return Channel.connect_at(transport, channel.name)


def beside(function: Callable[[], Any]) -> Callable[[], Any]:
    """Calls a function in a thread; what is returned waits for its result."""
    results: queue.Queue[Any] = queue.Queue()

    def call() -> None:
        try:
            results.put((function(), None))
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            results.put((None, error))

    threading.Thread(target=call, daemon=True).start()

    def wait() -> Any:
        value, error = results.get(timeout=60.0)
        if error is not None:
            raise error
        return value

    return wait
