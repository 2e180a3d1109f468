"""A run as one file in the trace-event format of Chrome, which https://ui.perfetto.dev opens.

A process for each group, a thread for each rank, and an arrow from the put to the get of an item.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlinf.core.errors import RLinfError
from rlinf.scheduler.trace.reading import about, is_full, part_spans, parts
from rlinf.scheduler.trace.recorder import FORMAT, counted
from rlinf.scheduler.trace.spans import Span

ARROWS = 20_000
"""How many items of each process have an arrow, so that the file can be opened."""
THREADS = 1000
"""How many threads of one rank can be told apart."""


def merge(folder: str | Path, path: str | Path) -> Path:
    """Writes what the processes of a run recorded to one file; while they run, what they have written so far.

    Args:
        folder: where the processes write.
        path: the file; replaced if it exists.

    Raises:
        RLinfError: nothing was recorded there.
        OSError: the file can't be written; nothing is left of it.
    """
    found = parts(Path(folder))
    if not found:
        raise RLinfError(f"trace '{folder}'", "no process has recorded anything there")
    known = {
        "start_ns": min(part.start + part.shift for part in found),
        "started": datetime.fromtimestamp(found[0].wall / 1e9, tz=UTC).isoformat(),
        "full": [part.process for part in found if is_full(part)],
        **about(folder),
    }
    return write(path, (span for part in found for span in part_spans(part)), known)


def write(path: str | Path, recorded: Iterable[Span], known: Mapping[str, Any]) -> Path:
    """Writes spans to one file, whoever made them.

    Args:
        path: the file; replaced if it exists.
        recorded: the spans, in any order.
        known: what else is known of the run; `start_ns` is when it began, by the clock of the spans.

    Raises:
        OSError: the file can't be written; nothing is left of it.
    """
    events = _Events(known["start_ns"])
    target = Path(path)
    # Beside the target, so that it takes its place in one step, and with the process id, as others may write it, too.
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write('{"traceEvents": [')
            between = "\n"
            for event in (event for span in recorded for event in events.of(span)):
                file.write(between + json.dumps(event, separators=(",", ":")))
                between = ",\n"
            file.write(f'\n], "displayTimeUnit": "ms", "otherData": {json.dumps({"format": FORMAT, **known})}}}\n')
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return target


class _Events:
    """Trace events of spans, and those that name groups and ranks before the first of each."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._groups: dict[str, int] = {}
        self._threads: dict[tuple[str, int], int] = {}

    def of(self, span: Span) -> Iterator[dict[str, Any]]:
        """The events of one span."""
        if span.group not in self._groups:
            self._groups[span.group] = len(self._groups) + 1
            yield from self._named("process", self._groups[span.group], 0, span.group, self._groups[span.group])
        pid = self._groups[span.group]
        if (span.who, span.thread) not in self._threads:
            order = sum(who == span.who for who, _ in self._threads)
            tid = span.rank * THREADS + min(order, THREADS - 1)
            self._threads[span.who, span.thread] = tid
            yield from self._named("thread", pid, tid, f"rank {span.rank}" + (f", thread {order}" if order else ""), tid)
        tid = self._threads[span.who, span.thread]
        yield {
            "ph": "X",
            "cat": span.kind,
            "name": _title(span),
            "pid": pid,
            "tid": tid,
            "ts": self._at(span.start),
            "dur": (span.end - span.start) / 1000,
            "args": _args(span),
        }
        yield from self._item_arrows(span, pid, tid)

    def _named(self, kind: str, pid: int, tid: int, name: str, order: int) -> Iterator[dict[str, Any]]:
        yield {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": f"{kind}_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": order}}

    def _item_arrows(self, span: Span, pid: int, tid: int) -> Iterator[dict[str, Any]]:
        starts = span.kind in ("put", "send")
        for number in span.ids:
            if counted(number) >= ARROWS:
                continue
            # The number as text: viewers are written in JavaScript, whose numbers have 53 bits, and these have 63.
            arrow = {"cat": "item", "name": span.name or "message", "id": f"{number:x}", "pid": pid, "tid": tid}
            if starts:
                yield {"ph": "s", "ts": self._at(span.start), **arrow}
            else:
                # A nanosecond before its end, so that the arrow ends within the slice.
                yield {"ph": "f", "bp": "e", "ts": self._at(max(span.start, span.end - 1)), **arrow}

    def _at(self, time: int) -> float:
        # The format has microseconds.
        return (time - self._base) / 1000


def _title(span: Span) -> str:
    match span.kind:
        case "put" | "get":
            return f"{span.kind} {span.name}"
        case "send":
            return f"send {span.name} to {span.key}".replace("  ", " ")
        case "recv":
            return f"recv {span.name} from {span.key}".replace("  ", " ")
        case "lock":
            return f"wait for {span.name}"
        case _:
            return span.name


def _args(span: Span) -> dict[str, Any]:
    """What `reading` needs to have the span back; what is as always is left out."""
    args: dict[str, Any] = {"who": span.who, "name": span.name, "thread": span.thread}
    optional = {"key": span.key, "within": span.within, "waited": span.waited, "items": span.items, "bytes": span.bytes}
    optional["route"] = span.route
    args.update({name: value for name, value in optional.items() if value})
    if span.status != "ok":
        args["status"] = span.status
    if span.ids:
        args["ids"] = [f"{number:x}" for number in span.ids]
    return args
