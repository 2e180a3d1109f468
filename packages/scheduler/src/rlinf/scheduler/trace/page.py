"""A timeline of one or several runs as one HTML file that needs nothing else: `rlinf trace open`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.scheduler.trace.breakdown import Breakdown
from rlinf.scheduler.trace.reading import spans, trace_file
from rlinf.scheduler.trace.spans import Span
from rlinf.scheduler.trace.steps import Steps

MOST = 200_000
"""How many spans of a run are shown, so that a browser can draw them; the shortest are left out."""
_WORKS, _WAITS, _LOCKED, _TIMER = range(4)


def write_page(paths: Sequence[str | Path], target: str | Path) -> Path:
    """Writes the timelines of runs, one below the other; time 0 is where the first step of each ended, or where it began.

    Args:
        paths: traces, measured or predicted, or folders of traced runs.
        target: the file; replaced if it exists.

    Raises:
        ConfigError: there is no trace.
        OSError: the file can't be written.
    """
    template = files("rlinf.scheduler.trace").joinpath("timeline.html").read_text(encoding="utf-8")
    # "</script>" in a name would end the element that holds the data.
    data = json.dumps([_run(trace_file(path)) for path in paths], separators=(",", ":")).replace("<", "\\u003c")
    place = Path(target)
    place.write_text(template.replace("@DATA@", data), encoding="utf-8")
    return place


def _run(path: Path) -> dict[str, Any]:
    every = [span for span in spans(path) if "[" in span.who]
    if not every:
        raise ConfigError(f"trace '{path}'", "no worker was called in it")
    steps, said = _steps(every, path)
    begin = steps[0] if steps else min(span.start for span in every)
    shown = sorted(every, key=lambda span: span.start - span.end)[:MOST]
    names = sorted({_name(span) for span in shown})
    number = {name: at for at, name in enumerate(names)}
    first = _first(every)
    rows = sorted(first, key=lambda who: first[who])
    row = {who: at for at, who in enumerate(rows)}
    # Longer spans first: what is inside them is drawn over them.
    found = [
        [row[s.who], _us(s.start - begin), _us(s.end - s.start), _kind(s), number[_name(s)], _us(s.waited)]
        for s in shown
        if s.kind in ("call", "timer", "lock") or s.waited
    ]
    left_out = f"\n{len(every) - len(shown)} short spans are left out of the picture." if len(every) > len(shown) else ""
    return {
        "title": str(path),
        "said": said + left_out,
        "start": _us(min(span.start for span in every) - begin),
        "end": _us(max(span.end for span in every) - begin),
        "steps": [_us(end - begin) for end in steps],
        "rows": rows,
        "names": names,
        "spans": found,
    }


def _steps(every: Sequence[Span], path: Path) -> tuple[tuple[int, ...], str]:
    try:
        return Steps.find(every, source=path).ends, Breakdown.of(every, source=path).describe()
    except RLinfError as error:
        return (), str(error)


def _first(every: Sequence[Span]) -> dict[str, tuple[int, str, int]]:
    """Components in the order of their first calls, and their ranks in order."""
    groups: dict[str, int] = {}
    for span in every:
        groups[span.group] = min(groups.get(span.group, span.start), span.start)
    return {span.who: (groups[span.group], span.group, span.rank) for span in every}


def _kind(span: Span) -> int:
    return {"call": _WORKS, "timer": _TIMER, "lock": _LOCKED}.get(span.kind, _WAITS)


def _name(span: Span) -> str:
    return span.name if span.kind in ("call", "timer") else f"{span.kind} {span.name or span.key}"


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000
