"""A scalar over the course of one or several runs, drawn as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rlinf.runners.reporting.report.measured_run import Points

WIDTH, HEIGHT = 340, 180
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 24, 24
MOST = 300
"""How many points of a run are drawn; more are averaged, as a screen has no place for them."""
COLOURS = ("#2458c5", "#d24a3a", "#3a9a5b", "#8a5cc2", "#c98a1b", "#4a4a4a")


def panel(title: str, lines: Sequence[Points], *, axis: str) -> str:
    """One picture with a line for each run, in the order of `COLOURS`.

    Args:
        title: of the picture.
        lines: the points of each run, from left to right; those of a run may be none.
        axis: what is along the picture, for the text that a point shows.
    """
    lines = [_fewer(points) for points in lines]
    xs, ys = ([point[side] for points in lines for point in points] for side in (0, 1))
    (left, right), up = _spread(min(0.0, *xs), max(xs)), _ticks(*_spread(min(ys), max(ys)))
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        share_x = (x - left) / (right - left)
        share_y = (y - up[0]) / (up[-1] - up[0])
        return round(LEFT + share_x * plot_width, 1), round(TOP + (1 - share_y) * plot_height, 1)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><text class="title" x="4" y="14">{escape(title)}</text>']
    for tick in up:
        _, y = at(left, tick)
        parts.append(
            f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/><text class="up" x="{LEFT - 5}" y="{y + 3}">{short(tick)}</text>'
        )
    for tick in _ticks(left, right):
        if not left <= tick <= right:
            continue
        x, _ = at(tick, up[0])
        parts.append(f'<text class="across" x="{x}" y="{HEIGHT - 8}">{short(tick)}</text>')
    for points, colour in zip(lines, _colours(len(lines)), strict=True):
        places = [at(*point) for point in points]
        if len(places) > 1:
            parts.append(f'<polyline stroke="{colour}" points="{" ".join(f"{x},{y}" for x, y in places)}"/>')
        for (x, y), point in zip(places, points, strict=True):
            told = f"{short(point[1])} at {axis} {short(point[0])}"
            # Few points are seen as such; of many, each only answers to the pointer.
            radius, opacity = ("2.4", "") if len(points) <= 30 else ("4", ' opacity="0"')
            parts.append(f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colour}"{opacity}><title>{told}</title></circle>')
    return "".join([*parts, "</svg>"])


def legend(names: Sequence[str]) -> str:
    """The colour of each run."""
    coloured = zip(names, _colours(len(names)), strict=True)
    return "".join(f'<span class="run"><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in coloured)


def short(value: float) -> str:
    """A number for people: 0.0123, 4.5, 160k, 1.2M."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if sign == "k" else size
            return f"{value / unit:.4g}{sign}"
    return f"{value:.4g}"


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _fewer(points: Points) -> Points:
    """At most `MOST` points: means of as many neighbours as it takes."""
    size = math.ceil(len(points) / MOST) or 1
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _spread(low: float, high: float) -> tuple[float, float]:
    """Both ends, apart from each other: what never moves is in the middle."""
    apart = (abs(low) or 1.0) / 2 if low == high else 0.0
    return low - apart, high + apart


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, the first at or below `low`, the last at or above `high`, three to seven of them."""
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    # 1e-9: what is round but for the last digits counts as round.
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]
