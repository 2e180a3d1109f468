"""What holds for every placement on every cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlinf.core.errors import PlacementError
from rlinf.scheduler import HybridComponentPlacement, Node, PackedPlacementStrategy, ProcessPlan
from rlinf.scheduler.hardware import Device, Inventory, NodeGroup


class YamlList(Sequence[str]):
    """A list that is no `list`, as some YAML libraries make."""

    def __init__(self, items: Sequence[str]) -> None:
        self._items = items

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """One to five nodes with different accelerators and arms, parted into groups."""
    count = draw(st.integers(1, 5))
    nodes = [
        Node(
            cores=draw(st.integers(1, 16)),
            accelerators=draw(st.integers(0, 4)),
            virtual=draw(st.booleans()),
            rank=rank,
            hardware={"Arm": (Device(model="arm"),) * draw(st.integers(0, 2))},
        )
        for rank in range(count)
    ]
    groups: dict[str, NodeGroup] = {}
    for label, ranks in _parted(draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))).items():
        kind = draw(st.sampled_from([None, None, "Arm"]))
        groups[label] = NodeGroup(
            label=label, nodes=ranks, hardware_type=kind, ignore_hardware=kind is None and draw(st.booleans())
        )
    return Inventory(nodes, groups)


def _parted(labels: Sequence[str]) -> dict[str, tuple[int, ...]]:
    return {label: tuple(rank for rank, found in enumerate(labels) if found == label) for label in labels}


@st.composite
def texts(draw: st.DrawFn, count: int) -> str:
    """A well-formed text for so many resources."""
    parts: list[str] = []
    at = process = 0
    while at < count and (not parts or draw(st.booleans())):
        first = draw(st.integers(at, count - 1))
        last = draw(st.integers(first, count - 1))
        size = last - first + 1
        processes = draw(st.sampled_from([n for n in range(1, 3 * size + 1) if n % size == 0 or size % n == 0]))
        parts.append(f"{first}-{last}:{process}-{process + processes - 1}")
        at, process = last + 1, process + processes
    return ",".join(parts)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Inventory, dict[str, Any]]:
    """An inventory, and components placed on it."""
    inventory = draw(inventories())
    placement: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(["actor", "rollout", "env", "reward"]), min_size=1, unique=True)):
        own = [label for label in inventory.groups if label not in ("cluster", "node")]
        labels = draw(st.sampled_from([["cluster"], ["node"], *([label] for label in own), own]))
        count = len(inventory.pool(labels, place="").resources)
        if count:
            placement[name] = {"node_group": YamlList(labels), "placement": draw(texts(count))}
    assume(placement)
    return inventory, placement


def placed(inventory: Inventory, placement: dict[str, Any]) -> HybridComponentPlacement | None:
    try:
        return HybridComponentPlacement({"cluster": {"component_placement": placement}}, inventory)
    except PlacementError as error:
        if "one process" not in str(error):  # a well-formed text is refused only for a process on two nodes
            raise
        return None


def where(plan: ProcessPlan) -> set[tuple[int, str, int]]:
    return {(plan.node, plan.hardware_type, index) for index in plan.local}


@settings(max_examples=200)
@given(cases())
def test_every_process_is_placed_once_inside_its_group(case: tuple[Inventory, dict[str, Any]]) -> None:
    inventory, written = case
    found = placed(inventory, written)
    if found is None:
        return
    for component, spec in written.items():
        plans = found.plan(component)
        asked = 1 + int(spec["placement"].rpartition("-")[2])
        assert [plan.rank for plan in plans] == list(range(asked))
        for plan in plans:
            assert plan.node_group in spec["node_group"]
            assert plan.node in inventory.groups[plan.node_group].nodes
            assert plan.threads >= 1
            assert list(plan.local) == sorted(set(plan.local))
            assert all(0 <= i < inventory.nodes[plan.node].count(plan.hardware_type) for i in plan.local)
            on = inventory.accelerator_ranks[plan.node]
            assert plan.devices == (tuple(on[i] for i in plan.local) if plan.hardware_type == "Accelerator" else ())
            assert len(plan.hardware) == len(plan.local)


@given(cases())
def test_processes_of_one_part_share_evenly(case: tuple[Inventory, dict[str, Any]]) -> None:
    inventory, written = case
    found = placed(inventory, written)
    for component, spec in written.items() if found is not None else ():
        specs = found.spec(component).resources if found is not None else ()
        for part in spec["placement"].split(","):
            resources, _, processes = part.partition(":")
            (first, last), (start, stop) = (map(int, text.split("-")) for text in (resources, processes))
            mine = specs[start : stop + 1]
            loads = Counter(rank for ranks in mine for rank in ranks)
            assert set(loads) == set(range(first, last + 1))
            assert len(set(loads.values())) == 1
            assert len({len(ranks) for ranks in mine}) == 1


@given(cases(), st.randoms())
def test_the_order_of_keys_changes_nothing(case: tuple[Inventory, dict[str, Any]], random: Any) -> None:
    inventory, written = case
    keys = list(written)
    random.shuffle(keys)
    one, other = placed(inventory, written), placed(inventory, {key: written[key] for key in keys})
    assert (one is None) == (other is None)
    for component in written if one is not None and other is not None else ():
        assert one is not None
        assert other is not None
        assert one.plan(component) == other.plan(component)
        alone = placed(inventory, {component: written[component]})
        assert alone is not None
        # Others take threads, and change nothing else.
        assert [replace(plan, threads=0) for plan in one.plan(component)] == [
            replace(plan, threads=0) for plan in alone.plan(component)
        ]
        assert all(plan.threads <= own.threads for plan, own in zip(one.plan(component), alone.plan(component), strict=True))


@given(cases(), st.integers(1, 40))
def test_the_table_has_every_process(case: tuple[Inventory, dict[str, Any]], limit: int) -> None:
    inventory, written = case
    found = placed(inventory, written)
    if found is None:
        return
    whole = found.describe(limit=None).splitlines()
    rows = [line for line in whole if " core" not in line]
    assert len(rows) == sum(node.accelerators + len(node.hardware["Arm"]) for node in inventory.nodes) + len(
        {plan.node for name in written for plan in found.plan(name) if not plan.local}
    )
    for component in written:
        places = {place for plan in found.plan(component) for place in where(plan) or {(plan.node, "", 0)}}
        assert sum(f"{component}[" in line for line in whole) == len(places)
    assert len(found.describe(limit=limit).splitlines()) <= limit + 1
    assert found.describe(limit=10_000) == found.describe(limit=None)


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.data())
def test_packed_uses_each_accelerator_once(nodes: int, each: int, per: int, stride: int, data: st.DataObject) -> None:
    inventory = Inventory([Node(cores=8, accelerators=each, virtual=True, rank=rank) for rank in range(nodes)])
    start = data.draw(st.integers(0, nodes * each - 1))
    end = data.draw(st.integers(start, nodes * each - 1))
    try:
        plans = PackedPlacementStrategy(start, end, per, stride).plan(inventory, place="here")
    except PlacementError:
        blocks = [range(at, at + per * stride) for at in range(start, end + 1, per * stride)]
        spans = per > 1 and any(len({at // each for at in block[first::stride]}) > 1 for block in blocks for first in range(stride))
        assert (end - start + 1) % (per * stride) or spans
        return
    assert sorted(device for plan in plans for device in plan.devices) == list(range(start, end + 1))
    assert [plan.devices[0] for plan in plans] == sorted(plan.devices[0] for plan in plans)
    assert all(b - a == stride for plan in plans for a, b in zip(plan.devices, plan.devices[1:], strict=False))
    assert all({device // each for device in plan.devices} == {plan.node} for plan in plans)
