"""The routes of items, chosen by where they go: within a process, through shared memory on a node, else through a socket.

The large parts of a message from worker to worker may go by a process group of torch instead; see `_process_groups`.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from rlinf.core.errors import ConfigError
from rlinf.scheduler.transport.encoding import BESIDE_BYTES, Blob, Blobs, OnDevice, WithTensors
from rlinf.scheduler.transport.shared_memory import AVAILABLE, Arena, Region
from rlinf.scheduler.transport.waits import Wait

GroupRoute = Literal["gloo", "nccl"]
Route = Literal["process", "shared_memory", "socket", "tcp", "cuda_ipc", "gloo", "nccl"]
"""How an item went: it stayed in its process; it was copied once, into memory that the receiver has too; as bytes through a Unix
socket; as bytes through TCP; it stayed on the GPU, and a handle went; its large parts went by a process group of torch."""
RouteChoice: TypeAlias = Literal["auto", "socket", "shared_memory", "gloo", "nccl"]
"""Within a node: `auto` takes shared memory for what is large, `socket` never, `shared_memory` always. Between nodes it is TCP.
Tensors on a GPU go by CUDA IPC to who sees the same GPU, by NCCL to who sees another; with `socket` or `shared_memory` neither.
`gloo`: large parts of messages with CPU tensors go by gloo, all else as with `auto`, but without NCCL. `nccl`: GPU tensors in
messages go by NCCL only, all else as with `auto`."""

Reach = Literal["process", "node", "network"]
"""Where a queue is, seen from a process: in it, in another one of its node, or on another node."""

SHARED_BYTES = 1 << 19
"""From this size on, shared memory was faster than a socket between two processes: 0.15 ms against 0.16 ms, there and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a message has in place of large parts, which its sender keeps until the receiver comes for them."""

    route: GroupRoute
    holder: str
    """Tells processes apart, also one from that which was at its address before."""
    number: int
    places: tuple[int, ...]
    """Where the parts belong among the blobs of the message."""
    sizes: tuple[int, ...]
    """Bytes of each part."""

    def blob(self) -> bytes:
        """The first blob of a message, before those of the item."""
        return _MARKS[self.route] + pickle.dumps((self.holder, self.number, self.places, self.sizes))


def ticket_of(blobs: Sequence[Any]) -> Ticket | None:
    """The ticket of a message; None if it has all of its parts."""
    route = _marked(blobs[0])
    if route is None:
        return None
    content = memoryview(blobs[0])[len(_MARKS[route]) :]
    holder, number, places, sizes = pickle.loads(content)  # noqa: S301 - the sockets are private to one run and authenticated
    return Ticket(route=route, holder=holder, number=number, places=places, sizes=sizes)


_MARKS: dict[GroupRoute, bytes] = {"gloo": b"\0rlinf: by gloo\0", "nccl": b"\0rlinf: by nccl\0"}
"""No pickle begins so."""


def _marked(blob: Any) -> GroupRoute | None:
    if isinstance(blob, Region):
        return None
    begin = bytes(memoryview(blob)[: len(_MARKS["gloo"])])
    return next((route for route, mark in _MARKS.items() if begin == mark), None)


class Carrier(Protocol):
    """Carries parts of messages over process groups."""

    @property
    def ready(self) -> bool:
        """Whether it works in this process, and not only in the one from which it was forked."""
        ...

    def gpus(self, host: str, wait: Wait) -> Collection[str]:
        """The GPUs, by UUID, with which a host could receive by NCCL from this process."""
        ...

    def leave(self, to: str, route: GroupRoute, parts: Sequence[Any]) -> tuple[str, int]:
        """Keeps copies of blobs, or of flat tensors of bytes on a GPU, for a receiver; what a ticket names holder and number."""
        ...

    def sent(self, number: int) -> None:
        """The message of that number is on its way."""
        ...

    def withdraw(self, number: int) -> None:
        """The message of that number was not sent."""
        ...

    def forget(self, host: str) -> None:
        """A host has failed: nobody comes for what was sent to it before."""
        ...

    def fetch(self, sender: str, ticket: Ticket, wait: Wait) -> list[Any]:
        """The parts that a ticket stands for."""
        ...


class Routes:
    """Chooses the route of each item that a process puts.

    Args:
        choice: which route is asked for.
        reach: where a host is.
        devices: asks a host which GPUs it sees.
        arena: where items for other processes of the node are held.
        carrier: carries by process groups; None if there are none.

    Raises:
        ConfigError: the machine does not have that route.
    """

    def __init__(
        self,
        choice: RouteChoice,
        reach: Callable[[str, Wait], Reach],
        *,
        devices: Callable[[str, Wait], Collection[str]] = lambda _, __: (),
        arena: Arena | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        if choice == "shared_memory" and not AVAILABLE:
            raise ConfigError("cluster.route", "'shared_memory' is there on Linux only", "Leave it at 'auto'.")
        self._choice: RouteChoice = choice
        self._least = {"shared_memory": 0}.get(choice, SHARED_BYTES) if AVAILABLE and choice != "socket" else None
        self.reach = reach
        self._devices = devices
        self._opens: dict[str, Collection[str]] = {}
        self._groups: dict[str, bool] = {}
        self._arena = arena
        self._carrier = carrier
        self._lock = threading.Lock()

    def staged(self, host: str, blobs: Blobs, wait: Wait) -> tuple[Blobs, Route]:
        """An item as it goes to a host, and its route. A put does this by itself; done before, it is not done again."""
        reach = self.reach(host, wait)
        held = None if reach == "network" else self._held(blobs)
        return held or blobs, route_of(held or blobs, reach)

    def opens(self, host: str, wait: Wait) -> Collection[str]:
        """The GPUs, by UUID, of which a host can open memory that this process shares; none unless torch uses a GPU here."""
        if self._least is None or self._choice == "nccl" or not _uses_gpu() or self.reach(host, wait) != "node":
            return ()
        if not self._opens.get(host):  # it may not have imported torch when it was asked before
            self._opens[host] = self._devices(host, wait)
        return self._opens[host]

    def by_nccl(self, host: str, wait: Wait) -> bool:
        """Whether GPU memory goes to a host by NCCL if the host can't open it.

        Raises:
            ConfigError: it must, and can't.
        """
        if self._carrier is None or self._choice not in ("auto", "nccl") or not _uses_gpu() or self.reach(host, wait) == "process":
            return False
        # Asked again after a no: the host may import torch later.
        if not self._groups.get(host):
            self._groups[host] = self._carrier.ready and bool(self._carrier.gpus(host, wait))
        if self._choice == "nccl" and not self._groups[host]:
            problem = f"{wait.place} can't go by 'nccl': one side uses no GPU with torch, or has no NCCL"
            raise ConfigError("cluster.route", problem, "Leave it at 'auto'.")
        return self._groups[host]

    def left(self, host: str, blobs: Blobs, gpu: Sequence[Any], wait: Wait) -> Blobs:
        """A message as it goes to a host: what is to go by a process group stays here until the host comes for it.

        Args:
            host: who receives it.
            blobs: of `encode`.
            gpu: the parts on a GPU, flat tensors of bytes, for which `blobs` has empty ones.
            wait: who sends.
        """
        # The empty blobs stand for the parts on a GPU; the first one is the pickle.
        route, places = "nccl", [place for place, blob in enumerate(blobs) if place and not len(blob)]
        parts = gpu
        if not gpu:
            if not self._by_gloo(host, blobs, wait):
                return blobs
            route, places, parts = "gloo", list(range(1, len(blobs))), self._held(blobs[1:]) or blobs[1:]
        assert self._carrier is not None
        holder, number = self._carrier.leave(host, route, parts)
        ticket = Ticket(route=route, holder=holder, number=number, places=tuple(places), sizes=tuple(map(len, parts)))
        return [ticket.blob(), *[b"" if place in places else blob for place, blob in enumerate(blobs)]]

    def fetched(self, sender: str, blobs: Sequence[Any], wait: Wait) -> Sequence[Any]:
        """A message with all of its parts, which are blobs or tensors on a GPU."""
        ticket = ticket_of(blobs)
        if ticket is None:
            return blobs
        assert self._carrier is not None
        whole = list(blobs[1:])
        for place, part in zip(ticket.places, self._carrier.fetch(sender, ticket, wait), strict=True):
            whole[place] = part
        return whole

    def settle(self, blobs: Blobs, *, sent: bool) -> None:
        """A message is on its way, or was not sent: then nobody comes for its parts."""
        ticket = ticket_of(blobs)
        if self._carrier is not None and ticket is not None:
            (self._carrier.sent if sent else self._carrier.withdraw)(ticket.number)

    def forget(self, host: str) -> None:
        """A host has failed; another process may take its place."""
        self._opens.pop(host, None)
        self._groups.pop(host, None)
        if self._carrier is not None:
            self._carrier.forget(host)

    def _by_gloo(self, host: str, blobs: Blobs, wait: Wait) -> bool:
        if self._choice != "gloo" or self._carrier is None or len(blobs) < 2 or not isinstance(blobs[0], WithTensors):
            return False
        return self._carrier.ready and self.reach(host, wait) != "process"

    def several(self, blobs: Blobs) -> Blobs:
        """An item that is put several times: copied once if it is large, and each receiver may change what it gets."""
        return self._held(blobs, several=True) or blobs

    def _held(self, blobs: Blobs, *, several: bool = False) -> Blobs | None:
        """The item with its large blobs in shared memory; None if it is small, or there is no room."""
        if self._least is None or sum(map(len, blobs)) < max(self._least, 1) or any(isinstance(blob, Region) for blob in blobs):
            return None
        large = [blob for blob in blobs if len(blob) >= min(BESIDE_BYTES, self._least)]
        regions = self._memory().hold(large, several=several) if large else None
        if regions is None:
            return None
        after = iter(regions)
        return [next(after) if len(blob) >= min(BESIDE_BYTES, self._least) else blob for blob in blobs]

    def _memory(self) -> Arena:
        with self._lock:
            if self._arena is None:
                self._arena = Arena()
            return self._arena


def route_of(blobs: Sequence[Blob], reach: Reach) -> Route:
    """How an item goes, or came."""
    for blob in blobs:
        route = _marked(blob)
        if route is not None:
            return route
    if reach == "network":
        return "tcp"
    if any(isinstance(blob, OnDevice) for blob in blobs):
        return "cuda_ipc"
    if any(isinstance(blob, Region) for blob in blobs):
        return "shared_memory"
    return "process" if reach == "process" else "socket"


def size_of(blobs: Sequence[Blob]) -> int:
    """The bytes of an item, also of parts that do not go with its message."""
    ticket = ticket_of(blobs)
    return sum(map(len, blobs)) + (0 if ticket is None else sum(ticket.sizes))


def _uses_gpu() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # None also while another thread imports torch
    # Before that no tensor can be on a GPU; `is_available` would say yes on any machine that has one.
    return cuda is not None and cuda.is_initialized()
