"""`Stream`: a component that goes on to the items of the next step while some of the last one are still under way."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from rlinf.scheduler.planner.batching import ContinuousBatch, Floats, ends_of_chunks
from rlinf.scheduler.planner.device_timelines import Call, Options, lengths
from rlinf.scheduler.planner.layout import Layout
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
    """

    def __init__(self, name: str, component: Component, parallel: int, slow: Floats, options: Options, steps: int) -> None:
        self._name, self._component, self._options = name, component, options
        self._items = max(1, round(component.items))
        most = -(-self._items // len(slow)) * steps
        self._batch = ContinuousBatch(component.costs[parallel], min(component.places, most), slow)
        self._calls: list[Call] = []
        self._told: set[tuple[int, int]] = set()
        self.changes = 0
        """How often items came: what was foreseen before holds no longer."""

    def add(self, call: Call) -> None:
        """The items of a step may be begun."""
        self._batch.add(lengths(self._component, self._name, call.step, self._options.seed), call.ready)
        self._calls.append(call)
        self.changes += 1

    def foreseen(self) -> list[Ended]:
        """What will end, and when, unless items come; last first, and without what was told."""
        done = self._batch.forecast().done
        ended, last = list[Ended](), 0.0
        for at, call in enumerate(self._calls):
            # Steps are trained on in their order, although the items of a later one may end first.
            ended += [each._replace(time=max(last, each.time)) for each in self._ends(call, at, done)]
            last = ended[-1].time
        left = [each for each in ended if (each.call.step, each.chunk) not in self._told]
        return sorted(left, key=lambda each: (-each.time, -each.call.step, -each.chunk))

    def tell(self, ended: Ended) -> None:
        """It has ended."""
        self._told.add((ended.call.step, ended.chunk))

    def _ends(self, call: Call, at: int, done: Floats) -> Iterator[Ended]:
        n, chunks = self._items, self._options.chunks
        times = np.sort(self._own(at, done) if self._component.in_order else done)
        first = 0 if self._component.in_order else at * n
        for chunk, last in enumerate(ends_of_chunks(n, chunks, n)):
            yield Ended(float(times[first + last]), call, chunk)
        yield Ended(float(times[first + n - 1]), call, -1)

    def _own(self, at: int, of_items: Floats) -> Floats:
        return of_items[at * self._items : (at + 1) * self._items]

    def close(self) -> ContinuousBatch:
        """Writes into each call when its processes began and ended; returns the whole."""
        whole = self._batch.forecast()
        processes = len(whole.busy)
        for at, call in enumerate(self._calls):
            began, done = self._own(at, whole.began), self._own(at, whole.done)
            # Processes without an item do nothing.
            call.starts, call.ends = np.full(processes, call.ready), np.full(processes, call.ready)
            for process in range(min(processes, self._items)):
                call.starts[process], call.ends[process] = began[process::processes].min(), done[process::processes].max()
        return whole

    def behind(self, published: Floats) -> list[int]:
        """By how many weight versions each item was behind when it was trained on; those that were begun with, as it began.

        Args:
            published: when each version was where items are made, the first at 0.
        """
        whole = self._batch.forecast()
        with_version = np.searchsorted(published, whole.began + 1e-12, side="right") - 1
        steps = np.repeat([call.step for call in self._calls], self._items)
        if not self._component.in_order:
            # As many as a step has are trained on as they end.
            order = np.argsort(np.argsort(whole.done, kind="stable"), kind="stable")
            steps = np.asarray([call.step for call in self._calls])[order // self._items]
        return [int(each) for each in np.maximum(0, steps - with_version)]
