"""The command `rlinf trace`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.scheduler.trace.drawing import draw
from rlinf.scheduler.trace.flow import Flow


def trace(args: Sequence[str]) -> int:
    """Says where the time of a traced run went, or what is different in another one: `rlinf trace summary|diff TRACE [TRACE]`."""
    parser = argparse.ArgumentParser(prog="rlinf trace", description=trace.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, many in (("summary", 1), ("diff", 2)):
        commands.add_parser(name).add_argument("traces", nargs=many, help="a trace, or the folder of a traced run")
    asked = parser.parse_args(list(args))
    flows = [Flow.from_trace(_file(path)) for path in asked.traces]
    sys.stdout.write((flows[0].describe() if len(flows) == 1 else difference(*flows)) + "\n")
    return 0


def difference(before: Flow, after: Flow) -> str:
    """Methods whose calls work or wait for other times in the second run, those with the greatest change of work first."""
    olds = {f"{node.group}.{node.method}": node for node in before.nodes}
    news = {f"{node.group}.{node.method}": node for node in after.nodes}
    rows: list[tuple[float, tuple[str, str, str, str]]] = []
    for name in {**olds, **news}:
        old, new = olds.get(name), news.get(name)
        if old is None or new is None:
            only = old or news[name]
            rows.append((only.worked_s, (name, str(only.calls), "only before" if new is None else "only after", "")))
            continue
        work = _change(old.worked_mean_s, new.worked_mean_s)
        wait = _change(old.waited_mean_s, new.waited_mean_s)
        rows.append((abs(new.worked_s - old.worked_s), (name, f"{old.calls} → {new.calls}", work, wait)))
    rows.sort(key=lambda row: -row[0])
    return draw(("method", "calls", "work/call", "wait/call"), [row for _, row in rows])


def _change(before: float, after: float) -> str:
    share = f" ({after / before - 1:+.0%})" if before > 1e-6 else ""
    return f"{1000 * before:.2f} → {1000 * after:.2f} ms{share}"


def _file(path: str) -> Path:
    place = Path(path)
    return place / "trace.json" if (place / "trace.json").is_file() else place
