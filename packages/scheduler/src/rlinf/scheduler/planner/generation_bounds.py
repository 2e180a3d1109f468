"""What a component whose items have lengths takes of a step at least, by the number of its processes."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rlinf.scheduler.planner.costs import LinearCost
from rlinf.scheduler.planner.simulation.batching import ContinuousBatch, Floats
from rlinf.scheduler.planner.simulation.device_timelines import Options, generated_alone, lengths, of_processes
from rlinf.scheduler.planner.workload import Component

LATEST = 32
"""Processes of a step that are followed to their end, as they seem to be those that end last."""
LONGEST = 4
"""Items of a step whose processes are looked at where there is no time for more."""


class GenerationBounds:
    """Lower bounds of one component.

    A process that generates items with places takes fixed_s · w + item_s · Σ L seconds, where w is how far it writes; and w is at
    least its longest item, and at least Σ L / places.

    Args:
        component: what it costs.
        name: its name, by which lengths are drawn.
        options: how the components work together.
        steps: how many are simulated.
    """

    def __init__(self, component: Component, name: str, options: Options, steps: int) -> None:
        self._component, self._name, self._options, self._count = component, name, options, steps
        self._waiting = range(0, steps, options.max_lag + 1)
        """The steps that wait for one another, of which the first has nothing before it."""

    @cached_property
    def _drawn(self) -> list[Floats]:
        return [lengths(self._component, self._name, step, self._options.seed) for step in range(self._count)]

    @cached_property
    def _mean(self) -> Floats:
        """`[items]`, over all steps: an item has the same process in each."""
        return sum(self._drawn[1:], self._drawn[0]) / self._count

    @cached_property
    def _sums(self) -> list[float]:
        return [float(self._drawn[step].sum()) for step in self._waiting]

    @cached_property
    def _longest(self) -> list[list[int]]:
        return [np.argsort(self._drawn[step])[-LONGEST:].tolist() for step in self._waiting]

    @property
    def _streams(self) -> bool:
        """Whether it may begin the items of a step beside those of the last one."""
        return self._component.places > 0 and self._options.max_lag > 0

    def ends(self, processes: int, parallel: int) -> tuple[float, float]:
        """When all items of a step are there: the mean over the steps that wait for each other, and that of the first.

        What other steps have in its places at the same time only holds up a step.
        """
        if not self._component.in_order and self._options.max_lag:
            # A step that is done with whichever items end first may have been begun long before its own.
            return 0.0, 0.0
        if self._streams:
            ends = self._last_ends(processes, self._component.costs[parallel])
        else:
            ends = [float(self._alone(step, processes, parallel).max()) for step in self._waiting]
        return float(np.mean(ends)), ends[0]

    def rows(self, processes: int, parallel: int, *, shared: bool) -> Floats:
        """`[processes]`, seconds of work in a step, the mean over all steps.

        Args:
            processes: how many there are.
            parallel: devices of each.
            shared: they leave their devices to others between two steps, and do not begin the next one early.
        """
        cost, places = self._component.costs[parallel], self._places(processes)
        if not self._streams:
            # Each step for itself, as the simulator plays it.
            return np.mean([self._alone(step, processes, parallel) for step in range(self._count)], axis=0)
        sums = of_processes(self._mean, processes).sum(axis=0)
        if not shared:
            return self._pace(processes, cost) * sums
        tables = [of_processes(drawn, processes) for drawn in self._drawn]
        written = sum(np.maximum(table.max(axis=0), table.sum(axis=0) / places) for table in tables)
        return cost.fixed_s * written / self._count + cost.item_s * sums

    def _alone(self, step: int, processes: int, parallel: int) -> Floats:
        """`[processes]`, seconds of the items of a step."""
        component, options = self._component, self._options
        if component.places:
            return generated_alone(component, self._name, parallel, step, options, processes)[0]
        cost, table = component.costs[parallel], of_processes(self._drawn[step], processes)
        return cost.fixed_s * table.max(axis=0) + cost.item_s * table.sum(axis=0)

    def _places(self, processes: int) -> int:
        """Of which a process can use the items of one step."""
        items = len(self._drawn[0])
        return min(self._component.places or items, -(-items // processes))

    def _pace(self, processes: int, cost: LinearCost) -> float:
        """Seconds of a mean length with as many items under way as there can be."""
        most = -(-len(self._drawn[0]) // processes) * (self._count if self._options.max_lag else 1)
        return cost.fixed_s / min(self._component.places, most) + cost.item_s

    def _last_ends(self, processes: int, cost: LinearCost) -> list[float]:
        """When the last of a few processes of each step ends, that begin at 0."""
        rows: list[Floats] = []
        places = self._places(processes)
        for step in self._waiting:
            table = of_processes(self._drawn[step], processes)
            if processes > LATEST:
                turn = np.arange(len(table))[:, None]
                begins = np.where(turn < places, 0.0, (np.cumsum(table, axis=0) - table) / places)
                late = cost.fixed_s * (begins + table).max(axis=0) + cost.item_s * table.sum(axis=0)
                table = table[:, np.argpartition(late, -LATEST)[-LATEST:]]
            rows.append(table)
        every: Floats = np.concatenate(rows, axis=1)
        count: int = every.shape[1]
        batch = ContinuousBatch(cost, places, np.ones(count), items=False)
        batch.add(every.reshape(-1), 0.0)
        return [float(ends.max()) for ends in np.split(batch.ends, len(rows))]

    def rough(self, processes: int, parallel: int) -> tuple[float, float, float]:
        """`ends` or less, and the mean of `rows` or less, without a look at every item."""
        component, cost = self._component, self._component.costs[parallel]
        if component.places:
            load_s = self._pace(processes, cost) * self._length / processes
        else:
            load_s = (cost.item_s / processes + cost.fixed_s / max(processes, len(self._drawn[0]))) * self._length
        if not component.in_order and self._options.max_lag:
            return 0.0, 0.0, load_s
        ends = [self._end_of(at, step, processes, cost) for at, step in enumerate(self._waiting)]
        return float(np.mean(ends)), ends[0], load_s

    @cached_property
    def _length(self) -> float:
        """Of all items of a step, the mean over all steps."""
        return float(self._mean.sum())

    def _end_of(self, at: int, step: int, processes: int, cost: LinearCost) -> float:
        """When the processes of the longest items of a step end, or one like all others."""
        drawn, places = self._drawn[step], self._places(processes)
        found = (cost.fixed_s / places + cost.item_s) * self._sums[at] / processes
        for item in self._longest[at]:
            own = float(drawn[item % processes :: processes].sum())
            found = max(found, cost.fixed_s * max(float(drawn[item]), own / places) + cost.item_s * own)
        return found
