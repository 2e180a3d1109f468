"""What a training step consists of: components, who feeds whom, and what each costs. Read from JSON, and written to it.

{"components": {"env":     {"items": 64, "costs": {"1": {"fixed_s": 0.001, "item_s": 0.002}}},
"rollout": {"items": 64, "costs": {"1": {"item_s": 0.003}}},
"actor":   {"items": 64, "costs": {"1": {"item_s": 0.01}}, "lockstep": true}},
"loops": [{"first": "env", "second": "rollout", "rounds": 8}],
"channels": [{"producer": "rollout", "consumer": "actor", "whole": true}]}
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rlinf.core.config import expect_at_least, expect_range, read
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.scheduler.planner.costs import LinearCost, Memory

FORMAT = "rlinf-profile-1"
_MAKE = "Make one: rlinf plan --profile TRACE --write FILE."


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of the run that is placed by itself."""

    items: float
    """Items of one training step, over all its processes."""
    costs: Mapping[int, LinearCost]
    """Devices of one process → the cost of a call by it. Sizes that are not here are not considered."""
    lockstep: bool = False
    """Its processes begin each call together, as those of a data-parallel trainer do."""
    memory: Memory = field(default_factory=Memory)
    offload: bool = True
    """Whether it can leave its devices to others while it does nothing; used only where memory is short."""
    load_s: float = 0.0
    """Seconds to come back to its devices."""
    offload_s: float = 0.0
    """Seconds to leave them."""
    leaves: bool = False
    """It leaves its devices after its share of each step and comes back for the next, whether or not memory is short."""
    length_sigma: float = 0.0
    """Items have lengths of a lognormal distribution of mean 1, with this standard deviation of the logarithm; 0: all alike."""
    longest: float = math.inf
    """Where lengths are cut, as a run's limit of response tokens does; 4 is four times the mean."""
    places: int = 0
    """Items that a process generates at a time; a free place is filled at once, which is continuous batching. On devices that it
    has for itself it goes on to the items of the next step, as far as `max_lag` allows. 0: all items of a process together."""
    in_order: bool = True
    """A step is done when its own items are; otherwise, with places, when as many have ended, of whichever step."""
    processes: tuple[int, ...] = ()
    """How many processes it may have; () for any number."""
    locks: bool = True
    """Its calls hold the lock of their devices. On virtual accelerators, which compute nothing, others wait for those only."""

    def __post_init__(self) -> None:
        for name in ("items", "load_s", "offload_s", "length_sigma"):
            expect_range(name, getattr(self, name), 0.0, open_high=True)
        expect_at_least("places", self.places, 0, "0 generates all items of a process together.")
        if not self.in_order and not self.places:
            raise ConfigError("in_order", "items end out of order with places only", "Set places, or leave it out.")
        expect_range("longest", self.longest, 0.0, open_low=True)
        if not self.costs or any(size < 1 for size in self.costs):
            raise ConfigError("costs", f"expected a cost for at least one number of devices, found {sorted(self.costs)}")

    @property
    def varies(self) -> bool:
        """Whether its items have lengths, or places."""
        return self.length_sigma > 0 or self.places > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Items that go from one component to another within a step."""

    producer: str
    consumer: str
    whole: bool = False
    """The consumer begins when all items of the step are there; otherwise with the first chunk."""
    bytes_per_item: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Two components that answer each other `rounds` times in a step, such as env and rollout. Items are cut into stages."""

    first: str
    second: str
    rounds: int
    singly: bool = False
    """The second answers each process of the first by itself, one after another; otherwise all of them in one call."""

    def __post_init__(self) -> None:
        expect_at_least("rounds", self.rounds, 1)

    def requests(self, first: int, second: int) -> int:
        """How many requests a process of the second answers one after another in a round, by how many processes both have."""
        return -(-first // second) if self.singly else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What it takes to move bytes."""

    latency_s: float = 0.0
    bytes_per_s: float = math.inf

    def seconds(self, size: float) -> float:
        """Of a transfer of that many bytes."""
        return (self.latency_s + size / self.bytes_per_s) if size else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step, and what its parts cost."""

    components: Mapping[str, Component]
    channels: tuple[Channel, ...] = ()
    loops: tuple[Loop, ...] = ()
    sync_s: float = 0.0
    """Seconds from the end of training to the new weights where items are made."""
    within_node: Route = field(default_factory=Route)
    between_nodes: Route = field(default_factory=Route)
    cores: int = 0
    """CPU cores that its costs were measured on, for virtual accelerators; 0: not known, or on real ones."""

    def __post_init__(self) -> None:
        expect_at_least("cores", self.cores, 0)
        names = list(self.components)
        looped: list[str] = []
        for at, (a, b) in enumerate(self._pairs()):
            for name in (a, b):
                if name not in self.components:
                    place = f"{'channels' if at < len(self.channels) else 'loops'}.{a} → {b}"
                    raise ConfigError(place, f"no component '{name}'", did_you_mean(name, names))
        for loop in self.loops:
            looped += [loop.first, loop.second]
            if self.components[loop.first].varies or self.components[loop.second].varies:
                raise ConfigError("loops", "items of a loop have no lengths", "Set length_sigma and places of its components to 0.")
        if len(looped) != len(set(looped)):
            raise ConfigError("loops", "a component is in two loops", "Name each once.")
        # Asked for its error: channels that go round in a circle.
        _ = self.order

    def _pairs(self) -> Iterator[tuple[str, str]]:
        yield from ((channel.producer, channel.consumer) for channel in self.channels)
        yield from ((loop.first, loop.second) for loop in self.loops)

    @property
    def order(self) -> tuple[str, ...]:
        """The components, producers before consumers; of a loop the first before the second.

        Raises:
            ConfigError: channels go round in a circle that is no loop.
        """
        unit = {name: name for name in self.components} | {loop.second: loop.first for loop in self.loops}
        feeds = {unit[name]: set[str]() for name in self.components}
        for channel in self.channels:
            a, b = unit[channel.producer], unit[channel.consumer]
            if a != b:
                feeds[b].add(a)
        done: list[str] = []
        while len(done) < len(feeds):
            ready = [name for name in feeds if name not in done and feeds[name] <= set(done)]
            if not ready:
                left = ", ".join(name for name in feeds if name not in done)
                raise ConfigError("channels", f"{left} wait for each other", "Write two that answer each other as a loop.")
            # One at a time, so that among those that are ready the order of the file decides.
            done.append(ready[0])
        second = {loop.first: loop.second for loop in self.loops}
        return tuple(name for head in done for name in (head, second.get(head)) if name is not None)

    @property
    def sources(self) -> tuple[str, ...]:
        """The components that begin a step: nobody feeds them; of a loop its first."""
        fed = {channel.consumer for channel in self.channels} | {loop.second for loop in self.loops}
        for loop in self.loops:
            # What the second takes in from outside, the first waits for, too.
            if any(c.consumer == loop.second and c.producer != loop.first for c in self.channels):
                fed.add(loop.first)
        return tuple(name for name in self.order if name not in fed)

    @property
    def sinks(self) -> tuple[str, ...]:
        """The components that end a step: they feed nobody."""
        feeding = {channel.producer for channel in self.channels}
        feeding |= {loop.first for loop in self.loops}
        feeding |= {loop.second for loop in self.loops if loop.first in {channel.producer for channel in self.channels}}
        return tuple(name for name in self.order if name not in feeding)

    def loop_of(self, name: str) -> Loop | None:
        """The loop that a component is in."""
        return next((loop for loop in self.loops if name in (loop.first, loop.second)), None)

    def measured_processes(self, name: str, parallel: int) -> tuple[int, int] | None:
        """With how many processes of that size a component was measured, at least and at most; None if that is not known."""
        component, loop = self.components[name], self.loop_of(name)
        cost = component.costs[parallel]
        if not cost.measured or not cost.measured[0]:
            return None
        calls = component.items / (1 if loop is None else loop.rounds)
        # How large a request is that is answered by itself says how many ask, and no more.
        singly = loop is not None and loop.singly and name == loop.second
        # The largest calls are those of the fewest processes.
        return 1 if singly else round(calls / cost.measured[-1]), round(calls / cost.measured[0])

    def replaced(self, name: str, **changes: Any) -> Workload:
        """The same with other fields of one component.

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.components:
            raise ConfigError(name, "no such component", did_you_mean(name, list(self.components)))
        changed = dataclasses.replace(self.components[name], **changes)
        return dataclasses.replace(self, components={**self.components, name: changed})

    def slowed(self, name: str, factor: float) -> Workload:
        """The same with one component `factor` times as slow."""
        costs = {size: cost.scaled(factor) for size, cost in self.components[name].costs.items()}
        return self.replaced(name, costs=costs)

    def write(self, path: str | Path) -> Path:
        """Writes it as JSON."""
        target = Path(path)
        target.write_text(json.dumps({"format": FORMAT, **_plain(self)}, indent=1) + "\n", encoding="utf-8")
        return target

    @classmethod
    def read(cls, path: str | Path) -> Workload:
        """The workload in a file.

        Raises:
            ConfigError: there is none, or it has a fault; one line for each.
        """
        place = f"profile '{path}'"
        try:
            document: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(place, f"can't be read: {error.strerror}", _MAKE) from None
        except ValueError as error:
            raise ConfigError(place, f"not JSON: {error}") from None
        # A profile that was written by hand need not name its format.
        if not isinstance(document, dict) or document.pop("format", FORMAT) != FORMAT:  # pyright: ignore[reportUnknownMemberType]
            raise ConfigError(place, f"not a profile of the format {FORMAT}", _MAKE)
        return cls.of(document, place=place)  # pyright: ignore[reportUnknownArgumentType]

    @classmethod
    def of(cls, document: Mapping[str, Any], *, place: str = "workload") -> Workload:
        """The workload that a mapping describes, as in a file.

        Raises:
            ConfigError: one line for each fault.
        """
        components = document.get("components")
        if not isinstance(components, Mapping) or not components:
            raise ConfigError(f"{place}.components", "expected at least one component", "Name each with its items and costs.")
        return read(cls, _whole_sizes(document, place), place=place)


def _whole_sizes(document: Mapping[str, Any], place: str) -> dict[str, Any]:
    """JSON has no numbers as keys.

    Raises:
        ConfigError: a key is none.
    """
    components = dict(cast("Mapping[str, Any]", document["components"]))
    for name, component in components.items():
        fields = cast("Mapping[str, Any]", component if isinstance(component, Mapping) else {})
        costs = fields.get("costs")
        if not isinstance(costs, Mapping):
            continue
        sizes = {str(size): cost for size, cost in cast("Mapping[Any, Any]", costs).items()}
        for size in sizes:
            if not size.isdecimal():
                remedy = 'Write "1": {...} for processes of one device.'
                raise ConfigError(f"{place}.components.{name}.costs", f"expected numbers of devices, found '{size}'", remedy)
        components[name] = {**fields, "costs": {int(size): cost for size, cost in sizes.items()}}
    return {**document, "components": components}


def _plain(value: Any) -> Any:
    """As JSON, without what is as it is by default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain: dict[str, Any] = {}
        for each in dataclasses.fields(value):
            inner = getattr(value, each.name)
            factory: Any = each.default_factory
            default: Any = each.default if factory is dataclasses.MISSING else factory()
            if inner != default:
                plain[each.name] = _plain(inner)
        return plain
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in cast("tuple[Any, ...]", value)]
    return value
