"""Spans from the files of the processes of a run, or from a trace that was written of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rlinf.core.errors import ConfigError
from rlinf.scheduler.trace.recorder import FORMAT
from rlinf.scheduler.trace.spans import Span
from rlinf.scheduler.transport.transport import DRIVER

PLACEMENT = "placement"
"""Where a trace says which accelerators each rank of each group has."""
VIRTUAL_DEVICES = "virtual_devices"
"""Where a trace says that its accelerators are virtual ones."""
CORES = "cores"
"""Where it says how many CPU cores of a node they share."""
ABOUT = "about.json"
"""Where the driver writes this while the run goes on."""
RESIDENT = "resident"
"""The part of a worker's memory that is all its process takes of its host, at the most so far."""
STEP_ENDS = "step_ends_ns"
"""Where a predicted trace says when its steps end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The file of one process."""

    path: Path
    process: str
    start: int
    """When it began, by its own clock."""
    wall: int
    """The same as nanoseconds since 1970."""
    shift: int
    """What must be added to its times to have those of the driver; 0 for processes of the same machine."""


def parts(folder: Path) -> list[Part]:
    """The files in a folder, the driver's first. A file without a whole first line is left out."""
    headers: list[tuple[Path, dict[str, Any]]] = []
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as file, contextlib.suppress(ValueError):
            header = json.loads(file.readline())
            if header.get("format") == FORMAT:
                headers.append((path, header))
    # The driver's first: its clock is that of the trace.
    headers.sort(key=lambda pair: (pair[1]["process"] != DRIVER, pair[0].name))
    return [
        Part(
            path=path,
            process=header["process"],
            start=header["start"],
            wall=header["start"] + header["wall_offset"],
            # Processes of one machine share its monotonic clock; those of others are brought together by their wall clocks.
            shift=0 if header["host"] == headers[0][1]["host"] else header["wall_offset"] - headers[0][1]["wall_offset"],
        )
        for path, header in headers
    ]


def part_spans(part: Part) -> Iterator[Span]:
    """The spans of a process, in the order in which they ended; then its calls that did not end. A torn last line is left out."""
    open_calls: dict[str, list[tuple[str, int, int]]] = {}
    last = part.start
    with part.path.open(encoding="utf-8") as file:
        file.readline()
        for line in file:
            event = _event(line)
            if event is None:
                continue
            if event[0] in ("alive", "full"):
                last = max(last, event[1])
                continue
            if event[0] == "begin":
                _, who, thread, name, start = event
                open_calls.setdefault(who, []).append((name, thread, start))
                last = max(last, start)
                continue
            calls = open_calls.get(event[1], [])
            same = [call for call in calls if call[1] == event[2]] or calls[-1:]  # a thread that a call starts has none itself
            if event[0] == "call" and same:
                calls.remove(same.pop())
            last = max(last, event[6])
            yield _span(event, same[-1][0] if same else "", part.shift)
    for who, calls in open_calls.items():
        for name, thread, start in calls:
            begin, end = start + part.shift, last + part.shift
            yield Span(kind="call", who=who, thread=thread, name=name, start=begin, end=end, status="unfinished")


def is_full(part: Part) -> bool:
    """Whether the process stopped recording because its file became too long."""
    with part.path.open("rb") as file:
        file.seek(0, 2)
        # It is the last line: nothing is written after it.
        file.seek(max(0, file.tell() - 256))
        return b'["full"' in file.read()


def trace_file(path: str | Path) -> Path:
    """A trace, or that of a run whose folder is given."""
    place = Path(path)
    return place / "trace.json" if (place / "trace.json").is_file() else place


def spans(path: str | Path) -> Iterator[Span]:
    """The spans of a trace.

    Args:
        path: what the cluster wrote at its end, or the folder that a run which was killed left beside it.

    Raises:
        ConfigError: there is no trace.
    """
    place = Path(path)
    if place.is_dir():
        for part in parts(place):
            yield from part_spans(part)
    elif place.is_file():
        yield from _merged(place)
    else:
        raise ConfigError(f"trace '{place}'", "there is no such file", _what_is_left(place))


def about(path: str | Path) -> dict[str, Any]:
    """What a trace says of its run beside its spans: `PLACEMENT`, `VIRTUAL_DEVICES`, `CORES`, `STEP_ENDS`, each if it is known.

    Args:
        path: as for `spans`.
    """
    place = Path(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if place.is_dir():
            return json.loads((place / ABOUT).read_text(encoding="utf-8"))
        return json.loads(place.read_text(encoding="utf-8"))["otherData"]
    return {}


def _what_is_left(place: Path) -> str:
    left = sorted(place.parent.glob(f"{place.name}.*.parts"))
    if left:
        return f"The run did not come to its end; what its processes wrote is in '{left[-1]}', which can be read like a trace."
    return "Run with cluster.tracer.enabled=true."


def _merged(path: Path) -> Iterator[Span]:
    document: Any = None
    with contextlib.suppress(ValueError):
        document = json.loads(path.read_text(encoding="utf-8"))
    try:
        known = document["otherData"]["format"] == FORMAT
    except (KeyError, TypeError):
        known = False
    if not known:
        raise ConfigError(f"trace '{path}'", f"not a trace of the format {FORMAT}", "Give it what a cluster wrote.")
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            yield _merged_span(event)


def _merged_span(event: dict[str, Any]) -> Span:
    args: dict[str, Any] = dict(event["args"])
    args["ids"] = tuple(int(number, 16) for number in args.get("ids", ()))
    start = round(event["ts"] * 1000)
    return Span(kind=event["cat"], start=start, end=start + round(event["dur"] * 1000), **args)


def _event(line: str) -> list[Any] | None:
    if not line.endswith("\n"):
        return None
    try:
        return cast("list[Any]", json.loads(line))
    except ValueError:
        return None


def _span(event: list[Any], within: str, shift: int) -> Span:
    # A line ends with the route only if there is one.
    kind, who, thread, name, key, start, end, waited, items, size, failed, ids, *route = event
    return Span(
        kind=kind,
        who=who,
        thread=thread,
        name=name,
        key=key,
        within=within,
        start=start + shift,
        end=end + shift,
        waited=waited,
        items=items,
        bytes=size,
        status="failed" if failed else "ok",
        route=route[0] if route else "",
        ids=tuple(ids),
    )
