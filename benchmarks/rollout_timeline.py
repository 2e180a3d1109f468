"""Draws who simulated and who decided when: `uv run benchmarks/rollout_timeline.py TRACE … --out FILE.svg [--titles …]`.

Each TRACE is what a run writes with `cluster.tracer.enabled=true`. Of each the last rollout is drawn, on one scale, a line for each
env and rollout worker: their timers `simulate` and `decide`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rlinf.scheduler.trace import Span, spans

COLOURS = {"simulate": "#2458c5", "decide": "#d98a1b"}
WIDTH, LEFT, LINE, BAR, TOP = 900, 90, 26, 18, 30


def rollout_of(trace: Path) -> tuple[int, int, list[Span]]:
    """The last rollout of a trace: its start and its end in nanoseconds, and what was simulated and decided in it."""
    found = list(spans(trace))
    last = max((span for span in found if span.kind == "call" and span.name == "interact"), key=lambda span: span.start)
    timers = [span for span in found if span.kind == "timer" and span.name in COLOURS and span.start >= last.start]
    return min(span.start for span in timers), max(span.end for span in timers), timers


def panel(title: str, timers: Sequence[Span], start: int, scale: float, top: int) -> list[str]:
    """The lines of one rollout."""
    ends = max(span.end for span in timers)
    parts = [f'<text x="{LEFT}" y="{top + 16}" font-weight="bold">{escape(title)}: {(ends - start) / 1e6:.0f} ms</text>']
    for row, who in enumerate(sorted({span.who for span in timers})):
        y = top + TOP + row * LINE
        parts.append(f'<text x="8" y="{y + 13}">{escape(who)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{(ends - start) * scale:.1f}" height="{BAR}" fill="#ececec"/>')
        for span in timers:
            if span.who == who:
                x, width = LEFT + (span.start - start) * scale, (span.end - span.start) * scale
                parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[span.name]}"/>')
    return parts


def main() -> None:
    """Reads the traces and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--titles", nargs="+", default=[])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rollouts = [rollout_of(trace) for trace in given.traces]
    scale = (WIDTH - LEFT - 10) / max(end - start for start, end, _ in rollouts)
    parts, top = list[str](), 0
    for number, (start, _, timers) in enumerate(rollouts):
        title = given.titles[number] if number < len(given.titles) else given.traces[number].stem
        parts += panel(title, timers, start, scale, top)
        top += TOP + len({span.who for span in timers}) * LINE + 14
    for number, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * number
        parts.append(
            f'<rect x="{x}" y="{top}" width="14" height="14" fill="{colour}"/><text x="{x + 20}" y="{top + 12}">{name}</text>'
        )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 24}" font-family="sans-serif" font-size="13">'
    given.out.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
