"""Large parts of messages over process groups of torch: NCCL between GPUs, gloo for memory of the CPU.

A sender keeps a copy of what its message does not carry. Who takes the message comes for it: it says so to the sender's message
server, and both sides join a group of two ranks that carries from this sender to this receiver only, and stays for the next time.

    sender                              receiver
    leave(to, parts) ─ message ───────► fetch(sender, ticket)
    push(number)     ◄─ "fetch" ─────── asks; is told where the group meets
    send, send, …    ── the group ────► recv, recv, …

So the receiver says what comes next: the order in which tags are received does not matter, nor which side begins. Threads work;
a waiting one looks after the other process once a second, so that its failure ends the wait.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import itertools
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from rlinf.core.errors import ChannelClosed, DeadlineExceeded, RLinfError
from rlinf.scheduler.transport import _cuda
from rlinf.scheduler.transport.routes import GroupRoute, Ticket
from rlinf.scheduler.transport.shared_memory import Region
from rlinf.scheduler.transport.sockets.connections import Connections
from rlinf.scheduler.transport.sockets.locations import Location
from rlinf.scheduler.transport.sockets.server import Server
from rlinf.scheduler.transport.transport import DRIVER, label
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.transport.work import OrderedTasks, Work

CONNECT_S = 60.0
"""How long the two sides of a new group may take to meet."""
LOOK_S = 1.0
"""Who waits for a part looks that often whether the other process is still there."""
POLL_S = 0.0005
"""How often a thread looks whether a GPU has sent or received; unlike a wait in CUDA, that can be given up."""
LOOPBACK = "127.0.0.1"
_REMEDY = "cluster.route=socket does without process groups."


class _Key(NamedTuple):
    """By what each side finds its half of a group."""

    route: GroupRoute
    holder: str
    """The process that sends; see `Ticket`."""
    device: int | None
    """The GPU of the receiver; None for memory of the CPU."""


@dataclass(slots=True)
class _Payload:
    """What is kept for a receiver."""

    to: str
    parts: list[Any]
    sent: bool = False
    """Whether its message is on its way."""


class GroupCarrier:
    """Implements `Carrier` for one process.

    Args:
        connections: asks other processes; for this only, as it takes a process that was started again for the same one.
        me: this process's address.
        place: where this process is; other nodes reach it at its TCP address.
        timeout_s: the default deadline of a wait.
    """

    def __init__(self, connections: Connections, me: str, place: Location, timeout_s: float) -> None:
        self._connections = connections
        self._me = me
        self._ip = LOOPBACK if place.tcp is None else place.tcp[0]
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._holder = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._gpu: Any = None  # on which all is kept: a group has one GPU on each side
        self._payloads: dict[int, _Payload] = {}
        self._stores: dict[str, Any] = {}
        self._sending: dict[tuple[str, _Key], _Pair] = {}
        """By the receiver's address, too."""
        self._receiving: dict[_Key, _Pair] = {}

    def serve(self, server: Server) -> None:
        """Answers those who come for parts."""
        server.serve("fetch", self._push, peer=True)
        server.serve("fetching", self._trouble, peer=True)
        server.serve("nccl", lambda: tuple(_cuda.devices()) if _has_nccl() else ())

    @property
    def ready(self) -> bool:
        return os.getpid() == self._pid

    def gpus(self, host: str, wait: Wait) -> Collection[str]:
        return self._connections.ask(host, "nccl", wait=wait) if _has_nccl() else ()

    def leave(self, to: str, route: GroupRoute, parts: Sequence[Any]) -> tuple[str, int]:
        if route == "nccl":
            self._gpu = parts[0].device if self._gpu is None else self._gpu
            kept = _copied(parts, self._gpu)
        else:
            kept = [_tensor(part) for part in parts]
        number = next(self._numbers)
        with self._lock:
            self._payloads[number] = _Payload(to, kept)
        return self._holder, number

    def sent(self, number: int) -> None:
        with self._lock:
            if number in self._payloads:  # else it was fetched already
                self._payloads[number].sent = True

    def withdraw(self, number: int) -> None:
        with self._lock:
            self._payloads.pop(number, None)

    def forget(self, host: str) -> None:
        with self._lock:
            kept = self._payloads.items()
            self._payloads = {number: payload for number, payload in kept if payload.to != host or not payload.sent}
            broken = [pair for pair in self._receiving.values() if pair.peer == host]
        for pair in broken:
            self._give_up(pair)

    def fetch(self, sender: str, ticket: Ticket, wait: Wait) -> list[Any]:
        seconds = wait.seconds(self._timeout_s)
        deadline = time.monotonic() + seconds
        pair = self._receiver(sender, ticket, wait)
        question = ("fetch", ticket.holder, ticket.number, pair.key, pair.name, pair.ip == LOOPBACK, seconds)
        try:
            with pair.turn:  # who asks first receives first
                run_info = self._asked(pair, question, wait)
                work = pair.line.add(lambda: pair.receive(run_info, ticket.sizes, seconds), wait)
            return self._received(work, pair, replace(wait, timeout=max(0.0, deadline - time.monotonic())))
        except (ChannelClosed, DeadlineExceeded):
            self._give_up(pair)  # the two sides may disagree on what comes next
            raise

    def _asked(self, pair: _Pair, question: tuple[Any, ...], wait: Wait) -> Any:
        """The answer."""
        try:
            answer = self._connections.ask(pair.peer, *question, wait=wait)
        except ChannelClosed:
            if pair.asked:
                raise
            self._seek(pair.peer, wait)  # the connection may have led to its predecessor
            try:
                answer = self._connections.ask(pair.peer, *question, wait=replace(wait, timeout=LOOK_S))
            except DeadlineExceeded:
                self._seek(pair.peer, wait)  # it may have failed meanwhile
                raise
        pair.asked = True
        return answer

    def _seek(self, sender: str, wait: Wait) -> None:
        """Asks the driver, which knows whether a sender has failed; else it would be waited for."""
        self._connections.ask(DRIVER, "again", sender, None, wait.timeout, wait=wait)

    def _received(self, work: Work[list[Any]], pair: _Pair, wait: Wait) -> list[Any]:
        """What a pair has received; ends early if the sender fails, which its message server tells."""
        deadline = time.monotonic() + (wait.timeout or 0.0)
        while True:
            left = deadline - time.monotonic()
            try:
                return work.wait(max(0.0, min(LOOK_S, left)))
            except DeadlineExceeded as error:
                if left <= 0:
                    raise wait.expired(wait.timeout or 0.0) from error
                problem = ""
            except Exception as error:  # noqa: BLE001 - torch raises RuntimeErrors of all kinds
                problem = f"the connection broke ({error})"
            question = ("fetching", pair.key.holder, pair.key, pair.name)
            said: str = self._connections.ask(pair.peer, *question, wait=replace(wait, timeout=max(left, LOOK_S)))
            if problem or said:
                reason = f"{wait.who} can't get {wait.goal} by {pair.key.route}: {said or problem}"
                raise ChannelClosed(wait.place, reason, _REMEDY)

    def close(self) -> None:
        """Ends all groups. Their threads would abort the process at its end, if it did not happen before."""
        atexit.unregister(self.close)
        with self._lock:
            pairs = [*self._sending.values(), *self._receiving.values()]
            self._sending.clear()
            self._receiving.clear()
            self._payloads.clear()
            self._stores.clear()
        for pair in pairs:
            pair.close()

    def _receiver(self, sender: str, ticket: Ticket, wait: Wait) -> _Pair:
        device = _torch().cuda.current_device() if ticket.route == "nccl" else None
        key = _Key(ticket.route, ticket.holder, device)
        if (pair := self._receiving.get(key)) is not None:
            return pair
        self._seek(sender, wait)
        near = self._connections.reach(sender, wait) != "network"
        with self._lock:
            name = f"{self._me} {self._holder} {next(self._numbers)}"
            return self._receiving.setdefault(key, self._pair(sender, name, key, rank=1, near=near, device=device))

    def _push(self, peer: str, holder: str, number: int, key: _Key, name: str, near: bool, seconds: float) -> tuple[str, int]:
        """A receiver comes for what is kept: it goes, in a thread of its own; the answer is where the group meets."""
        with self._lock:
            payload = self._payloads.get(number) if holder == self._holder else None
            if payload is None or payload.to != peer:
                problem = f"{label(self._me)} does not have what belongs to a message to {label(peer)} any more"
                raise RLinfError(f"recv from {label(self._me)}", problem, "It was started again, or the message was read twice.")
            del self._payloads[number]
            pair = self._sending.get((peer, key))
            # Another name: the receiver has given the old group up.
            if pair is None or pair.name != name:
                device = payload.parts[0].device.index if key.route == "nccl" else None
                old, pair = pair, self._pair(peer, name, key, rank=0, near=near, device=device)
                self._sending[peer, key] = pair
                if old is not None:
                    old.close()
            if (ip := pair.ip) not in self._stores:
                self._stores[ip] = _store(ip)
            store = self._stores[ip]
        wait = Wait(label(self._me), f"{key.route} to {label(peer)}", "it to end", seconds)
        pair.line.add(lambda: pair.send(store, payload.parts, seconds), wait)
        return ip, store.port

    def _trouble(self, peer: str, holder: str, key: _Key, name: str) -> str:
        """Why a receiver waits in vain; "" if it does not."""
        pair = self._sending.get((peer, key))
        if holder != self._holder:
            return f"{label(self._me)} died, and was started again"
        return "it was given up" if pair is None or pair.name != name else pair.problem

    def _pair(self, peer: str, name: str, key: _Key, *, rank: int, near: bool, device: int | None) -> _Pair:
        atexit.register(self.close)
        line = OrderedTasks(f"rlinf-{key.route} {label(self._me)} {'to' if rank == 0 else 'from'} {label(peer)}", self._timeout_s)
        return _Pair(name, key, peer, rank, LOOPBACK if near else self._ip, device, line)

    def _give_up(self, pair: _Pair) -> None:
        with self._lock:
            if self._receiving.get(pair.key) is pair:
                del self._receiving[pair.key]
        pair.close()


class _Pair:
    """One side of a group of two, whose rank 0 sends and whose rank 1 receives. Its line's thread does the work.

    Args:
        name: tells groups apart.
        key: by what each side finds its half.
        peer: the address of the other side.
        rank: of this side.
        ip: where this side listens.
        device: the GPU of this side; None for memory of the CPU.
        line: what it does, one after the other.
    """

    def __init__(self, name: str, key: _Key, peer: str, rank: int, ip: str, device: int | None, line: OrderedTasks) -> None:
        self.name = name
        self.key = key
        self.peer = peer
        self.ip = ip
        self.line = line
        self.turn = threading.Lock()
        self.asked = False
        """Whether the other side knows it."""
        self.problem = ""
        """Why it carries nothing any more."""
        self._rank = rank
        self._device = device
        self._group: Any = None

    def send(self, store: Any, parts: Sequence[Any], seconds: float) -> None:
        """Sends the parts."""
        try:
            with _on(self._device):
                group = self._met(lambda: store)
                for part in parts:
                    self._finish(group.send([part], 1, 0), seconds)
        except Exception as error:
            self.problem = f"its side failed ({error})"
            self.close()
            raise

    def receive(self, run_info: tuple[str, int], sizes: Sequence[int], seconds: float) -> list[Any]:
        """Parts of these sizes in bytes: arrays, or tensors on this side's GPU."""
        torch = _torch()
        with _on(self._device):
            group = self._met(
                lambda: torch.distributed.TCPStore(*run_info, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_S))
            )
            found: list[Any] = []
            for size in sizes:
                part = torch.empty(size, dtype=torch.uint8, device="cpu" if self._device is None else self._device)
                self._finish(group.recv([part], 0, 0), seconds)
                found.append(part.numpy() if self._device is None else part)
        return found

    def close(self) -> None:
        """Ends the group; what it carries just now fails on both sides."""
        self.problem = self.problem or "it was given up"
        group, self._group = self._group, None
        if group is not None and self._device is not None:
            group.abort()

    def _met(self, store: Callable[[], Any]) -> Any:
        """The group; at its first use, both sides meet."""
        if self.problem:
            raise RuntimeError(self.problem)
        if self._group is None:
            make = _nccl if self.key.route == "nccl" else _gloo
            self._group = make(_torch().distributed.PrefixStore(self.name, store()), self._rank, self.ip)
        return self._group

    def _finish(self, work: Any, seconds: float) -> None:
        if self._device is None:
            work.wait(timedelta(seconds=seconds))
            return
        deadline = time.monotonic() + seconds
        while not work.is_completed():
            if self.problem or time.monotonic() > deadline:
                raise RuntimeError(self.problem or f"{seconds:g} s have passed")
            time.sleep(POLL_S)
        work.wait()  # it is over: this raises what went wrong


_devices: dict[str, Any] = {}  # of gloo: a thread for all groups that listen on an address


def _gloo(store: Any, rank: int, ip: str) -> Any:
    kind = _torch().distributed.ProcessGroupGloo
    if ip not in _devices:
        _devices[ip] = kind.create_device(hostname=ip)
    options = kind._Options()  # the only way to say on which address it listens
    options._timeout = timedelta(seconds=CONNECT_S)
    options._devices = [_devices[ip]]
    return kind(store, rank, 2, options)


def _nccl(store: Any, rank: int, ip: str) -> Any:
    kind = _torch().distributed.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timedelta(days=1)  # then its watchdog would end the whole process; the deadlines are ours
    return kind(store, rank, 2, options)


def _store(ip: str) -> Any:
    """Where groups meet, on one address; torch by itself would listen on all of them."""
    with socket.socket() as listening:
        listening.bind((ip, 0))
        listening.listen(64)
        port = int(listening.getsockname()[1])
        file = os.dup(listening.fileno())  # the store closes it
    limit = timedelta(seconds=CONNECT_S)
    return _torch().distributed.TCPStore(ip, port, is_master=True, wait_for_workers=False, timeout=limit, master_listen_fd=file)


def _tensor(part: Any) -> Any:
    """The bytes of a blob as a tensor; the segment behind a region stays taken as long as the tensor lives."""
    data = part.view() if isinstance(part, Region) else bytearray(part)
    return _torch().from_numpy(np.frombuffer(data, np.uint8))


def _copied(parts: Sequence[Any], device: Any) -> list[Any]:
    """Copies of tensors, on one GPU, that are whole before another thread sends them."""
    copies = [part.to(device, copy=True) for part in parts]
    for each in {device, *[part.device for part in parts]}:
        _torch().cuda.current_stream(each).synchronize()
    return copies


def _has_nccl() -> bool:
    if "torch" not in sys.modules:
        return False
    distributed = _torch().distributed
    return distributed.is_available() and distributed.is_nccl_available()


def _on(device: int | None) -> Any:
    return contextlib.nullcontext() if device is None else _torch().cuda.device(device)


def _torch() -> Any:
    return importlib.import_module("torch")
