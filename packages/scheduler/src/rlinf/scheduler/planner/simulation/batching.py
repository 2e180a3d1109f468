"""`ContinuousBatch`: processes that generate items with lengths, so many at a time; a free place is filled at once.

While n of its items are under way, a process needs fixed_s + item_s · n seconds for one mean length of each: what decoding steps
take that read the weights once, and the cache of each sequence. All go on at one pace, so that one number says how far a process
has written. On that scale items do not slow each other: one that begins at w ends at w + its length, whatever comes later, and
places are a queue with several servers. The queue is followed once; what later items change is only how w becomes seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinf.scheduler.planner.costs import LinearCost

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class _Pace(NamedTuple):
    """How processes go on from some time on, unless items come."""

    at: Floats
    """`[processes]`, seconds."""
    written: Floats
    """`[processes]`, how far each is then, in mean lengths."""
    ends: Floats
    """`[processes, places]`, how far it is when it leaves each place for good, ascending; `written` of places that are free."""
    seconds: Floats
    """`[processes, places]`, when that is."""
    paces: Floats
    """`[processes, places]`, seconds of a mean length until then, since the place before."""

    @classmethod
    def of(cls, at: Floats, written: Floats, free: Floats, fixed: Floats, item: Floats) -> _Pace:
        """As many places as are not left are under way."""
        ends = np.sort(free, axis=1)
        running: Floats = np.arange(float(ends.shape[1]), 0.0, -1.0)
        paces = fixed[:, None] + item[:, None] * running
        seconds = at[:, None] + np.cumsum(np.diff(ends, axis=1, prepend=written[:, None]) * paces, axis=1)
        return cls(at, written, ends, seconds, paces)

    def written_at(self, time: Floats) -> Floats:
        """How far each process is; one that has nothing left does not go on."""
        left = (self.seconds <= time[:, None]).sum(axis=1)
        idle = left == self.ends.shape[1]
        left = left - idle
        written, seconds, pace = self._before(left)
        # Both a pace of nothing and places that are free have been left by then.
        since = (time - seconds) / np.where(pace > 0, pace, 1.0)
        return np.where(idle, self.ends[:, -1], np.minimum(written + since, self.ends[np.arange(len(left)), left]))

    def seconds_of(self, written: Floats) -> Floats:
        """`[processes]`, when each is so far."""
        left = np.minimum((self.ends < written[:, None]).sum(axis=1), self.ends.shape[1] - 1)
        before, seconds, pace = self._before(left)
        return seconds + (written - before) * pace

    def _before(self, left: Ints) -> tuple[Floats, Floats, Floats]:
        """How far it was and when, when it had left so many places, and the pace from there."""
        rows, first, last = np.arange(len(left)), left == 0, left - 1
        written = np.where(first, self.written, self.ends[rows, last])
        return written, np.where(first, self.at, self.seconds[rows, last]), self.paces[rows, left]


class ContinuousBatch:
    """The items of all steps so far on the processes of one component; item i of a step goes to process i mod processes.

    Every time is that if nothing more is added.

    Args:
        cost: of one process.
        places: how many items it generates at a time.
        slow: `[processes]`, how many times as long each takes.
        items: whether the times of each item are asked for.
    """

    def __init__(self, cost: LinearCost, places: int, slow: Floats, *, items: bool = True) -> None:
        self._fixed, self._item = cost.fixed_s * slow, cost.item_s * slow
        none = np.zeros(len(slow))
        self._free = np.zeros((len(slow), places))
        """How far each process is when it leaves a place."""
        self._pace = _Pace.of(none, none, self._free, self._fixed, self._item)
        self._busy = np.zeros(len(slow))
        self._spans: list[tuple[Floats, Floats, Floats]] = []
        """Of each step, when each process begins, how far it is at its end, and when that is; NaN if it may change."""
        self._who = np.full(self._free.shape, -1) if items else None
        """Which item has a place, and will be the last there; -1: none, or it has ended."""
        self._count = 0
        self._began, self._done = np.zeros(0), np.zeros(0)
        """`[items]` of all steps, and room for more; NaN where the end may change."""

    def add(self, lengths: Floats, at: float | Floats) -> None:
        """The items of a step wait for places from then on.

        Args:
            lengths: `[items]`, relative to their mean.
            at: seconds, for all processes or for each; not before what was said last.
        """
        before = self._pace
        now = np.maximum(before.at, at)
        written = before.written_at(now)
        self._settle(written)
        self._busy += np.minimum(now, before.seconds[:, -1]) - before.at
        np.maximum(self._free, written[:, None], out=self._free)
        # Who waits for a place does so while all places are taken.
        full = self._fixed + self._item * self._free.shape[1]
        begins, ends, replaced = self._follow(lengths, written)
        self._pace = _Pace.of(now, written, self._free, self._fixed, self._item)
        self._spans.append((now + (begins[0] - written) * full, ends.max(axis=0), np.full(len(now), np.nan)))
        if self._who is not None:
            first, self._count = self._count, self._count + len(lengths)
            if self._count > len(self._done):
                room = np.full(self._count, np.nan)
                self._began, self._done = np.concatenate([self._began, room]), np.concatenate([self._done, room])
            began = (now + (begins - written) * full).reshape(-1)
            self._began[first : self._count] = began[: len(lengths)]
            # And whoever had that place ends then.
            self._done[replaced[replaced >= 0]] = began[replaced.reshape(-1) >= 0]

    def _settle(self, written: Floats) -> None:
        """What ends until then ends as it was foreseen."""
        for step, (begins, ends, seconds) in enumerate(self._spans):
            if (ahead := np.isnan(seconds)).any():
                known = np.where(ahead & (ends <= written), self._pace.seconds_of(ends), seconds)
                self._spans[step] = (begins, ends, known)
        if self._who is not None:
            ended = (self._who >= 0) & (self._free <= written[:, None])
            self._done[self._who[ended]] = self._leaves()[ended]
            self._who[ended] = -1

    def _leaves(self) -> Floats:
        """`[processes, places]`, when it leaves each place."""
        found = np.empty_like(self._free)
        np.put_along_axis(found, np.argsort(self._free, axis=1), self._pace.seconds, axis=1)
        return found

    def _follow(self, lengths: Floats, written: Floats) -> tuple[Floats, Floats, Ints]:
        """`[most items, processes]`, how far a process is when each item begins and ends, and which one leaves its place for it.

        Where there is no item, it begins and ends at once.
        """
        processes = len(written)
        most = -(-len(lengths) // processes)
        begins, ends = np.empty((most, processes)), np.empty((most, processes))
        replaced = np.full((most, processes) if self._who is not None else (0, 0), -1)
        free, rows = self._free.reshape(-1), np.arange(processes) * self._free.shape[1]
        who = None if self._who is None else self._who.reshape(-1)
        for turn in range(most):
            own = lengths[turn * processes : (turn + 1) * processes]
            here = len(own)
            places = rows[:here] + self._free[:here].argmin(axis=1)
            begin, end = begins[turn, :here], ends[turn, :here]
            begin[:] = free[places]
            np.add(begin, own, out=end)
            free[places] = end
            begins[turn, here:] = ends[turn, here:] = written[here:]
            if who is not None:
                replaced[turn, :here] = who[places]
                who[places] = self._count + turn * processes + np.arange(here)
        return begins, ends, replaced

    @property
    def began(self) -> Floats:
        """`[items]` of all steps, when each got its place."""
        return self._began[: self._count]

    def done(self, first: int = 0) -> Floats:
        """`[items]` of all steps from the `first` item on, when each ends."""
        found = self._done[first : self._count].copy()
        if self._who is not None:
            taken = self._who >= first
            found[self._who[taken] - first] = self._leaves()[taken]
        return found

    def span(self, step: int) -> tuple[Floats, Floats]:
        """`[processes]`, when each begins the items of a step, and when it has all of them; one without an item at once."""
        begins, ends, seconds = self._spans[step]
        ahead = np.isnan(seconds)
        return begins, np.where(ahead, self._pace.seconds_of(ends), seconds) if ahead.any() else seconds

    @property
    def busy(self) -> Floats:
        """`[processes]`, seconds in which each has anything under way."""
        return self._busy + self.ends - self._pace.at

    @property
    def ends(self) -> Floats:
        """`[processes]`, when each has nothing left."""
        return self._pace.seconds[:, -1]


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
    batch = ContinuousBatch(cost, min(places, -(-len(lengths) // len(starts))), slow, items=chunks > 1)
    batch.add(lengths, starts)
    if chunks == 1:
        return batch.ends, batch.ends[: len(lengths)].max(keepdims=True)
    return batch.ends, at_chunks(batch.done(), len(lengths), chunks)


def at_chunks(done: Floats, items: int, chunks: int, first: int = 0) -> Floats:
    """`[chunks]`, when each chunk of some items is full.

    Args:
        done: when things end, in any order.
        items: how many of them are cut into chunks.
        chunks: how many.
        first: from which on, in the order in which they end.
    """
    last = [first + each for each in ends_of_chunks(items, chunks, len(done) - first)]
    return np.partition(done, last)[last]


def ends_of_chunks(items: int, chunks: int, there: int) -> list[int]:
    """Of `there` things in the order in which they end, the last of each chunk."""
    return [max(0, min(there, round(items * (chunk + 1) / chunks)) - 1) for chunk in range(chunks)]
