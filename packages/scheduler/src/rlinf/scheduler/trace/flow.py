"""`Flow`: who calls what and who feeds whom, with costs, as a run showed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf.scheduler.trace.drawing import draw
from rlinf.scheduler.trace.reading import spans
from rlinf.scheduler.trace.spans import Span

SECOND = 1e9
"""In nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNode:
    """A method of a group: what its calls cost, over all ranks."""

    group: str
    method: str
    """`__init__` for the constructor."""
    ranks: int
    """How many ranks were called."""
    calls: int
    """How many calls, each rank's counted."""
    failed: int
    """Calls that raised."""
    unfinished: int
    """Calls that never ended; they are in no sum below."""
    worked_s: float
    """Seconds in all calls together, less those waited."""
    waited_s: float
    """Seconds that the calls waited for items, for room and for devices."""

    @property
    def worked_mean_s(self) -> float:
        """Seconds of work in one call."""
        return self.worked_s / max(1, self.calls - self.unfinished)

    @property
    def waited_mean_s(self) -> float:
        """Seconds of waiting in one call."""
        return self.waited_s / max(1, self.calls - self.unfinished)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEdge:
    """Items that went from one group to another by one channel, or by messages of one tag."""

    producer: str | None
    """The group that put them; None if that is not known, as its process was killed before it could write so."""
    consumer: str | None
    """The group that took them; None if nobody did."""
    kind: str
    """`channel` or `message`."""
    via: str
    """The channel's name, or the messages' tag."""
    producer_methods: tuple[str, ...]
    """The methods that put, sorted; without those of the driver, which has none."""
    consumer_methods: tuple[str, ...]
    """The methods that took, sorted."""
    items: int
    bytes: int
    """Of the encoded items."""
    put_waited_s: float
    """Seconds that producers waited for room."""
    get_waited_s: float
    """Seconds that consumers waited for these items."""
    lay_s: float
    """Seconds that the items lay there before somebody asked for them, summed over items."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The macro flow of a run: a graph of methods, and of the items between groups."""

    nodes: tuple[FlowNode, ...]
    """Sorted by group and method."""
    edges: tuple[FlowEdge, ...]
    """Sorted by producer, consumer, kind and name. Every item that was put or taken is in exactly one."""

    @classmethod
    def from_trace(cls, path: str | Path) -> Flow:
        """The flow of a run that was traced.

        Args:
            path: the trace that the cluster wrote, or the folder that a killed run left beside it.

        Raises:
            RLinfError: there is no trace.
        """
        return cls.from_spans(spans(path))

    @classmethod
    def from_spans(cls, recorded: Iterable[Span]) -> Flow:
        """The flow that spans show, in whatever order they come."""
        calls: dict[tuple[str, str], list[Span]] = {}
        pairs: dict[int, _Item] = {}
        for span in recorded:
            if span.kind == "call":
                calls.setdefault((span.group, span.name), []).append(span)
            # Only the two ends of an item's way name it: its put or send, and its get or recv.
            for number in span.ids:
                pairs.setdefault(number, _Item()).add(span)
        edges: dict[tuple[str, str, str, str], list[_Item]] = {}
        for item in pairs.values():
            edges.setdefault(item.edge(), []).append(item)
        nodes = tuple(_node(*key, calls[key]) for key in sorted(calls))
        return cls(nodes, tuple(_edge(*key, edges[key]) for key in sorted(edges)))

    def describe(self) -> str:
        """The flow as two tables: methods with their costs, and transfers with theirs."""
        methods = [
            (
                f"{node.group}.{node.method}",
                node.ranks,
                node.calls,
                _time(node.worked_mean_s),
                _time(node.waited_mean_s),
                _time(node.worked_s),
                _trouble(node),
            )
            for node in self.nodes
        ]
        transfers = [
            (
                f"{edge.producer or '?'} → {edge.consumer or 'nobody'}",
                f"{edge.kind} {edge.via}".rstrip(),
                edge.items,
                _size(edge.bytes),
                _time(edge.put_waited_s),
                _time(edge.get_waited_s),
                _time(edge.lay_s / edge.items),
            )
            for edge in self.edges
        ]
        return "\n".join(
            [
                draw(("method", "ranks", "calls", "work/call", "wait/call", "work", ""), methods),
                "",
                draw(("items", "by", "number", "size", "put waited", "get waited", "lay, each"), transfers),
            ]
        )


@dataclass(slots=True)
class _Item:
    """The two ends of one item's way."""

    put: Span | None = None
    get: Span | None = None

    def add(self, span: Span) -> None:
        if span.kind in ("put", "send"):
            self.put = span
        else:
            self.get = span

    def edge(self) -> tuple[str, str, str, str]:
        """Producer, consumer, kind and name; "" for an end that is not known."""
        end = self.put or self.get
        assert end is not None
        kind = "channel" if end.kind in ("put", "get") else "message"
        return self.put.group if self.put else "", self.get.group if self.get else "", kind, end.name


def _node(group: str, method: str, calls: Sequence[Span]) -> FlowNode:
    ended = [span for span in calls if span.status != "unfinished"]
    return FlowNode(
        group=group,
        method=method,
        ranks=len({span.rank for span in calls}),
        calls=len(calls),
        failed=sum(span.status == "failed" for span in calls),
        unfinished=len(calls) - len(ended),
        worked_s=sum(span.worked for span in ended) / SECOND,
        waited_s=sum(span.waited for span in ended) / SECOND,
    )


def _edge(producer: str, consumer: str, kind: str, via: str, items: Sequence[_Item]) -> FlowEdge:
    puts = [item.put for item in items if item.put is not None]
    # Of a batch each item has its part. The put knows the bytes of its item, a get only those of its batch.
    gets = [item.get for item in items if item.get is not None]
    unknown = [item.get for item in items if item.get is not None and item.put is None]
    return FlowEdge(
        producer=producer or None,
        consumer=consumer or None,
        kind=kind,
        via=via,
        producer_methods=tuple(sorted({put.within for put in puts} - {""})),
        consumer_methods=tuple(sorted({get.within for get in gets} - {""})),
        items=len(items),
        bytes=round(sum(put.bytes for put in puts) + sum(get.bytes / get.items for get in unknown)),
        put_waited_s=sum(put.waited for put in puts) / SECOND,
        get_waited_s=sum(get.waited / get.items for get in gets) / SECOND,
        # Who asked before the item came has not let it lie.
        lay_s=sum(max(0, item.get.start - item.put.end) for item in items if item.put and item.get) / SECOND,
    )


def _trouble(node: FlowNode) -> str:
    words = [f"{count} {word}" for count, word in ((node.failed, "failed"), (node.unfinished, "unfinished")) if count]
    return ", ".join(words)


def _time(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds:.0f} s"
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms"


def _size(count: int) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, (max(count, 1).bit_length() - 1) // 10))
    return f"{count} B" if power == 0 else f"{count / 1024**power:.1f} {units[power]}"
