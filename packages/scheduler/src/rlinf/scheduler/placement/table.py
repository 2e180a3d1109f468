"""The plan as a table: node × device → component[ranks], with the CPU threads that each node was asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from rlinf.scheduler.hardware.inventory import Inventory
from rlinf.scheduler.hardware.node import ACCELERATOR, Node, several
from rlinf.scheduler.placement.strategies import ProcessPlan
from rlinf.scheduler.ranks import format_ranks

Plans = Mapping[str, Sequence[ProcessPlan]]
FEW_ROWS = 64
"""A table that would be longer is folded: devices, then nodes, that look the same share a row."""


class _Placed(NamedTuple):
    """One component on one row."""

    component: str
    ranks: tuple[int, ...]
    threads: int
    """Of each process."""
    each: int
    """Processes on each device."""


class _Row(NamedTuple):
    """Neighbouring devices of one node with the same occupants; or the node itself."""

    kind: str
    """A hardware type, or "" for the node."""
    first: int
    width: int
    """How many devices."""
    occupants: tuple[_Placed, ...]

    def shape(self) -> tuple[object, ...]:
        """What must agree for two rows to be told as one; ranks don't."""
        return (self.kind, *[(who.component, who.threads, who.each) for who in self.occupants])


@dataclass(frozen=True, slots=True)
class _Section:
    """Neighbouring nodes that look the same."""

    first: int
    count: int
    cores: int
    threads: int
    """CPU threads planned on each node."""
    rows: tuple[_Row, ...]

    def shape(self) -> tuple[object, ...]:
        """What must agree for two sections to be told as one."""
        return (self.cores, self.threads, *((row.shape(), row.width) for row in self.rows))


def draw(inventory: Inventory, plans: Plans, *, limit: int | None = FEW_ROWS) -> str:
    """The table.

    Args:
        inventory: what there is.
        plans: component → its processes.
        limit: about how many lines there may be; None for one line for each device.
    """
    sections = list(_sections(inventory, plans))
    if limit is not None and _length(sections) > limit:
        # `groupby` joins neighbours only, so that what shares a row is one range of devices, or of nodes.
        sections = [_fold_rows(section) for section in sections]
        sections = [_fold_sections(list(group)) for _, group in groupby(sections, key=_Section.shape)]
    lines = [line for section in sections for line in _write(section, alone=len(inventory.nodes) == 1)]
    if limit is not None and len(lines) > limit:
        lines = [*lines[: limit - 1], f"… {len(lines) - limit + 1} more lines; describe(limit=None) has them all"]
    return "\n".join([inventory.describe(), *lines])


def _sections(inventory: Inventory, plans: Plans) -> Iterator[_Section]:
    """Each node with a row for each device, and one for itself if something was placed on it."""
    here: dict[tuple[int, str, int], list[_Placed]] = {}
    threads = [0] * len(inventory.nodes)
    for component, processes in plans.items():
        for (node, kind, index), found in _by_place(processes, threads).items():
            who = _Placed(component, tuple([process.rank for process in found]), found[0].threads, len(found))
            here.setdefault((node, kind, index), []).append(who)
    for node in inventory.nodes:
        rows = [
            _Row(kind, rank, 1, tuple(here.get((node.rank, kind, index), ()))) for kind, rank, index in _places(inventory, node)
        ]
        kept = tuple(row for row in rows if row.kind or row.occupants)
        yield _Section(node.rank, 1, node.cores, threads[node.rank], kept)


def _places(inventory: Inventory, node: Node) -> Iterator[tuple[str, int, int]]:
    """Hardware type, cluster-wide rank, index on the node; the node itself last."""
    for kind in (ACCELERATOR, *node.hardware):
        first = inventory.first_ranks(kind)[node.rank]
        for index in range(node.count(kind)):
            yield kind, first + index, index
    yield "", node.rank, 0


def _by_place(processes: Sequence[ProcessPlan], threads: list[int]) -> dict[tuple[int, str, int], list[ProcessPlan]]:
    """Node, hardware type and index → the processes there; their CPU threads are added to their node's."""
    found: dict[tuple[int, str, int], list[ProcessPlan]] = defaultdict(list)
    for process in processes:
        threads[process.node] += process.threads
        # A process on the node itself has no hardware; `_places` gives the node the index 0.
        for index in process.local or (0,):
            found[process.node, process.hardware_type, index].append(process)
    return found


def _fold_rows(section: _Section) -> _Section:
    rows = tuple(_join(list(group)) for _, group in groupby(section.rows, key=_Row.shape))
    return _Section(section.first, section.count, section.cores, section.threads, rows)


def _fold_sections(sections: Sequence[_Section]) -> _Section:
    head = sections[0]
    rows = tuple(_join(rows) for rows in zip(*(section.rows for section in sections), strict=True))
    return _Section(head.first, len(sections), head.cores, head.threads, rows)


def _join(rows: Sequence[_Row]) -> _Row:
    head = rows[0]
    occupants = tuple(
        _Placed(who.component, tuple(rank for row in rows for rank in row.occupants[i].ranks), who.threads, who.each)
        for i, who in enumerate(head.occupants)
    )
    return _Row(head.kind, head.first, sum(row.width for row in rows), occupants)


def _length(sections: Sequence[_Section]) -> int:
    return sum(1 + len(section.rows) for section in sections)


def _write(section: _Section, *, alone: bool) -> Iterator[str]:
    budget = f"{several(section.threads, 'thread')} planned on {several(section.cores, 'core')}"
    if alone:
        yield from (f"{_label(row):16}{_occupants(row)}".rstrip() for row in section.rows)
        yield f"{'CPU':16}{budget}"
        return
    last = section.first + section.count - 1
    name = f"nodes {section.first}-{last}, each" if section.count > 1 else f"node {section.first}"
    yield f"{name}: {budget}"
    yield from (f"  {_label(row):24}{_occupants(row)}".rstrip() for row in section.rows)


def _label(row: _Row) -> str:
    """`accelerator 3`, `accelerators 0-7`, `node 0`."""
    name = {ACCELERATOR: "accelerator", "": "node"}.get(row.kind, row.kind)
    return f"{name} {row.first}" if row.width == 1 else f"{name}s {row.first}-{row.first + row.width - 1}"


def _occupants(row: _Row) -> str:
    """`actor[0-1] (2 threads)` for each component."""
    texts: list[str] = []
    for who in row.occupants:
        each = f"{who.each} on each, " if who.each > 1 and row.width > 1 else ""
        # A rank with several of a row's devices is there once for each.
        texts.append(f"{who.component}[{format_ranks(sorted(set(who.ranks)))}] ({each}{several(who.threads, 'thread')})")
    return ", ".join(texts)
