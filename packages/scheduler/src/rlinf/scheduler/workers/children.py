"""Child processes of a worker, and what else a worker asks of its cluster.

A child is a process of its own with an address below its worker's. It is a worker without a class: it sends, receives and uses
channels. It ends with its worker, and its failure is its worker's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rlinf.core.errors import error_text
from rlinf.core.process import ChildProcess, Connection, ConnectionLost, exit_reason
from rlinf.core.protocols import Channel, Child
from rlinf.core.worker import Worker, WorkerContext, injected
from rlinf.core.worker.context import CurrentWorker, Services, WorkerAddress
from rlinf.scheduler.trace.recorder import Recorder
from rlinf.scheduler.trace.transfers import traced_transport
from rlinf.scheduler.transport.channel import Channel as TransportChannel
from rlinf.scheduler.transport.encoding import Buffer, decode, encode
from rlinf.scheduler.transport.p2p import PeerMessenger
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport
from rlinf.scheduler.transport.transport import address, label
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.transport.work import Work
from rlinf.scheduler.workers.logs import WorkerLog
from rlinf.scheduler.workers.tracebacks import folded


@dataclass(frozen=True, slots=True)
class Origin:
    """What a child process gets from its worker's."""

    run_info: RunInfo
    place: Location
    """Where the worker, or the child, listens."""
    log_dir: str | None
    trace_dir: Path | None
    fields: dict[str, Any]
    """Those of its `WorkerContext` that can be sent."""

    @property
    def path(self) -> tuple[int, ...]:
        """The ranks of its address."""
        return (self.fields["rank"], *self.fields.get("children", ()))

    @property
    def host(self) -> str:
        """The address of its queues."""
        return address(self.fields["group"], self.path)

    def child(self, number: int) -> Origin:
        """That of a child."""
        fields = {**self.fields, "children": (*self.path[1:], number), "devices": (), "threads": 1}
        host = address(self.fields["group"], (*self.path, number))
        path = self.place.path.removesuffix(self.host) + host
        return replace(self, place=replace(self.place, path=path, tcp=self.place.tcp and (self.place.tcp[0], 0)), fields=fields)


class ChannelServices(Services):
    """Channels, which any process of a cluster creates and finds in the same way."""

    def create_channel(self, name: str, **options: Any) -> Channel:
        return TransportChannel.create(name, **options)

    def connect_channel(self, name: str) -> Channel:
        return TransportChannel.connect(name)


class WorkerServices(ChannelServices):
    """What a worker in a process of its own asks of its cluster.

    Args:
        origin: the worker's.
        fail: called with what happened when a child has failed.
    """

    def __init__(self, origin: Origin, fail: Callable[[str], None]) -> None:
        self._origin = origin
        self._fail = fail
        self._numbers = itertools.count()

    def start_child(self, function: Callable[..., Any], args: tuple[Any, ...], name: str) -> Child:
        # Nothing of what is only encoded lies in shared memory.
        blobs = [bytes(cast("Buffer", blob)) for blob in encode((function, args), place=f"child '{name}'")]
        return WorkerChild(self._origin.child(next(self._numbers)), blobs, name, self._fail)


class AddressedChild:
    """What the implementations of `Child` have in common: the address, below that of its worker.

    Args:
        address: the child's.
        name: for messages.
    """

    def __init__(self, address: WorkerAddress, name: str) -> None:
        self._address = address
        self._label = f"child {address} ({name})"
        self._stopped = False

    @property
    def name(self) -> str:
        return self._address.get_name()

    @property
    def rank(self) -> tuple[int, ...]:
        return self._address.ranks


class WorkerChild(AddressedChild):
    """Implements `Child` with a process.

    Args:
        origin: the child's.
        blobs: function and arguments, encoded.
        name: for messages.
        fail: called with what happened if it fails.
    """

    def __init__(self, origin: Origin, blobs: list[bytes], name: str, fail: Callable[[str], None]) -> None:
        super().__init__(WorkerAddress(origin.fields["group"], origin.path), name)
        self._fail = fail
        wait = Wait(label(address(origin.fields["group"], origin.path[:-1])), self._label, "it to end")
        self._end: Work[None] = Work(wait, origin.run_info.timeout_s)
        command = [sys.executable, "-c", "from rlinf.scheduler.workers.children import main; main()"]
        # Enough to find this module; then the child takes over the path as it is here.
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        # What it is sent must wait until its imports are done, which takes long on a busy machine.
        self._process = ChildProcess(command, env=variables, connect=True, send_s=origin.run_info.timeout_s)
        with contextlib.suppress(ConnectionLost):  # its end is seen by the thread
            self._process.connection.send({"path": sys.path}, pickle.dumps((origin, blobs)))
        threading.Thread(target=self._watch, name=self._label, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout: float | None = None) -> None:
        self._end.wait(timeout)

    def done(self) -> bool:
        return self._end.done()

    def stop(self) -> None:
        # Before the kill: the thread that sees the end must not take it for a failure.
        self._stopped = True
        self._process.kill()
        self._end.wait()

    def _watch(self) -> None:
        failed = ""
        with contextlib.suppress(ConnectionLost):
            # A child that ends well, or is killed, says nothing.
            failed = self._process.connection.wait()[0]["failed"]
        code = self._process.wait()
        if code and not self._stopped:
            self._fail(f"{self._label} {f'failed: {failed}' if failed else exit_reason(code)}")
        self._end.finish(None)


def main() -> None:
    """What runs in the process of a child."""
    connection = Connection.to_parent()
    fields, payload = connection.wait()
    sys.path[:] = fields["path"]  # before unpickling, which imports
    origin, blobs = pickle.loads(payload)  # noqa: S301 - from this child's own worker
    try:
        _run(origin, blobs)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told to the worker
        connection.send({"failed": f"{error_text(error)}\n{folded(error)}"})
        os._exit(1)
    os._exit(0)


def _run(origin: Origin, blobs: list[bytes]) -> None:
    group = origin.fields["group"]
    transport = SocketTransport(origin.run_info, origin.host, origin.place)
    transport.server.start()
    WorkerLog("rlinf", origin.log_dir, group, origin.host.rpartition(".")[2], forward=transport.log)
    recorder = None if origin.trace_dir is None else Recorder(origin.trace_dir, origin.host)
    transport.connect_control(lambda: os._exit(1))
    traced = traced_transport(transport, recorder)
    messenger = PeerMessenger(traced, origin.host, transport.groups, origin.run_info.timeout_s)
    with injected(WorkerContext(**origin.fields, messenger=messenger, services=WorkerServices(origin, _fail))):
        CurrentWorker.own_process(Worker())
    function, args = decode(blobs)
    try:
        function(*args)
    finally:
        if recorder is not None:
            recorder.close()


def _fail(problem: str) -> None:
    """A child of this child has failed: so has this one, and its worker."""
    Worker.current_worker.log_error(problem)
    os._exit(1)
