"""The grammar of `cluster.component_placement`.

    component_placement:
      actor,rollout: 0-3          # both: 4 processes, one on each of the accelerators 0 to 3
      env: 0-1:0-3                # 4 processes, 2 on each accelerator
      reward: 4-7:0-1             # 2 processes, 2 accelerators each: (4, 5) and (6, 7)
      critic: 0-1:0-3,3:4         # several parts; ranks ascend
      buffer: all                 # one process on each accelerator
      data: {node_group: node, placement: "0:0-7"}          # 8 processes on node 0
      arm: {node_group: [left, right], placement: "0-1"}    # one process on each of the arms of two node groups

    spec := part ("," part)* | {node_group: groups, placement: spec}
    part := resources [":" processes]      resources := n | a-b | all      processes := n | a-b
    groups := label ("," label)* | [label, …]

A resource is what the node groups have, numbered from 0 through the groups as they are written: an accelerator or a robot; where
a group has neither, and in the group `node`, it is a node. One of the two counts of a part must divide the other. Resources ascend
over the parts and are disjoint; processes count up from 0 without a gap. A process is on one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rlinf.core.errors import PlacementError, did_you_mean
from rlinf.scheduler.hardware.inventory import Inventory, Labels, Pool
from rlinf.scheduler.ranks import ALL, SPAN, format_ranks

PLACE = "cluster.component_placement"
MOST_PROCESSES = 1_000_000
"""What one component may have at most: a typing error shall not fill the memory."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One component's placement, parsed: the resources of each process, by rank."""

    pool: Pool
    """What the ranks number."""
    resources: tuple[tuple[int, ...], ...]
    """Process rank → ascending resource ranks, at least one."""
    text: str
    """As it was written, for messages."""

    @property
    def kind(self) -> str:
        """What a resource is: `accelerator`, `node`, or a type of hardware."""
        return self.pool.kind


def parse(component_placement: Mapping[str, Any], inventory: Inventory, *, place: str = PLACE) -> dict[str, Spec]:
    """Component → its placement, in the order in which they are written.

    Args:
        component_placement: the mapping of the configuration.
        inventory: what the cluster has.
        place: the dotted path of the mapping, for messages.

    Raises:
        PlacementError: the text breaks the grammar, or the cluster can't satisfy it; the message names the component's path.
    """
    specs: dict[str, Spec] = {}
    for key, value in component_placement.items():
        for component in _names(key):
            if not component:
                raise PlacementError(f"{place}.{key}", "a component without a name", "Write it as `a,b: 0-1`.")
            if component in specs:
                raise PlacementError(f"{place}.{component}", "placed twice", "Give each component one placement.")
            specs[component] = _spec(value, f"{place}.{component}", inventory)
    return specs


def component_names(component_placement: Mapping[str, Any]) -> list[str]:
    """The components that a mapping of the configuration places, in the order in which they are written."""
    return [name for key in component_placement for name in _names(key)]


def _names(key: object) -> list[str]:
    return [name.strip() for name in str(key).split(",")]


def _spec(value: object, place: str, inventory: Inventory) -> Spec:
    labels: Labels = None
    if isinstance(value, Mapping):
        section = cast("Mapping[str, Any]", value)
        for key in section:
            if key not in ("node_group", "placement"):
                raise PlacementError(f"{place}.{key}", "unknown key", did_you_mean(str(key), ["node_group", "placement"]))
        labels = _labels(section.get("node_group"), f"{place}.node_group")
        if "placement" not in section:
            raise PlacementError(f"{place}.placement", "missing", 'Expected text such as "0-3".')
        value = section["placement"]
    # A `bool` is an `int`, too, and YAML reads `yes` as one.
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise PlacementError(place, f"expected text such as '0-3' or '0-1:0-3', found {value!r}")
    pool = inventory.pool(labels, place=f"{place}.node_group")
    return Spec(pool, _Reading(str(value), place, pool).processes(), str(value))


def _labels(value: object, place: str) -> Labels:
    """Any sequence will do: a YAML list may come as a type of its own."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return tuple(str(label) for label in cast("Sequence[object]", value))
    raise PlacementError(place, f"expected labels of node groups, found {value!r}", 'Write "a", "a,b" or [a, b].')


class _Reading:
    """One text, read part by part."""

    def __init__(self, text: str, place: str, pool: Pool) -> None:
        self._text = text
        self._place = place
        self._pool = pool

    def processes(self) -> tuple[tuple[int, ...], ...]:
        """The resources of each process."""
        plan: list[tuple[int, ...]] = []
        last = -1
        for part in self._text.split(","):
            resource_text, colon, process_text = (piece.strip() for piece in part.partition(":"))
            resources = self._resources(resource_text)
            if resources[0] <= last:
                raise self._refusal(f"in '{self._text}' the {self._pool.kind} ranks must ascend: {resources[0]} follows {last}")
            last = resources[-1]
            start = len(plan)
            ranks = self._range(process_text) if colon else range(start, start + len(resources))
            if ranks[0] != start:
                problem = f"in '{self._text}' the process ranks must count up: expected {start}, found {ranks[0]}"
                raise self._refusal(problem, f"Write {start}-{start + len(ranks) - 1}." if len(ranks) > 1 else f"Write {start}.")
            # Before `_share` makes a tuple for each: a range takes no memory.
            if len(ranks) > MOST_PROCESSES:
                raise self._refusal(f"'{self._text}' asks for {len(ranks)} processes", f"At most {MOST_PROCESSES} are placed.")
            plan.extend(self._share(resources, len(ranks)))
        return tuple(plan)

    def _resources(self, text: str) -> range:
        pool, count = self._pool, len(self._pool.resources)
        resources = range(count) if text == ALL else self._range(text)
        if not resources:
            article = "an" if pool.kind[0] in "aeiou" else "a"
            raise self._refusal(f"'{self._text}' needs {article} {pool.kind}; {pool.describe()}")
        if resources[-1] >= count:
            raise self._refusal(f"'{self._text}' names {pool.kind} {resources[-1]}, but {pool.describe()}", _remedy(pool))
        return resources

    def _range(self, text: str) -> range:
        match = SPAN.fullmatch(text)
        if match is None:
            problem = f"'{self._text}' can't be read at '{text}'"
            raise self._refusal(problem, "Expected n, a-b or all; `resources:processes`.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise self._refusal(f"in '{self._text}' the range {text} runs backwards", f"Write {last}-{first}.")
        return range(first, last + 1)

    def _share(self, resources: range, processes: int) -> list[tuple[int, ...]]:
        """The resources of each process of one part."""
        count, kind = len(resources), self._pool.kind
        if processes <= count and count % processes == 0:
            each = count // processes
            if self._pool.on_nodes and each > 1:
                raise self._refusal(f"'{self._text}' spreads one process over {each} nodes", "A process runs on one node.")
            shared = [tuple(resources[i * each : (i + 1) * each]) for i in range(processes)]
            for ranks in shared if each > 1 else ():
                self._check_one_node(ranks)
            return shared
        if processes > count and processes % count == 0:
            return [(resources[i * count // processes],) for i in range(processes)]
        near = sorted({count * max(1, processes // count), count * (processes // count + 1)})
        way = f"One of the two numbers must divide the other: {' or '.join(map(str, near))} processes would."
        raise self._refusal(f"in '{self._text}' {processes} processes can't share {count} {kind}s evenly", way)

    def _check_one_node(self, ranks: tuple[int, ...]) -> None:
        """A process can't be on two nodes, nor on two types of hardware."""
        first = self._pool.resources[ranks[0]]
        other = next((r for rank in ranks if (r := self._pool.resources[rank])[:2] != first[:2]), None)
        if other is None:
            return
        what = f"{self._pool.kind}s {format_ranks(ranks)}"
        if other.node != first.node:
            problem = f"in '{self._text}' one process would have the {what}, of the nodes {first.node} and {other.node}"
            raise self._refusal(problem, "A process runs on one node; let its resources end where a node ends.")
        problem = f"in '{self._text}' one process would have the {what}, which are {first.type} and {other.type}"
        raise self._refusal(problem, "A process has one type of hardware.")

    def _refusal(self, problem: str, remedy: str = "") -> PlacementError:
        return PlacementError(self._place, problem, remedy)


def _remedy(pool: Pool) -> str:
    if pool.kind == "accelerator":
        return "Name fewer, or set cluster.virtual_accelerators.count for a trial run without them."
    if pool.on_nodes:
        return "Write `0:0-3` for 4 processes on node 0, or set cluster.virtual_accelerators.count to share the cores out."
    return "Name fewer, or describe more in cluster.node_groups."
