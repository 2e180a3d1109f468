"""What components take of their devices, from the trace of a run: what their trainers say of their parts, and their processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rlinf.scheduler.planner.costs import Memory
from rlinf.scheduler.planner.layout import Slot
from rlinf.scheduler.trace.reading import RESIDENT
from rlinf.scheduler.trace.spans import Span

STATE = ("parameters", "gradients", "optimizer")
SHARE = 0.75
"""With more processes each has at most this share of the state if it is sharded; buffers and what is rounded up stay whole."""


def peaks(recorded: Iterable[Span], name: str) -> dict[str, int]:
    """The most bytes that a part of one process of a group took, by part.

    Args:
        recorded: the spans of a run.
        name: the group.
    """
    found: dict[str, int] = {}
    for span in recorded:
        if span.kind == "memory" and span.group == name:
            found[span.name] = max(found.get(span.name, 0), span.bytes)
    return found


def memory_of(runs: Sequence[tuple[Slot, Mapping[str, int]]], *, virtual: bool) -> Memory:
    """The memory of a component by what it is for.

    Args:
        runs: where the component was in each run, and what its parts took at the most.
        virtual: the devices were virtual ones, whose memory is that of the host: what a process takes beside its state counts, too.
            On real ones nothing is known of it.
    """
    slot, parts = max(runs, key=lambda run: sum(run[1].get(part, 0) for part in STATE))
    state = {part: float(parts.get(part, 0)) for part in STATE}
    one = sum(state.values())
    least = min((sum(other.get(part, 0) for part in STATE), each.processes) for each, other in runs)
    sharded = least[1] > slot.processes and least[0] <= SHARE * one
    # A rank has its share of what all have together.
    ranks = slot.processes if sharded else 1
    beside = max(parts.get(RESIDENT, 0) - sum(parts.get(part, 0) for part in STATE) for _, parts in runs)
    return Memory(
        weights=state["parameters"] * ranks,
        gradients=state["gradients"] * ranks,
        optimizer=state["optimizer"] * ranks,
        fixed=float(max(0, beside)) if virtual else 0.0,
        sharded=sharded,
    )
