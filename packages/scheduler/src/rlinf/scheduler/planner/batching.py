"""`ContinuousBatch`: processes that generate items with lengths, so many at a time; a free place is filled at once.

While n of its items are under way, a process needs fixed_s + item_s · n seconds for one mean length of each: what decoding steps
take that read the weights once, and the cache of each sequence. All go on at one pace, so that one number says how far they are.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from rlinf.scheduler.planner.costs import LinearCost

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ContinuousBatch:
    """The items of all steps so far on the processes of one component; item i of a step goes to process i mod processes.

    Args:
        cost: of one process.
        places: how many items it generates at a time.
        slow: `[processes]`, how many times as long each takes.
    """

    def __init__(self, cost: LinearCost, places: int, slow: Floats) -> None:
        processes = len(slow)
        self._fixed, self._item = cost.fixed_s * slow, cost.item_s * slow
        self._now = np.zeros(processes)
        self._written = np.zeros(processes)
        """How far each place has come since the beginning, in mean lengths."""
        self._ends = np.full((processes, places), np.inf)
        """At which of that the item in a place ends; ∞ where there is none."""
        self._who = np.zeros((processes, places), np.int64)
        self._running = np.zeros(processes, np.int64)
        self._queue = np.zeros((processes, 0), np.int64)
        self._head, self._tail = np.zeros(processes, np.int64), np.zeros(processes, np.int64)
        self._rows = np.arange(processes)
        self._lengths = np.zeros(0)
        self.began = np.zeros(0)
        """`[items]` of all steps, when each got its place."""
        self.done = np.zeros(0)
        """`[items]` of all steps, when each ended; ∞ if it has not."""
        self.busy = np.zeros(processes)
        """Seconds in which each process had anything under way."""

    def add(self, lengths: Floats, at: float | Floats) -> None:
        """The items of a step wait for places from then on.

        Args:
            lengths: `[items]`, relative to their mean.
            at: seconds, for all processes or for each; not before what was said last.
        """
        self.advance(at)
        processes, first = len(self._now), len(self._lengths)
        self._lengths = np.concatenate([self._lengths, lengths])
        self.began = np.concatenate([self.began, np.full(len(lengths), np.inf)])
        self.done = np.concatenate([self.done, np.full(len(lengths), np.inf)])
        most = -(-len(lengths) // processes)
        self._queue = np.concatenate([self._queue, np.zeros((processes, most), np.int64)], axis=1)
        for turn in range(most):
            own = self._rows[: max(0, min(processes, len(lengths) - turn * processes))]
            self._queue[own, self._tail[own]] = first + turn * processes + own
            self._tail[own] += 1
        self._fill()

    def _fill(self) -> None:
        """Gives free places to those that wait."""
        places = self._ends.shape[1]
        while True:
            rows = self._rows[(self._head < self._tail) & (self._running < places)]
            if not len(rows):
                return
            self._begin(rows, np.argmax(np.isinf(self._ends[rows]), axis=1))

    def _begin(self, rows: Ints, places: Ints) -> None:
        items = self._queue[rows, self._head[rows]]
        self._head[rows] += 1
        self._running[rows] += 1
        self._who[rows, places] = items
        self._ends[rows, places] = self._written[rows] + self._lengths[items]
        self.began[items] = self._now[rows]

    def advance(self, until: float | Floats = np.inf) -> None:
        """Generates until then, or until nothing is left."""
        until = np.broadcast_to(np.asarray(until, float), self._now.shape)
        rows = self._rows[(self._running > 0) & (self._now < until)]
        while len(rows):
            ends = self._ends[rows]
            places = ends.argmin(axis=1)
            marks = ends[np.arange(len(rows)), places]
            pace = self._fixed[rows] + self._item[rows] * self._running[rows]
            # Not before now, however it was rounded.
            times = self._now[rows] + np.maximum(0.0, marks - self._written[rows]) * pace
            late = times > until[rows]
            if late.any():
                cut = rows[late]
                spent = until[cut] - self._now[cut]
                self._written[cut] += spent / pace[late]
                self.busy[cut] += spent
                self._now[cut] = until[cut]
                rows, places, marks, times = rows[~late], places[~late], marks[~late], times[~late]
            self.busy[rows] += times - self._now[rows]
            self._now[rows], self._written[rows] = times, marks
            self.done[self._who[rows, places]] = times
            self._ends[rows, places] = np.inf
            self._running[rows] -= 1
            waits = self._head[rows] < self._tail[rows]
            self._begin(rows[waits], places[waits])
            rows = rows[(self._running[rows] > 0) & (self._now[rows] < until[rows])]
        finite = np.isfinite(until)
        # Who has nothing under way has been idle.
        self._now = np.where(finite, np.maximum(self._now, until), self._now)

    @property
    def ends(self) -> Floats:
        """`[processes]`, until when each was followed."""
        return self._now

    def forecast(self) -> ContinuousBatch:
        """The same when all of it is generated, if nothing is added."""
        ahead = deepcopy(self)
        ahead.advance()
        return ahead


def generated(cost: LinearCost, places: int, lengths: Floats, starts: Floats, slow: Floats, chunks: int) -> tuple[Floats, Floats]:
    """The items of one step, generated to their end by processes that have nothing else under way.

    Args:
        cost: of one process.
        places: how many items it generates at a time.
        lengths: `[items]`, relative to their mean.
        starts: `[processes]`, when each begins.
        slow: `[processes]`, how many times as long each takes.
        chunks: into how many parts the items are cut, in the order in which they end.

    Returns:
        `[processes]`, when each has its items; and `[chunks]`, when each chunk is full.
    """
    batch = ContinuousBatch(cost, min(places, -(-len(lengths) // len(starts))), slow)
    batch.add(lengths, starts)
    batch.advance()
    return batch.ends, np.sort(batch.done)[ends_of_chunks(len(lengths), chunks, len(lengths))]


def ends_of_chunks(items: int, chunks: int, there: int) -> list[int]:
    """Of `there` things in the order in which they end, the last of each chunk."""
    return [max(0, min(there, round(items * (chunk + 1) / chunks)) - 1) for chunk in range(chunks)]
