"""The command `rlinf trace`."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rlinf.core.config.arguments import ArgumentParser
from rlinf.scheduler.trace.breakdown import Breakdown
from rlinf.scheduler.trace.drawing import draw
from rlinf.scheduler.trace.flow import Flow
from rlinf.scheduler.trace.page import write_page
from rlinf.scheduler.trace.reading import spans, trace_file

TRACE = "a trace, or the folder of a traced run"


def trace(args: Sequence[str]) -> int:
    """Says where the time of a traced run went: `rlinf trace summary|flow|diff|open TRACE …`."""
    parser = ArgumentParser(prog="rlinf trace", description=trace.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        "summary": "what each component did in a step, what it waited for, and the critical path",
        "flow": "each method's calls and costs, and the items between components",
        "diff": "the methods that work or wait for other times in a second run",
    }
    for name, text in helps.items():
        commands.add_parser(name, help=text).add_argument("traces", nargs=2 if name == "diff" else 1, help=TRACE)
    opening = commands.add_parser(
        "open", help="the timeline as one HTML file, opened in a browser; several traces, one below the other"
    )
    opening.add_argument("traces", nargs="+", help=f"{TRACE}; what `rlinf plan --trace` predicted, too")
    opening.add_argument("--html", metavar="FILE", help="where to write it; timeline.html beside the first trace if not given")
    opening.add_argument("--no-browser", action="store_true", help="only write the file")
    asked = parser.parse_args(list(args))
    paths = [trace_file(path) for path in asked.traces]
    if asked.command == "open":
        _open(paths, asked.html, browser=not asked.no_browser)
        return 0
    if asked.command == "summary":
        said = Breakdown.of(spans(paths[0]), source=paths[0]).describe()
    else:
        flows = [Flow.from_trace(path) for path in paths]
        said = flows[0].describe() if asked.command == "flow" else difference(*flows)
    sys.stdout.write(f"{said}\n")
    return 0


def _open(paths: Sequence[Path], html: str | None, *, browser: bool) -> None:
    target = Path(html) if html else (paths[0] if paths[0].is_dir() else paths[0].parent) / "timeline.html"
    written = write_page(paths, target)
    sys.stdout.write(f"timeline written to {written}\n")
    # Without a screen, Python would start a browser in the terminal.
    screen = sys.platform in ("darwin", "win32") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if browser and screen:
        webbrowser.open(written.resolve().as_uri())


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
    # A share of less than a microsecond says nothing.
    share = f" ({after / before - 1:+.0%})" if before > 1e-6 else ""
    return f"{1000 * before:.2f} → {1000 * after:.2f} ms{share}"
