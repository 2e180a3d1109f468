"""What components take of their devices, from the trace of a run: what their workers say of their parts, and their processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rlinf.scheduler.planner.costs import Memory, fit
from rlinf.scheduler.planner.layout import Slot
from rlinf.scheduler.trace.reading import RESIDENT
from rlinf.scheduler.trace.spans import Span

STATE = ("parameters", "gradients", "optimizer")
CACHE = "cache"
"""The keys and values of an engine; of one that takes a share of the device for weights and cache, all of it."""
SIMULATOR, SIMULATOR_PROCESSES = "simulator", "simulator processes"
"""What environments take of the host: in the process of their worker, and in others."""
SHARE = 0.75
"""With more processes each has at most this share of the state if it is sharded; buffers and what is rounded up stay whole."""

Parts = Mapping[str, int]
"""What the parts of a component take on one of its devices."""


def peaks(recorded: Iterable[Span], name: str, timelines: Mapping[int, int]) -> dict[str, int]:
    """The most bytes that a part of a group took on one of its devices, by part.

    Args:
        recorded: the spans of a run.
        name: the group.
        timelines: by rank, its device or devices; what ranks take that share them adds up.
    """
    found: dict[str, dict[int, int]] = {}
    for span in recorded:
        if span.kind == "memory" and span.group == name:
            ranks = found.setdefault(span.name, {})
            ranks[span.rank] = max(ranks.get(span.rank, 0), span.bytes)
    most: dict[str, int] = {}
    for part, ranks in found.items():
        together: dict[int, int] = {}
        for rank, size in ranks.items():
            at = timelines.get(rank, rank)
            together[at] = together.get(at, 0) + size
        most[part] = max(together.values())
    return most


def memory_of(runs: Sequence[tuple[Slot, Parts]], *, virtual: bool) -> Memory:
    """The memory of a component by what it is for.

    Args:
        runs: where the component was in each run, and what its parts took at the most.
        virtual: the devices were virtual ones, whose memory is that of the host: what a process takes beside its parts counts, too,
            and so do simulators. On real ones nothing is known of either.
    """
    slot, parts = max(runs, key=lambda run: sum(run[1].get(part, 0) for part in STATE))
    state = {part: float(parts.get(part, 0)) for part in STATE}
    one = sum(state.values())
    least = min((sum(other.get(part, 0) for part in STATE), each.processes) for each, other in runs)
    sharded = least[1] > slot.processes and least[0] <= SHARE * one
    # A rank has its share of what all have together.
    ranks = slot.processes if sharded else 1
    cache, per_item = _line(runs, (CACHE,))
    simulator, per_environment = _line(runs, (SIMULATOR, SIMULATOR_PROCESSES)) if virtual else (0.0, 0.0)
    # Other processes of a simulator are not within the worker's own.
    inside = (*STATE, CACHE, SIMULATOR)
    beside = max(parts.get(RESIDENT, 0) - sum(parts.get(part, 0) for part in inside) for _, parts in runs)
    return Memory(
        weights=state["parameters"] * ranks,
        gradients=state["gradients"] * ranks,
        optimizer=state["optimizer"] * ranks,
        cache=cache,
        cache_per_item=per_item,
        simulator=simulator,
        simulator_per_item=per_environment,
        fixed=float(max(0, beside)) if virtual else 0.0,
        sharded=sharded,
    )


def _line(runs: Sequence[tuple[Slot, Parts]], names: Sequence[str]) -> tuple[float, float]:
    """Bytes that some parts take whatever a process holds, and for all items of a step.

    Runs with one number of processes do not tell one from the other: then all of it is taken not to depend on the items, as engines
    reserve their caches by their settings.
    """
    shares = [1 / slot.processes for slot, _ in runs]
    taken = [float(sum(parts.get(name, 0) for name in names)) for _, parts in runs]
    if len(set(shares)) == 1:
        return max(taken), 0.0
    line = fit(shares, taken)
    return line.fixed_s, line.item_s
