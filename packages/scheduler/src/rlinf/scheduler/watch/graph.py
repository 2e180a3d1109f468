"""`WaitGraph`: who waits for whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlinf.scheduler.ranks import format_ranks

LINES = 40
"""As many lines a description has; workers of one group that do the same share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """One worker, or the driver, and what it does."""

    who: str
    """`rollout[1]`, or `driver`."""
    method: str = ""
    """The call that it runs; "" outside of calls."""
    seconds: float = 0.0
    """For how long it runs the call."""
    goal: str = ""
    """What it waits for, as in `Wait`; "" if it runs."""
    place: str = ""
    """Where: `channel 'env', key 0`."""
    waited: float = 0.0
    """Seconds."""
    peers: tuple[str, ...] = ()
    """Who could end the wait, as far as is known."""
    note: str = ""
    """What more is known: `last put by env[0] 41 s ago`, or why it does not answer."""

    @property
    def waits(self) -> bool:
        """Whether it waits for something."""
        return bool(self.goal)

    def describe(self, name: str | None = None) -> str:
        """One line: `rollout[1] has waited 41 s for an item (channel 'env', key 0), in generate() for 42 s; …`."""
        name = self.who if name is None else name
        has = "have" if {"-", ","} & set(name.rpartition("[")[2]) else "has"
        if self.goal:
            within = f", in {self.method}() for {self.seconds:.0f} s" if self.method else ""
            note = f"; {self.note}" if self.note else ""
            what = f"{self.place} {self.goal[3:]}" if self.goal.startswith("it ") else f"{self.goal} ({self.place})"
            return f"{name} {has} waited {self.waited:.0f} s for {what}{within}{note}"
        if self.note:
            return f"{name} {self.note}"
        return f"{name} {has} been running {self.method}() for {self.seconds:.0f} s" if self.method else f"{name} is idle"


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """What every worker of a run and its driver did at one moment. `print(cluster.wait_graph())` shows it."""

    waiters: tuple[Waiter, ...]

    @property
    def edges(self) -> Mapping[str, frozenset[str]]:
        """Who waits for whom, as far as it is known."""
        found: dict[str, set[str]] = {}
        for waiter in self.waiters:
            if waiter.waits:
                found.setdefault(waiter.who, set()).update(waiter.peers)
        return {who: frozenset(peers) for who, peers in found.items()}

    def cycles(self) -> list[tuple[str, ...]]:
        """Cycles in which each waits for the next, each once, from its first member in alphabetical order."""
        edges = self.edges
        found: dict[frozenset[str], tuple[str, ...]] = {}
        for start in sorted(edges):
            path = _way_back(start, edges)
            if path:
                found.setdefault(frozenset(path), path)
        return list(found.values())

    def describe(self) -> str:
        """A line for each that waits, runs or does not answer, then the cycles."""
        lines = [f"  {line}" for line in merged(waiter for waiter in self.waiters if waiter.waits or waiter.method or waiter.note)]
        if len(lines) > LINES:
            lines[LINES:] = [f"  … and {len(lines) - LINES} more"]
        lines += [f"  a cycle: {' → '.join([*cycle, cycle[0]])}" for cycle in self.cycles()]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe() or "  nobody waits"


def merged(waiters: Iterable[Waiter]) -> list[str]:
    """The lines of waiters; ranks of one group whose lines are the same share one: `env[0-7] in …`."""
    lines: dict[tuple[str, str], tuple[Waiter, list[int]]] = {}
    for waiter in waiters:
        group, bracket, rank = waiter.who.rstrip("]").rpartition("[")
        # Lines without a rank, as the driver's, are never joined.
        key = (group, waiter.describe("")) if bracket else (waiter.who, str(len(lines)))
        lines.setdefault(key, (waiter, []))[1].append(int(rank) if bracket else 0)
    return [
        waiter.describe(f"{group}[{format_ranks(sorted(set(ranks)))}]" if "[" in waiter.who else None)
        for (group, _), (waiter, ranks) in lines.items()
    ]


def _way_back(start: str, edges: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The shortest way from a waiter back to itself; () if there is none."""
    paths: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    # The list grows while it is read, so that the search goes in breadth and the first way is the shortest.
    for path in paths:
        for peer in sorted(edges.get(path[-1], ())):
            if peer == start:
                return path
            if peer not in seen:
                seen.add(peer)
                paths.append((*path, peer))
    return ()
