"""`Stream`: a component that goes on to the items of the next step while some of the last one are still under way."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from rlinf.scheduler.planner.layout import Layout
from rlinf.scheduler.planner.simulation.batching import ContinuousBatch, Floats, at_chunks
from rlinf.scheduler.planner.simulation.device_timelines import Call, Options, lengths
from rlinf.scheduler.planner.workload import Component, Workload


class Ended(NamedTuple):
    """A call, or one of its chunks, is done."""

    time: float
    call: Call
    chunk: int
    """-1: all of it."""


def streaming(workload: Workload, layout: Layout, offloaded: Collection[str], own: Collection[str], *, max_lag: int) -> list[str]:
    """The components that have places, and devices which they need not leave for others between two steps.

    Without lag there is none: no item of a step is begun before all of the last one are trained on.

    Args:
        workload: what a step consists of.
        layout: where its components are.
        offloaded: those that take turns, as together they do not fit.
        own: those that keep nobody from their devices, nor are kept.
        max_lag: weight versions that items may be behind.
    """
    found: list[str] = []
    if not max_lag:
        return found
    for name, component in workload.components.items():
        others = [other for other in layout if other != name and other not in own and layout[other].meets(layout[name])]
        alone = name in own or not others
        if component.places and alone and not (component.lockstep or component.leaves or name in offloaded):
            found.append(name)
    return found


class Stream:
    """The items of one such component; its calls end when the items do.

    Args:
        name: the component's.
        component: what it costs.
        parallel: devices of a process.
        slow: `[processes]`, how many times as long each takes.
        options: how the components work together.
        steps: how many there will be.
        whole: whether more is asked for than when steps end.
    """

    def __init__(
        self, name: str, component: Component, parallel: int, slow: Floats, options: Options, steps: int, *, whole: bool
    ) -> None:
        self._name, self._component, self._options = name, component, options
        self._items = max(1, round(component.items))
        most = -(-self._items // len(slow)) * steps
        # It is often enough to know when processes have all items of a step.
        self._each = options.chunks > 1 or not component.in_order
        places = min(component.places, most)
        self._batch = ContinuousBatch(component.costs[parallel], places, slow, items=whole or self._each)
        self._calls: list[Call] = []
        self._told: set[tuple[int, int]] = set()
        self._last = 0.0
        """When the last step that is done was."""
        self._next = 0
        """The first step that is not done."""
        self._first = 0
        """The first step of which an item may not have ended."""
        self.changes = 0
        """How often items came: what was foreseen before holds no longer."""

    def add(self, call: Call) -> None:
        """The items of a step may be begun."""
        self._batch.add(lengths(self._component, self._name, call.step, self._options.seed), call.ready)
        self._calls.append(call)
        self.changes += 1

    def foreseen(self) -> list[Ended]:
        """What will end, and when, unless items come; last first, and without what was told."""
        ended, last = list[Ended](), self._last
        done = self._batch.done(self._first * self._items) if self._each else None
        for at in range(self._next, len(self._calls)):
            # Steps are trained on in their order, although the items of a later one may end first.
            ended += [each._replace(time=max(last, each.time)) for each in self._ends(at, done)]
            last = ended[-1].time
        if done is not None:
            self._leave(done)
        left = [each for each in ended if (each.call.step, each.chunk) not in self._told]
        return sorted(left, key=lambda each: (-each.time, -each.call.step, -each.chunk))

    def _leave(self, done: Floats) -> None:
        """Looks no more at the first steps if all of their items have ended."""
        n, now, first = self._items, self._calls[-1].ready, self._first
        while self._first < self._next and done[(self._first - first) * n : (self._first - first + 1) * n].max() <= now:
            self._first += 1

    def tell(self, ended: Ended) -> None:
        """It has ended."""
        self._told.add((ended.call.step, ended.chunk))
        if ended.chunk == -1:
            self._last, self._next = ended.time, self._next + 1

    def _ends(self, at: int, done: Floats | None) -> Iterator[Ended]:
        call, n, chunks, first = self._calls[at], self._items, self._options.chunks, (at - self._first) * self._items
        if done is None:
            times = self._batch.span(at)[1].max(keepdims=True)
        elif self._component.in_order:
            times = at_chunks(done[first : first + n], n, chunks)
        else:
            times = at_chunks(done, n, chunks, first)
        for chunk, time in enumerate(times.tolist()):
            yield Ended(time, call, chunk)
        yield Ended(float(times[-1]), call, -1)

    def close(self) -> ContinuousBatch:
        """Writes into each call when its processes began and ended; returns the whole."""
        for at, call in enumerate(self._calls):
            call.starts, call.ends = self._batch.span(at)
        return self._batch

    def behind(self, published: Floats) -> list[int]:
        """By how many weight versions each item was behind when it was trained on; those that were begun with, as it began.

        Args:
            published: when each version was where items are made, the first at 0.
        """
        with_version = np.searchsorted(published, self._batch.began + 1e-12, side="right") - 1
        steps = np.repeat([call.step for call in self._calls], self._items)
        if not self._component.in_order:
            # As many as a step has are trained on as they end.
            order = np.argsort(np.argsort(self._batch.done(), kind="stable"), kind="stable")
            steps = np.asarray([call.step for call in self._calls])[order // self._items]
        return [int(each) for each in np.maximum(0, steps - with_version)]
