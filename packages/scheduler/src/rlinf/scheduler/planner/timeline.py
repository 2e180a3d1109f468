"""A simulation as a trace in the tracer's own format, and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlinf.scheduler.planner.layout import Layout, Machine
from rlinf.scheduler.planner.simulation.simulator import Options, Simulation, simulate
from rlinf.scheduler.planner.workload import Workload
from rlinf.scheduler.trace.chrome import write
from rlinf.scheduler.trace.flow import SECOND
from rlinf.scheduler.trace.reading import PLACEMENT, STEP_ENDS
from rlinf.scheduler.trace.spans import Span

METHOD = "step"
"""The name of every simulated call."""
STEPS = 4
"""How many steps of a predicted run are written."""
WIDTH = 60
"""Characters of a line of the timeline."""


def spans_of(simulation: Simulation) -> Iterator[Span]:
    """What each process did, in the order in which it began; processes that are alike share a line."""
    for call in sorted(simulation.calls, key=lambda call: float(call.starts.min())):
        for rank, (start, end) in enumerate(zip(call.starts.tolist(), call.ends.tolist(), strict=True)):
            yield Span(
                kind="call",
                who=f"{call.component}[{rank}]",
                thread=1,
                name=METHOD,
                key=f"step {call.step}, chunk {call.chunk}",
                start=round(start * SECOND),
                end=round(end * SECOND),
            )


def write_trace(workload: Workload, machine: Machine, layout: Layout, options: Options, path: str | Path) -> Path:
    """Writes a predicted run as a trace in the format of measured ones, which opens in the same viewer.

    Args:
        workload: what a step consists of.
        machine: the devices.
        layout: which of them each component has.
        options: how the components work together; at least a few steps are written, so that a steady one is among them.
        path: the file; replaced if it exists.

    Raises:
        PlacementError: the layout is not allowed, or does not fit into memory.
        OSError: the file can't be written.
    """
    simulation = simulate(workload, machine, layout, replace(options, steps=max(STEPS, options.simulated(workload))))
    placed = {name: [list(range(low, high)) for low, high in timelines] for name, timelines in simulation.timelines.items()}
    ends = [round(end * SECOND) for end in simulation.ends_s]
    known = {"start_ns": 0, "simulated": True, "full": [], PLACEMENT: placed, STEP_ENDS: ends}
    return write(path, spans_of(simulation), known)


def draw(simulation: Simulation, layout: Layout, *, step: int = -1, width: int = WIDTH) -> str:
    """One line for each component: when it works (`#`), or some of its processes do (`+`), in one step.

    Args:
        simulation: what is shown.
        layout: the components, in the order of the lines.
        step: which of its steps; by default the last.
        width: characters.
    """
    at = range(simulation.steps)[step]
    begin = simulation.ends_s[at - 1] if at else 0.0
    end = simulation.ends_s[at]
    edges = np.linspace(begin, end, width + 1)
    lines: list[str] = []
    for name in layout:
        cover = np.zeros(width)
        count = len(simulation.timelines[name])
        for call in simulation.calls:
            if call.component != name:
                continue
            for start, stop in zip(call.starts.tolist(), call.ends.tolist(), strict=True):
                cover += np.clip(np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start), 0, None) / count
        share = cover / max((end - begin) / width, 1e-12)
        marks = "".join("#" if each > 0.75 else "+" if each > 0.05 else "." for each in share.tolist())
        lines.append(f"{name:<12} {marks}")
    return "\n".join(lines)


def seconds(value: float) -> str:
    """A time with three digits."""
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
