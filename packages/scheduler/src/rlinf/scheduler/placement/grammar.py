"""The grammar of `cluster.component_placement`.

    component_placement:
      actor,rollout: 0-3          # both: 4 processes, one on each of the accelerators 0 to 3
      env: 0-1:0-3                # 4 processes, 2 on each accelerator
      reward: 4-7:0-1             # 2 processes, 2 accelerators each: (4, 5) and (6, 7)
      critic: 0-1:0-3,3:4         # several parts; ranks ascend
      buffer: all                 # one process on each accelerator
      data: {node_group: node, placement: "0:0-7"}    # 8 processes on node 0

    spec := part ("," part)* | {node_group: "node" | "cluster", placement: spec}
    part := resources [":" processes]      resources := n | a-b | all      processes := n | a-b

A resource is an accelerator; in the node group `node`, or where there is no accelerator, it is a node. One of the two counts
of a part must divide the other. Resources ascend over the parts and are disjoint; processes count up from 0 without a gap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from rlinf.core.errors import PlacementError, did_you_mean

PLACE = "cluster.component_placement"
GROUPS = ("cluster", "node")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Spec:
    """One component's placement, parsed: the resources of each process, by rank."""

    kind: Literal["accelerator", "node"]
    """What a resource is."""
    resources: tuple[tuple[int, ...], ...]
    """Process rank → ascending resource ranks, at least one."""


@dataclass(frozen=True, slots=True)
class Resources:
    """How many of each kind a cluster has."""

    accelerators: int
    nodes: int = 1

    def count(self, kind: Literal["accelerator", "node"]) -> int:
        """How many of one kind."""
        return self.accelerators if kind == "accelerator" else self.nodes

    def describe(self, kind: Literal["accelerator", "node"]) -> str:
        """What the cluster has, for messages."""
        count = self.count(kind)
        if count == 1:
            return f"the cluster has 1 {kind} (0)"
        return f"the cluster has {count} {kind}s (0-{count - 1})" if count else f"the cluster has no {kind}"


def parse(component_placement: Mapping[str, Any], have: Resources) -> dict[str, Spec]:
    """Component → its placement, in the order in which they are written.

    Args:
        component_placement: the mapping of the configuration.
        have: what the cluster has.

    Raises:
        PlacementError: the text breaks the grammar, or the cluster can't satisfy it; the message names the component's path.
    """
    specs: dict[str, Spec] = {}
    for key, value in component_placement.items():
        for name in str(key).split(","):
            component = name.strip()
            if not component:
                raise PlacementError(f"{PLACE}.{key}", "a component without a name", "Write it as `a,b: 0-1`.")
            if component in specs:
                raise PlacementError(f"{PLACE}.{component}", "placed twice", "Give each component one placement.")
            specs[component] = _spec(value, f"{PLACE}.{component}", have)
    return specs


def _spec(value: object, place: str, have: Resources) -> Spec:
    kind: Literal["accelerator", "node"] = "accelerator" if have.accelerators else "node"
    if isinstance(value, Mapping):
        section = cast("Mapping[str, Any]", value)
        for key in section:
            if key not in ("node_group", "placement"):
                raise PlacementError(f"{place}.{key}", "unknown key", did_you_mean(str(key), ["node_group", "placement"]))
        if _group(section.get("node_group", "cluster"), place) == "node":
            kind = "node"
        if "placement" not in section:
            raise PlacementError(f"{place}.placement", "missing", 'Expected text such as "0-3".')
        value = section["placement"]
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise PlacementError(place, f"expected text such as '0-3' or '0-1:0-3', found {value!r}")
    return Spec(kind, _parts(str(value), place, kind, have))


def _group(value: object, place: str) -> str:
    labels = cast("list[object]", value) if isinstance(value, list) else str(value).split(",")
    names = [str(label).strip() for label in labels]
    for name in names:
        if name not in GROUPS:
            hint = did_you_mean(name, GROUPS, label="This version has")
            raise PlacementError(f"{place}.node_group", f"no node group '{name}'", hint)
    if len(names) != 1:
        raise PlacementError(f"{place}.node_group", f"expected one node group, found {names}", "This version places on one.")
    return names[0]


def _parts(text: str, place: str, kind: Literal["accelerator", "node"], have: Resources) -> tuple[tuple[int, ...], ...]:
    plan: list[tuple[int, ...]] = []
    last = -1
    for part in text.split(","):
        resource_text, colon, process_text = (piece.strip() for piece in part.partition(":"))
        resources = range(have.count(kind)) if resource_text == "all" else _range(resource_text, text, place)
        if not resources:
            raise PlacementError(place, f"'{text}' needs an accelerator; {have.describe(kind)}")
        if resources[-1] >= have.count(kind):
            raise PlacementError(place, f"'{text}' names {kind} {resources[-1]}, but {have.describe(kind)}", _remedy(kind))
        if resources[0] <= last:
            raise PlacementError(place, f"in '{text}' the {kind} ranks must ascend: {resources[0]} follows {last}")
        last = resources[-1]
        start = len(plan)
        processes = _range(process_text, text, place) if colon else range(start, start + len(resources))
        if processes[0] != start:
            raise PlacementError(place, f"in '{text}' the process ranks must count up: expected {start}, found {processes[0]}")
        plan.extend(_share(resources, len(processes), text, place, kind))
    return tuple(plan)


def _remedy(kind: str) -> str:
    if kind == "accelerator":
        return "Name fewer, or set cluster.virtual_accelerators.count for a trial run without them."
    return "Write `0:0-3` for 4 processes on node 0, or set cluster.virtual_accelerators.count to share the cores out."


def _range(text: str, whole: str, place: str) -> range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise PlacementError(place, f"'{whole}' can't be read at '{text}'", "Expected n, a-b or all; `resources:processes`.")
    first = int(match[1])
    last = int(match[2]) if match[2] is not None else first
    if last < first:
        raise PlacementError(place, f"in '{whole}' the range {text} runs backwards", f"Write {last}-{first}.")
    return range(first, last + 1)


def _share(resources: range, processes: int, text: str, place: str, kind: str) -> list[tuple[int, ...]]:
    """The resources of each process of one part."""
    count = len(resources)
    if processes <= count and count % processes == 0:
        each = count // processes
        if kind == "node" and each > 1:
            raise PlacementError(place, f"'{text}' spreads one process over {each} nodes", "A process runs on one node.")
        return [tuple(resources[i * each : (i + 1) * each]) for i in range(processes)]
    if processes > count and processes % count == 0:
        return [(resources[i * count // processes],) for i in range(processes)]
    problem = f"in '{text}' {processes} processes can't share {count} {kind}s evenly"
    raise PlacementError(place, problem, "One of the two numbers must divide the other.")
