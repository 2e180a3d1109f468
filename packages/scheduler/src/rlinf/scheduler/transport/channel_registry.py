"""`ChannelRegistry`: the driver's list of channels. It says where they are, ends them, and says what was lost with a host.

`KnownChannels` is what each process has heard of that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlinf.core.config import expect_at_least
from rlinf.core.errors import (
    ConfigError,
    DeadlineExceeded,
    Deadlock,
    DuplicateName,
    PlacementError,
    RLinfError,
    UnknownName,
    did_you_mean,
)
from rlinf.scheduler.transport.transport import DRIVER, address, channel_of, label
from rlinf.scheduler.transport.waits import Monitor, Wait

ANSWERS_S = 5.0
"""How long a process may take to say what it has sent, or a host to read it; one that is stopped says nothing."""
LOSS_S = 10.0
"""How long the driver may take to find out what became of a process that is gone."""
Traffic = Sequence[tuple[int, int]]
"""How many items were put into some channels at a host, and how many were got, for each channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelInfo:
    """What a process must know of a channel to use it."""

    name: str
    """Unique in the run."""
    maxsize: int
    """How many items each key holds before a put blocks; 0 for any number."""
    host: str
    """The address of the process that has its queues; "" if each key is where it was first used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a new channel is to be; the default is the driver's process."""

    near: str | None = None
    """The group whose rank 0 hosts it."""
    distributed: bool = False
    """Each key is hosted by the process that uses it first."""
    node_rank: int | None = None
    """A process of this node hosts it."""
    local: bool = False
    """The process that creates it hosts it."""

    def check(self, place: str) -> None:
        """Refuses a site that says two things.

        Raises:
            ConfigError: more than one of its fields is set.
        """
        chosen = [self.near is not None, self.distributed, self.node_rank is not None, self.local]
        if sum(chosen) > 1:
            problem = "expected one of near, distributed, node_rank and local, found several"
            raise ConfigError(place, problem, "Leave all but one out.")


class KnownChannels:
    """What one process knows of channels: which have ended, what it has put and got where, and which hosts are gone.

    Args:
        who: the process, for messages.
        ask: asks a service of the driver; see `Transport.ask`.
    """

    def __init__(self, who: str, ask: Callable[..., Any]) -> None:
        self.ended: dict[str, str] = {}
        """Channels that take nothing more, and why."""
        self._who = who
        self._ask = ask
        self._known: set[str] = set()
        """Those whose status was asked for."""
        self._lost: dict[tuple[str, str], str] = {}
        """Why a channel has nothing at a host any more."""
        self._traffic: dict[tuple[str, str], list[int]] = {}
        self.after_fork()

    def after_fork(self) -> None:
        """This process is a child: another thread of its parent may have had the lock."""
        self._counting = threading.Lock()

    def check(self, queue: Hashable, host: str, wait: Wait) -> None:
        """Refuses a channel that is known to be lost, so that a process that took its host's place is not mistaken for it.

        Raises:
            ChannelClosed: it is lost.
        """
        name = channel_of(queue)
        if name is None:
            return
        if name not in self._known:
            # Asked once: later news come over the control connection.
            place = Wait(self._who, f"channel '{name}'", "its status")
            ended, lost = self._ask("channel", "status", name, wait=place)
            if ended:
                self.ended[name] = ended
            for gone, reason in lost.items():
                self._lost[name, gone] = reason
            self._known.add(name)
        if self._lost and (name, host) in self._lost:
            raise wait.closed(self._lost[name, host])

    def lose(self, host: str, reasons: Mapping[str, str]) -> None:
        """A process that hosted channels is gone, and why they have nothing there any more."""
        for name, reason in reasons.items():
            self._lost[name, host] = reason

    def count(self, queue: Hashable, host: str, *, puts: int = 0, gets: int = 0) -> None:
        """Items went into a queue at a host, or came out of it."""
        name = channel_of(queue)
        if name is not None:
            with self._counting:
                counts = self._traffic.setdefault((name, host), [0, 0])
                counts[0] += puts
                counts[1] += gets

    def traffic(self, channels: Sequence[str], host: str) -> Traffic:
        """How many items this process has put into channels at a host, and how many it has got, for each."""
        with self._counting:
            found = [self._traffic.get((channel, host), (0, 0)) for channel in channels]
            return [(puts, gets) for puts, gets in found]

    def loss(self, queue: Hashable, host: str) -> str:
        """What is known of the items that a channel had at a host that is gone; "" of a queue of messages."""
        name = channel_of(queue)
        if name is None or host == DRIVER:
            return ""
        with contextlib.suppress(RLinfError):
            # A driver that is gone, too, has nothing to add.
            wait = Wait(self._who, f"channel '{name}'", f"what was lost with {label(host)}", LOSS_S)
            return self._ask("channel", "loss", name, host, LOSS_S, wait=wait)
        return ""


class Processes(Protocol):
    """What the registry has the processes of the run do. A process that does not answer in time is not waited for."""

    def stop_puts(self, channel: str, reason: str, hosts: Sequence[str]) -> None:
        """No process puts anything into a channel any more, and its hosts have read what was put before."""
        ...

    def end_queues(self, channel: str, reason: str, hosts: Sequence[str]) -> None:
        """The hosts of a channel end its queues; see `Queues.end`."""
        ...

    def traffic(self, channels: Sequence[str], host: str) -> Sequence[Traffic]:
        """What each living process has put and got at a host."""
        ...

    def lose(self, host: str, reasons: Mapping[str, str]) -> None:
        """Tells every process of the channels that were lost with a host."""
        ...


class ChannelRegistry:
    """The driver's.

    Args:
        monitor: how its users wait.
        processes: those of the run.
    """

    def __init__(self, monitor: Monitor, processes: Processes) -> None:
        self.hosts: Callable[[], Mapping[str, int]] = dict
        """The addresses of the processes that can host channels, and their nodes' ranks; the back-end says them."""
        self._monitor = monitor
        self._processes = processes
        self._infos: dict[str, ChannelInfo] = {}
        self._keys: dict[str, dict[Hashable, str]] = {}
        self._ended: dict[str, str] = {}
        self._lost: dict[str, dict[str, str]] = {}
        self._closed = ""

    def answer(self, by: str, *question: Any) -> Any:
        """Answers a process, given its address."""
        match question:
            case ("create", name, maxsize, site):
                return self.create(name, maxsize, site, by)
            case ("find", name, timeout):
                return self.find(name, Wait(label(by), f"channel '{name}'", "it to be created", timeout))
            case ("host", name, key, decide):
                return self.host(name, key, by, decide=decide)
            case ("status", name):
                return self._ended.get(name, ""), dict(self._lost.get(name, {}))
            case ("loss", name, host, seconds):
                return self.loss(name, host, Wait(label(by), f"channel '{name}'", f"what was lost with {label(host)}", seconds))
            case ("end", name, closer):
                return self.end(name, f"closed by {closer}")
            case other:
                raise RLinfError("channels", f"unknown question {other!r}")

    def create(self, name: str, maxsize: int, site: Site, by: str) -> ChannelInfo:
        """A new channel.

        Args:
            name: unique in the run.
            maxsize: how many items each key holds; 0 for any number.
            site: where it is to be.
            by: the address of the process that creates it.

        Raises:
            DuplicateName: there is one of that name.
            UnknownName: there is no group to be near.
            PlacementError: no process of the run is on the node.
        """
        place = f"channel '{name}'"
        site.check(place)
        expect_at_least(f"{place}: maxsize", maxsize, 0)
        host = self._host(place, site, by)
        with self._monitor:
            if name in self._infos:
                raise DuplicateName(
                    place, "this cluster has a channel of that name", "Take it with Channel.connect, or name another."
                )
            info = self._infos[name] = ChannelInfo(name=name, maxsize=maxsize, host=host)
            self._monitor.changed()
        return info

    def names(self) -> list[str]:
        """Those that were created."""
        return list(self._infos)

    def find(self, name: str, wait: Wait) -> ChannelInfo:
        """The channel of a name; waits until it is created.

        Raises:
            UnknownName: nobody created it in time; the message has the nearest name.
        """
        try:
            with self._monitor:
                self._monitor.wait_until(lambda: bool(self._closed) or name in self._infos, wait)
        except (DeadlineExceeded, Deadlock) as error:
            hint = did_you_mean(name, list(self._infos), label="Created")
            raise UnknownName(wait.place, f"{wait.who} waited for its creation, and no process created it", hint) from error
        if name not in self._infos:
            raise wait.closed(self._closed)
        return self._infos[name]

    def host(self, name: str, key: Hashable, by: str, *, decide: bool = True) -> str:
        """Where a key of a distributed channel is: at the process `by` that uses it first. "" if it is not to be decided."""
        with self._monitor:
            keys = self._keys.setdefault(name, {})
            # An address that was lost stays refused, also for who was started again there.
            if key not in keys and (name in self._ended or by in self._lost.get(name, {})):
                by = DRIVER
            return keys.setdefault(key, by) if decide else keys.get(key, "")

    def hosts_of(self, name: str) -> set[str]:
        """The processes that host a channel, or a key of it."""
        info = self._infos[name]
        with self._monitor:
            return {info.host} if info.host else set(self._keys.get(name, {}).values())

    def end(self, name: str, reason: str) -> None:
        """Ends a channel: first nobody sends any more, then, when all has been read that was sent, its queues end."""
        with self._monitor:
            if name in self._ended:
                return
            self._ended[name] = reason
        # With the driver, where `host` puts keys that are first used after the end.
        hosts = sorted({DRIVER, *self.hosts_of(name)})
        self._processes.stop_puts(name, reason, hosts)
        self._processes.end_queues(name, reason, hosts)

    def lose(self, host: str) -> None:
        """A process has ended: whoever uses a channel that it hosted is told so, and how many items that concerns."""
        names = [name for name in list(self._infos) if host in self.hosts_of(name)]
        if not names:
            return
        # Without the monitor: the answers may take seconds.
        traffic = self._processes.traffic(names, host)
        reasons = {name: _loss(host, [one[i] for one in traffic]) for i, name in enumerate(names)}
        with self._monitor:
            for name, reason in reasons.items():
                self._lost.setdefault(name, {})[host] = reason
            self._monitor.changed()
        self._processes.lose(host, reasons)

    def loss(self, name: str, host: str, wait: Wait) -> str:
        """What is known of the end of a process that hosted a channel; waits until it is."""
        with self._monitor:
            self._monitor.wait_until(lambda: bool(self._closed) or host in self._lost.get(name, {}), wait)
            return self._lost.get(name, {}).get(host, self._closed)

    def close(self, reason: str) -> None:
        """Ends every wait for a channel."""
        with self._monitor:
            self._closed = self._closed or reason
            self._monitor.changed()

    def _host(self, place: str, site: Site, by: str) -> str:
        if site.distributed:
            return ""
        if site.local:
            return by
        if site.near is not None:
            host = address(site.near, 0)
            groups = [known.rpartition(".")[0] for known in self.hosts() if known != DRIVER]
            if host not in self.hosts() and host != by:
                hint = did_you_mean(site.near, sorted(set(groups)), label="Launched")
                raise UnknownName(place, f"no group '{site.near}' to be near", hint)
            return host
        if site.node_rank is None:
            return DRIVER
        there = [host for host, node in self.hosts().items() if node == site.node_rank]
        if not there:
            nodes = ", ".join(map(str, sorted(set(self.hosts().values()))))
            raise PlacementError(place, f"no process of the cluster is on node {site.node_rank}", f"There are some on: {nodes}.")
        return there[0]


def _loss(host: str, traffic: Traffic) -> str:
    """What is known of the items of a channel whose host has ended, by what each process that lives has put and got."""
    puts, gets = sum(puts for puts, _ in traffic), sum(gets for _, gets in traffic)
    known = f"of {puts} items that the others had put there, they had got {gets}; what it had got itself is not known"
    return f"{label(host)}, which hosted it, died ({known})"
