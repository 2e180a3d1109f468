"""The channels of a run: the driver's list of them, and how a process asks it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rlinf.core.errors import ConfigError, DeadlineExceeded, Deadlock, DuplicateName, PlacementError, UnknownName, did_you_mean
from rlinf.scheduler.transport.transport import DRIVER, address, label
from rlinf.scheduler.transport.waiting import Monitor, Wait


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


@dataclass(frozen=True, slots=True)
class Status:
    """How a channel is."""

    ended: str = ""
    """Why it takes nothing more; "" while it does."""
    lost: Mapping[str, str] | None = None
    """Its hosts that are gone, and what is known of that."""


class ChannelList(Protocol):
    """How a process asks for channels."""

    def create(self, name: str, maxsize: int, site: Site) -> ChannelInfo:
        """A new channel.

        Raises:
            DuplicateName: there is one of that name.
            UnknownName: there is no group to be near.
            PlacementError: no process of the run is on the node.
        """
        ...

    def find(self, name: str, wait: Wait) -> ChannelInfo:
        """The channel of a name; waits until it is created.

        Raises:
            UnknownName: nobody created it in time; the message has the nearest name.
        """
        ...

    def host(self, name: str, key: Hashable, *, decide: bool = True) -> str:
        """Where a key of a distributed channel is; "" if nobody has used it, and it is not to be decided."""
        ...

    def end(self, name: str, by: str) -> None:
        """Closes a channel: it takes nothing more, from anybody, once this returns."""
        ...


class ChannelRegistry:
    """The driver's list.

    Args:
        monitor: how its users wait.
        hosts: the addresses of the processes that can host channels, and their nodes' ranks.
    """

    def __init__(self, monitor: Monitor, hosts: Callable[[], Mapping[str, int]] = dict) -> None:
        self.hosts = hosts
        self._monitor = monitor
        self._infos: dict[str, ChannelInfo] = {}
        self._keys: dict[str, dict[Hashable, str]] = {}
        self._ended: dict[str, str] = {}
        self._lost: dict[str, dict[str, str]] = {}
        self._closed = ""

    def create(self, name: str, maxsize: int, site: Site, by: str) -> ChannelInfo:
        """See `ChannelList`; `by` is the address of the process that creates it."""
        place = f"channel '{name}'"
        site.check(place)
        if maxsize < 0:
            raise ConfigError(place, f"expected maxsize of at least 0, found {maxsize}")
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
        """See `ChannelList`."""
        try:
            with self._monitor:
                self._monitor.wait_until(lambda: bool(self._closed) or name in self._infos, wait)
        except (DeadlineExceeded, Deadlock) as error:
            hint = did_you_mean(name, list(self._infos), label="Created")
            raise UnknownName(wait.place, f"{wait.who} waited in vain for somebody to create it", hint) from error
        if name not in self._infos:
            raise wait.closed(self._closed)
        return self._infos[name]

    def host(self, name: str, key: Hashable, by: str, *, decide: bool = True) -> str:
        """See `ChannelList`; `by` is the address of the process that uses it."""
        with self._monitor:
            keys = self._keys.setdefault(name, {})
            if key not in keys and (name in self._ended or by in self._lost.get(name, {})):
                by = DRIVER
            return keys.setdefault(key, by) if decide else keys.get(key, "")

    def hosts_of(self, name: str) -> set[str]:
        """The processes that host a channel, or a key of it."""
        info = self._infos[name]
        with self._monitor:
            return {info.host} if info.host else set(self._keys.get(name, {}).values())

    def hosted_by(self, host: str) -> list[str]:
        """The channels that a process hosts, or a key of."""
        return [name for name in list(self._infos) if host in self.hosts_of(name)]

    def mark_ended(self, name: str, reason: str) -> bool:
        """A channel takes nothing more; False if it did not before."""
        with self._monitor:
            first = name not in self._ended
            self._ended.setdefault(name, reason)
            return first

    def mark_lost(self, name: str, host: str, reason: str) -> None:
        """A process that hosted a channel, or a key of it, is gone."""
        with self._monitor:
            self._lost.setdefault(name, {})[host] = reason
            self._monitor.changed()

    def status(self, name: str) -> Status:
        """How a channel is."""
        return Status(self._ended.get(name, ""), dict(self._lost.get(name, {})))

    def fate(self, name: str, host: str, wait: Wait) -> str:
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


class LocalChannels:
    """The list, for who is in the driver's process.

    Args:
        channels: the list.
        end: ends the queues of a channel, for a reason.
        me: the address of who asks.
    """

    def __init__(self, channels: ChannelRegistry, end: Callable[[str, str], None], me: Callable[[], str]) -> None:
        self._channels = channels
        self._end = end
        self._me = me

    def create(self, name: str, maxsize: int, site: Site) -> ChannelInfo:
        """See `ChannelList`."""
        return self._channels.create(name, maxsize, site, self._me())

    def find(self, name: str, wait: Wait) -> ChannelInfo:
        """See `ChannelList`."""
        return self._channels.find(name, wait)

    def host(self, name: str, key: Hashable, *, decide: bool = True) -> str:
        """See `ChannelList`."""
        return self._channels.host(name, key, self._me(), decide=decide)

    def end(self, name: str, by: str) -> None:
        """See `ChannelList`."""
        if self._channels.mark_ended(name, f"closed by {by}"):
            self._end(name, f"closed by {by}")


class RemoteChannels:
    """The list, for a process that must ask the driver.

    Args:
        ask: sends a question to the driver, and returns its answer.
        who: who asks, for messages.
    """

    KNOWN = 1 << 16

    def __init__(self, ask: Callable[[tuple[Any, ...], Wait], Any], who: str) -> None:
        self._ask = ask
        self._who = who
        self._keys: dict[tuple[str, Hashable], str] = {}

    def create(self, name: str, maxsize: int, site: Site) -> ChannelInfo:
        """See `ChannelList`."""
        return self._ask(("create", name, maxsize, site), self._wait(name, "its creation"))

    def find(self, name: str, wait: Wait) -> ChannelInfo:
        """See `ChannelList`."""
        return self._ask(("find", name, wait.timeout), wait)

    def host(self, name: str, key: Hashable, *, decide: bool = True) -> str:
        """See `ChannelList`."""
        host = self._keys.get((name, key), "")
        if not host:
            host = self._ask(("host", name, key, decide), self._wait(name, f"the place of key {key!r}"))
            if len(self._keys) >= self.KNOWN:
                self._keys.clear()
            if host:
                self._keys[name, key] = host
        return host

    def end(self, name: str, by: str) -> None:
        """See `ChannelList`."""
        self._ask(("end", name, by), self._wait(name, "its end"))

    def status(self, name: str) -> Status:
        """See `ChannelRegistry.status`."""
        return self._ask(("status", name), self._wait(name, "its status"))

    def fate(self, name: str, host: str, seconds: float) -> str:
        """See `ChannelRegistry.fate`."""
        return self._ask(("fate", name, host, seconds), self._wait(name, f"news of {label(host)}", seconds))

    def _wait(self, name: str, goal: str, timeout: float | None = None) -> Wait:
        return Wait(self._who, f"channel '{name}'", goal, timeout)
