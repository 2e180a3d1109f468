"""What happens next in a simulation, and who waits for whom."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlinf.scheduler.planner.simulation.device_timelines import Call

CALL, ENDED, FORESEE = range(3)
"""A call is ready; one of a stream has ended; what a stream will do is to be foreseen. At one time in this order."""


class Event(NamedTuple):
    """What happens to a call, or to a stream."""

    time: float
    kind: int
    step: int
    order: int
    number: int
    """Of a call; of a stream how often it had changed."""
    component: str


class Queue:
    """What happens next; in the order of time, and of the workload among those that happen at once."""

    def __init__(self, calls: Sequence[Call], order: Mapping[str, int]) -> None:
        self._order = order
        self._numbers = {id(call): at for at, call in enumerate(calls)}
        self._heap: list[Event] = []
        for call in calls:
            if not call.waits:
                self._ready(call)

    def pop(self) -> Event | None:
        """The next event in time; None if there is no other."""
        return heapq.heappop(self._heap) if self._heap else None

    def push(self, time: float, kind: int, name: str, number: int) -> None:
        """Remembers what happens then."""
        heapq.heappush(self._heap, Event(time, kind, 0, self._order[name], number, name))

    def ended(self, call: Call, chunk: int, time: float) -> None:
        """Those that waited for nothing else are ready."""
        for other, seconds, wanted in call.next:
            if wanted == chunk:
                other.ready = max(other.ready, time + seconds)
                other.waits -= 1
                if not other.waits:
                    self._ready(other)

    def _ready(self, call: Call) -> None:
        name = call.component
        heapq.heappush(self._heap, Event(call.ready, CALL, call.step, self._order[name], self._numbers[id(call)], name))


def after(first: Call, second: Call, seconds: float = 0.0, chunk: int = -1) -> None:
    """The second is ready so many seconds after the first, or a chunk of it, has ended."""
    first.next.append((second, seconds, chunk))
    second.waits += 1


def join(firsts: Sequence[Call], seconds: Sequence[Call], transfer_s: float = 0.0, chunk: int = -1) -> None:
    """Each of the second ones waits for all of the first ones."""
    for first in firsts:
        for second in seconds:
            after(first, second, transfer_s, chunk)
