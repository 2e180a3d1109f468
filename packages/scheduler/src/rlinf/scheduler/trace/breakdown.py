"""Where the time of a step went: what each component did in it, and the critical path through it.

Both look at whole steps, from the end of one to the end of the next (`Steps`). At each instant a rank works, waits for something,
or is not called. What it waits for is named: the items of another component and the channel that brings them (in a loop of two
components this is the pipelining bubble), room in a channel, or a device.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rlinf.scheduler.trace.drawing import draw
from rlinf.scheduler.trace.flow import SECOND
from rlinf.scheduler.trace.spans import Span
from rlinf.scheduler.trace.steps import Steps

WORKS, UNCALLED = "works", "is not called"
BETWEEN = "between calls"
"""On the critical path: nobody who is on it was called, as the driver had not called yet, or a call was on its way."""
LEAST = 0.005
"""The share of a step below which the tables leave something out."""
THREADS = 8
"""How many calls of one rank may run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a component did for a part of a step."""

    group: str
    doing: str
    """`works`, `is not called`, or what it waited for, such as `waits for rollout (channel answers)`."""
    seconds: float
    """In a step, the mean over steps and ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPart:
    """A part of the critical path."""

    what: str
    """A method, `env → actor (channel rows)`, or `between calls`."""
    seconds: float
    """In a step, the mean over steps."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of a run's steps went."""

    step_s: tuple[float, ...]
    shares: tuple[Share, ...]
    """By component, the longest first."""
    path: tuple[PathPart, ...]
    """What the end of a step waited for, back to the end of the one before; the longest first. The seconds add up to a step."""

    @classmethod
    def of(cls, recorded: Iterable[Span], *, source: str | Path) -> Breakdown:
        """What spans say.

        Args:
            recorded: the spans of a run.
            source: its trace.

        Raises:
            RLinfError: the run has fewer than three steps.
        """
        every = [span for span in recorded if span.status == "ok"]
        steps = Steps.find(every, source=source)
        puts = {number: span for span in every if span.kind in ("put", "send") for number in span.ids}
        ranks = _ranks(every, puts)
        shares: dict[tuple[str, str], float] = {}
        for who, rank in ranks.items():
            group = who.rpartition("[")[0]
            peers = sum(other.rpartition("[")[0] == group for other in ranks)
            for doing, nanoseconds in rank.shares(steps.ends[0], steps.ends[-1]).items():
                key = (group, doing)
                shares[key] = shares.get(key, 0.0) + nanoseconds / SECOND / peers / len(steps.seconds)
        parts: dict[str, float] = {}
        for what, nanoseconds in _Path(ranks, puts).back(steps):
            parts[what] = parts.get(what, 0.0) + nanoseconds / SECOND / len(steps.seconds)
        return cls(
            steps.seconds,
            tuple(Share(group=g, doing=d, seconds=s) for (g, d), s in sorted(shares.items(), key=lambda i: (i[0][0], -i[1]))),
            tuple(PathPart(what=what, seconds=s) for what, s in sorted(parts.items(), key=lambda item: -item[1])),
        )

    def describe(self) -> str:
        """Two tables: the components, and the critical path."""
        step = sum(self.step_s) / len(self.step_s)
        head = f"{len(self.step_s)} steps after the first: {step:.3f} s each ({min(self.step_s):.3f} to {max(self.step_s):.3f} s)"
        shares = [
            (share.group, share.doing, *_seconds(share.seconds, step)) for share in self.shares if share.seconds >= LEAST * step
        ]
        parts = [(part.what, *_seconds(part.seconds, step)) for part in self.path if part.seconds >= LEAST * step]
        parts.append(("all else", *_seconds(sum(part.seconds for part in self.path if part.seconds < LEAST * step), step)))
        tables = draw(("component", "", "a step", "share"), shares), draw(("critical path", "a step", "share"), parts)
        return "\n\n".join((head, *tables))


@dataclass(frozen=True, slots=True)
class _Wait:
    """A part of a rank's time in which it waited; `span` says for what."""

    start: int
    end: int
    span: Span
    doing: str


@dataclass(frozen=True, slots=True)
class _Rank:
    """The calls and the waits of one rank, each sorted by the ends of their spans."""

    calls: tuple[Span, ...]
    waits: tuple[_Wait, ...]

    def shares(self, start: int, end: int) -> dict[str, int]:
        """Nanoseconds of each thing that it did between two times."""
        busy = _union((max(call.start, start), min(call.end, end)) for call in self.calls)
        found = {UNCALLED: (end - start) - sum(stop - begin for begin, stop in busy)}
        at = start
        for wait in sorted(self.waits, key=lambda wait: wait.start):
            # Two threads may wait at once: that time counts once.
            inside = _inside(max(wait.start, at), min(wait.end, end), busy)
            at = max(at, wait.end)
            if inside:
                found[wait.doing] = found.get(wait.doing, 0) + inside
        return {WORKS: (end - start) - sum(found.values())} | {doing: time for doing, time in found.items() if time > 0}

    def call_at(self, at: int) -> Span | None:
        """The call that it was in just before a time; of several, the one that began last."""
        following = self.calls[bisect_left(self.calls, at, key=_end) :][:THREADS]
        return max((call for call in following if call.start < at), key=lambda call: call.start, default=None)

    def wait_before(self, at: int) -> _Wait | None:
        """The last wait that was over at a time."""
        found = bisect_right(self.waits, at, key=lambda wait: wait.span.end)
        return self.waits[found - 1] if found else None


class _Path:
    """The critical path, followed back from the end of a step."""

    def __init__(self, ranks: dict[str, _Rank], puts: Mapping[int, Span]) -> None:
        self._ranks, self._puts = ranks, puts
        self._calls = sorted((call for rank in ranks.values() for call in rank.calls), key=_end)

    def back(self, steps: Steps) -> list[tuple[str, int]]:
        """What was on the path of all steps, and for how long."""
        found: list[tuple[str, int]] = []
        for start, end in pairwise(steps.ends):
            last = self._last(end)
            who = next(iter(self._ranks)) if last is None else last.who
            at = end
            while at > start:
                what, who, before = self._before(who, at)
                # Times of one instant would go round for ever.
                before = max(start, min(before, at - 1))
                found.append((what, at - before))
                at = before
        return found

    def _before(self, who: str, at: int) -> tuple[str, str, int]:
        """What `who` did until `at`, who held it up before, and since when."""
        rank = self._ranks[who]
        call = rank.call_at(at)
        if call is None:
            # The driver called when the call that ended last had ended.
            last = self._last(at)
            return (BETWEEN, who, 0) if last is None else (BETWEEN, last.who, last.end)
        wait = rank.wait_before(at)
        if wait is None or wait.start < call.start:
            return f"{call.group}.{call.name}", who, call.start
        if wait.span.end < at:
            return f"{call.group}.{call.name}", who, wait.span.end
        return self._held_up(who, wait)

    def _held_up(self, who: str, wait: _Wait) -> tuple[str, str, int]:
        """The process that ended a wait."""
        if wait.span.kind in ("get", "recv"):
            puts = [self._puts[number] for number in wait.span.ids if number in self._puts]
            put = max(puts, key=lambda span: span.end, default=None)
            if put is not None and put.who in self._ranks and put.start <= wait.end:
                kind = "channel" if wait.span.kind == "get" else "message"
                return f"{put.group} → {wait.span.group} ({kind} {wait.span.name})", put.who, put.start
        if wait.span.kind == "lock":
            last = self._last(wait.end, but=who)
            if last is not None and last.end > wait.start:
                return f"{wait.span.name} is handed to {wait.span.group}", last.who, last.end
        return f"{wait.span.group} {wait.doing}", who, wait.start

    def _last(self, at: int, *, but: str = "") -> Span | None:
        """The call that ended last, at a time or before it."""
        for call in reversed(self._calls[: bisect_right(self._calls, at, key=_end)]):
            if call.who != but:
                return call
        return None


def _ranks(every: Sequence[Span], puts: Mapping[int, Span]) -> dict[str, _Rank]:
    calls: dict[str, list[Span]] = {}
    waits: dict[str, list[_Wait]] = {}
    for span in every:
        if "[" not in span.who:
            continue
        if span.kind == "call":
            calls.setdefault(span.who, []).append(span)
        elif span.kind != "timer" and span.waited:
            waits.setdefault(span.who, []).append(_wait(span, puts))
    return {
        who: _Rank(
            tuple(sorted(found, key=_end)),
            tuple(sorted(waits.get(who, []), key=lambda wait: wait.span.end)),
        )
        for who, found in sorted(calls.items())
    }


def _wait(span: Span, puts: Mapping[int, Span]) -> _Wait:
    if span.kind in ("get", "recv"):
        makes = sorted({puts[number].group for number in span.ids if number in puts})
        via = f"channel {span.name}" if span.kind == "get" else f"message {span.name}"
        # What follows the wait is unpacking, which is work.
        return _Wait(span.start, span.start + span.waited, span, f"waits for {', '.join(makes) or 'somebody'} ({via.strip()})")
    if span.kind == "lock":
        return _Wait(span.start, span.end, span, f"waits for {span.name}")
    return _Wait(span.end - span.waited, span.end, span, f"waits for room ({span.name or span.key})")


def _seconds(seconds: float, step: float) -> tuple[str, str]:
    return f"{seconds:.3f} s", f"{seconds / step:.0%}"


def _end(span: Span) -> int:
    return span.end


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _inside(start: int, end: int, busy: Sequence[tuple[int, int]]) -> int:
    """How much of an interval is in others, which are sorted and apart."""
    found = 0
    for begin, stop in busy[bisect_right(busy, start, key=lambda interval: interval[1]) :]:
        if begin >= end:
            break
        found += min(end, stop) - max(start, begin)
    return max(0, found)
