import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError, PlacementError
from rlinf.scheduler import (
    Cluster,
    FlexiblePlacementStrategy,
    HybridComponentPlacement,
    ModelParallelComponentPlacement,
    Node,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementStrategy,
)
from rlinf.scheduler.hardware import Inventory, NodeGroup
from rlinf.scheduler.node_groups import CLUSTER
from rlinf.scheduler.placement import PlacementMode
from rlinf.scheduler.placement.grammar import parse

EIGHT = Inventory([Node(cores=8, accelerators=8, virtual=True)])
NODE = Node(cores=8, accelerators=8, virtual=True)


def machine(accelerators: int) -> Inventory:
    return Inventory([Node(cores=8, accelerators=accelerators, virtual=True)])


def placed(spec: Any, have: Inventory = EIGHT) -> list[tuple[int, ...]]:
    return list(parse({"a": spec}, have)["a"].resources)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (3, [(3,)]),
        ("0-3", [(0,), (1,), (2,), (3,)]),
        ("all", [(i,) for i in range(8)]),
        ("0-1:0-3", [(0,), (0,), (1,), (1,)]),
        ("4-7:0-1", [(4, 5), (6, 7)]),
        ("0-3:0", [(0, 1, 2, 3)]),
        ("all:0-1", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("0-1:0-3,3-5,6-7:7-10", [(0,), (0,), (1,), (1,), (3,), (4,), (5,), (6,), (6,), (7,), (7,)]),
        (" 0 : 0-1 , 2 ", [(0,), (0,), (2,)]),
        ({"placement": "0-1"}, [(0,), (1,)]),
        ({"node_group": "cluster", "placement": "1"}, [(1,)]),
        ({"node_group": ["cluster"], "placement": "1"}, [(1,)]),
    ],
)
def test_grammar(spec: Any, expected: list[tuple[int, ...]]) -> None:
    assert placed(spec) == expected


def test_node_groups() -> None:
    spec = parse({"a": {"node_group": "node", "placement": "0:0-2"}}, EIGHT)["a"]
    assert (spec.kind, spec.resources) == ("node", ((0,), (0,), (0,)))
    spec = parse({"a": "0:0-1"}, machine(0))["a"]
    assert (spec.kind, spec.resources) == ("node", ((0,), (0,)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("0-8", "'0-8' names accelerator 8, but the cluster has 8 accelerators (0-7)"),
        ("3-1", "the range 3-1 runs backwards"),
        ("0-1,1-2", "must ascend: 1 follows 1"),
        ("2,1", "must ascend: 1 follows 2"),
        ("0-1:1-2", "the process ranks must count up: expected 0, found 1"),
        ("0-1:0-3,2:5", "the process ranks must count up: expected 4, found 5"),
        ("0-2:0-1", "2 processes can't share 3 accelerators evenly"),
        ("0-1:0-2", "3 processes can't share 2 accelerators evenly"),
        ("x", "'x' can't be read at 'x'"),
        ("0-1:all", "can't be read at 'all'"),
        ("", "can't be read"),
        ("0,", "can't be read"),
        ("-1", "can't be read"),
        (True, "expected text"),
        (None, "expected text"),
        (1.5, "expected text"),
        ({"node_grup": "node", "placement": 0}, "Did you mean 'node_group'?"),
        ({"node_group": "nodes", "placement": 0}, "Did you mean 'node'?"),
        ({"node_group": "node"}, "missing"),
        ({"node_group": "node", "placement": "0-3"}, "names node 3, but the cluster has 1 node (0)"),
        ({"node_group": "cluster,node", "placement": "0"}, "the node groups 'cluster' and 'node' share node 0"),
    ],
)
def test_refusals_name_the_component(spec: Any, message: str) -> None:
    with pytest.raises(PlacementError, match=rf"cluster\.component_placement\.actor.*{re.escape(message)}"):
        parse({"actor": spec}, EIGHT)


def test_component_lists() -> None:
    assert list(parse({"actor, rollout": "0-1", "env": 0}, EIGHT)) == ["actor", "rollout", "env"]
    with pytest.raises(PlacementError, match="env: placed twice"):
        parse({"actor,env": 0, "env": 1}, EIGHT)
    with pytest.raises(PlacementError, match="without a name"):
        parse({"actor,": 0}, EIGHT)


@given(st.data(), st.integers(1, 16))
def test_every_well_formed_part_is_shared_evenly(data: st.DataObject, accelerators: int) -> None:
    first = data.draw(st.integers(0, accelerators - 1))
    last = data.draw(st.integers(first, accelerators - 1))
    count = last - first + 1
    processes = data.draw(st.sampled_from([n for n in range(1, 33) if n % count == 0 or count % n == 0]))
    found = placed(f"{first}-{last}:0-{processes - 1}", machine(accelerators))
    assert len(found) == processes
    assert {rank for ranks in found for rank in ranks} == set(range(first, last + 1))
    loads = [sum(rank in ranks for ranks in found) for rank in range(first, last + 1)]
    assert len(set(loads)) == 1
    assert len({len(ranks) for ranks in found}) == 1
    assert found == sorted(found)


@given(st.text("0123456789-:,al ", max_size=12), st.integers(0, 9))
def test_any_text_is_placed_within_the_cluster_or_refused(text: str, accelerators: int) -> None:
    have = machine(accelerators)
    try:
        spec = parse({"a": text}, have)["a"]
    except PlacementError:
        return
    assert all(0 <= rank < len(spec.pool.resources) for ranks in spec.resources for rank in ranks)
    assert all(spec.resources)


@given(
    st.dictionaries(
        st.text("ab,", max_size=3), st.one_of(st.integers(-2, 9), st.none(), st.lists(st.integers()), st.text("0-:", max_size=4))
    )
)
def test_any_mapping_is_placed_or_refused(mapping: dict[str, Any]) -> None:
    try:
        found = parse(mapping, EIGHT)
    except PlacementError:
        return
    assert set(found) == {name.strip() for names in mapping for name in names.split(",")}


def devices(strategy: Any, node: Node = NODE) -> list[tuple[int, ...]]:
    return [process.devices for process in strategy.plan(node, place="here")]


def test_strategies() -> None:
    assert devices(PackedPlacementStrategy(0, 3)) == [(0,), (1,), (2,), (3,)]
    assert devices(PackedPlacementStrategy(4, 7, num_hardware_per_process=2)) == [(4, 5), (6, 7)]
    assert devices(PackedPlacementStrategy(0, 3, num_hardware_per_process=2, stride=2)) == [(0, 2), (1, 3)]
    assert devices(FlexiblePlacementStrategy([[3, 2], [0]])) == [(0,), (2, 3)]
    assert devices(NodePlacementStrategy([0, 0])) == [(), ()]
    for refused in (
        PackedPlacementStrategy(0, 2, 2),
        PackedPlacementStrategy(0, 8),
        PackedPlacementStrategy(3, 1),
        FlexiblePlacementStrategy([]),
        FlexiblePlacementStrategy([[]]),
        FlexiblePlacementStrategy([[1, 1]]),
        FlexiblePlacementStrategy([[8]]),
        NodePlacementStrategy([1]),
        NodePlacementStrategy([]),
    ):
        with pytest.raises(PlacementError, match=r"^here: "):
            refused.plan(NODE, place="here")


def test_threads() -> None:
    def threads(strategy: Any, node: Node) -> list[int]:
        return [process.threads for process in strategy.plan(node, place="")]

    assert threads(FlexiblePlacementStrategy([[0, 1], [2]]), NODE) == [2, 1]
    assert threads(FlexiblePlacementStrategy([[0, 1], [0]]), Node(cores=32, accelerators=2, virtual=False)) == [32, 16]
    assert threads(NodePlacementStrategy([0, 0, 0]), Node(cores=8, accelerators=0, virtual=False)) == [2, 2, 2]
    assert threads(NodePlacementStrategy([0] * 9), NODE) == [1] * 9


def test_component_placement_of_a_run() -> None:
    placement = {"actor": "0-1", "rollout,env": "2:0-1", "reward": {"node_group": "node", "placement": 0}}
    config = {"backend": "local", "virtual_accelerators": {"count": 4}, "component_placement": placement}
    with Cluster(cluster_cfg=config) as cluster:
        found = HybridComponentPlacement({"cluster": config}, cluster)
        assert found.components == ("actor", "rollout", "env", "reward")
        assert [found.get_world_size(name) for name in found.components] == [2, 2, 2, 1]
        assert found.get_hardware_ranks("actor") == [0, 1]
        assert devices(found.get_strategy("env"), cluster.node) == [(2,), (2,)]
        table = found.describe().splitlines()
        assert table[1].split(maxsplit=2) == ["accelerator", "0", "actor[0] (1 thread)"]
        assert table[3].split(maxsplit=2) == ["accelerator", "2", "rollout[0-1] (1 thread), env[0-1] (1 thread)"]
        assert table[4].split() == ["accelerator", "3"]
        assert table[5].startswith("node 0          reward[0]")
        with pytest.raises(PlacementError, match=r"component_placement\.rolout: .*Did you mean 'rollout'\?"):
            found.get_strategy("rolout")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"component_placement": {"actor": "0-4"}}, r"cluster\.component_placement\.actor: '0-4' names accelerator 4"),
        ({"virtual_accelerators": {"count": 0}}, r"cluster\.virtual_accelerators\.count: expected at least 1, found 0"),
        ({"num_nodes": -1}, r"cluster\.num_nodes: expected at least 0, found -1"),
        ({"timeout_s": 0}, r"cluster\.timeout_s: expected a value in \(0, 2e\+06\], found 0"),
        ({"timeout_s": float("nan")}, r"cluster\.timeout_s: expected .*, found nan"),
        ({"timeout_s": 1e12}, r"cluster\.timeout_s: .* found 1e\+12"),
        ({"join_timeout_s": float("inf")}, r"cluster\.join_timeout_s: .* found inf"),
        ({"auto_scheduler": True}, r"cluster\.auto_scheduler: expected a section, found True\. Set \{policy: forecast\} for true"),
        ({"auto_scheduler": {"policy": "always"}}, r"cluster\.auto_scheduler\.policy: no choice 'always'"),
        ({"auto_scheduler": {"hysteresis": 0.5}}, r"cluster\.auto_scheduler\.hysteresis: expected at least 1, found 0\.5"),
        (
            {"backend": "local", "num_nodes": 3, "component_placement": {"actor": "0-1"}},
            r"cluster\.num_nodes: found 3, but the local back-end .* no component is placed on 1-2\. Leave it out",
        ),
        ({"bakend": "ray"}, r"cluster\.bakend: unknown key. Did you mean 'backend'\?"),
        ({"profiling": {"backend": "nsight"}}, r"cluster\.profiling: unknown key\. Set cluster\.tracer"),
        ({"backend": "rays"}, r"cluster\.backend: no choice 'rays'. Did you mean 'ray'\?"),
    ],
)
def test_a_fault_is_found_before_ray_is_started(config: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(Cluster, "_start", start)
    with pytest.raises(ConfigError, match=message):
        Cluster(cluster_cfg={"virtual_accelerators": {"count": 2}, **config})


MISSPELT = {"cluster": {"component_placement": {"actor, rollout": "0-3", "reward": 0, "rewrad": 1}}}


def test_the_components_of_a_run_are_the_only_ones_that_are_placed() -> None:
    three = ("actor", "rollout", "reward")
    refused = r"component_placement\.rewrad: this run has no component of that name\. Did you mean 'reward'\? This run has: "
    for placement in (HybridComponentPlacement, ModelParallelComponentPlacement):
        with pytest.raises(PlacementError, match=refused):
            placement(MISSPELT, EIGHT, required=three)
        assert "rewrad" in placement(MISSPELT, EIGHT, required=three, optional=["rewrad"]).components
        with pytest.raises(
            PlacementError, match=r"component_placement\.env: .* not placed\. Placed: actor, rollout, reward, rewrad"
        ):
            placement(MISSPELT, EIGHT, required=(*three, "rewrad", "env"))


def cluster_of(nodes: int, accelerators: int = 4, *, virtual: bool = False) -> Inventory:
    return Inventory([Node(cores=8, accelerators=accelerators, virtual=virtual, rank=rank) for rank in range(nodes)])


def test_strategies_on_several_nodes() -> None:
    two = cluster_of(2)
    plans = PackedPlacementStrategy(2, 5).plan(two, place="here")
    assert [(plan.node, plan.devices, plan.local, plan.threads) for plan in plans] == [
        (0, (2,), (2,), 2),
        (0, (3,), (3,), 2),
        (1, (4,), (0,), 2),
        (1, (5,), (1,), 2),
    ]
    plans = FlexiblePlacementStrategy([[6, 7], [0, 2, 3]]).plan(two, place="here")
    assert [(plan.rank, plan.node, plan.devices, plan.threads) for plan in plans] == [(0, 0, (0, 2, 3), 6), (1, 1, (6, 7), 4)]
    plans = NodePlacementStrategy([1, 0, 1]).plan(two, place="here")
    assert [(plan.node, plan.devices, plan.threads) for plan in plans] == [(0, (), 8), (1, (), 4), (1, (), 4)]
    grouped = Inventory(two.nodes, {"last": NodeGroup(label="last", nodes=(1,))})
    assert PackedPlacementStrategy(0, 1, 2, node_group="last").plan(grouped, place="here")[0].devices == (4, 5)
    assert FlexiblePlacementStrategy([[1]], "last").plan(grouped, place="here")[0].devices == (5,)
    assert NodePlacementStrategy([0], "last").plan(grouped, place="here")[0].node == 1


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (PackedPlacementStrategy(2, 5, 4), "accelerators 2-5 of one process are on several nodes"),
        (PackedPlacementStrategy(0, 7, 2, 4), "accelerators 0,4 of one process are on several nodes"),
        (PackedPlacementStrategy(0, 8), "accelerators 0-8 were named, but the cluster has 8 accelerators (0-7)"),
        (PackedPlacementStrategy(3, 1), "the last accelerator, 1, comes before the first, 3. Swap them"),
        (PackedPlacementStrategy(0, 3, -2, -2), "can't be packed by -2 × stride -2"),
        (FlexiblePlacementStrategy([[3, 4]]), "accelerators 3-4 of one process are on several nodes"),
        (FlexiblePlacementStrategy([[-1]]), "accelerators [-1] were named"),
        (FlexiblePlacementStrategy([[0]], "node"), "accelerators [0] were named, but the cluster has none"),
        (FlexiblePlacementStrategy([[0]], "noed"), "no node group 'noed'. Did you mean 'node'?"),
        (NodePlacementStrategy([0, 2, 2]), "nodes [0, 2] were named, but the cluster has 2 nodes (0-1)"),
    ],
)
def test_strategies_refuse_what_is_not_there(strategy: PlacementStrategy, message: str) -> None:
    with pytest.raises(PlacementError, match=rf"^here: .*{re.escape(message)}"):
        strategy.plan(cluster_of(2), place="here")


def test_the_grammar_on_several_nodes() -> None:
    two = cluster_of(2)
    plan = HybridComponentPlacement({"cluster": {"component_placement": {"a": "0-7:0-1"}}}, two).plan("a")
    assert [process.devices for process in plan] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    with pytest.raises(PlacementError, match=r"'2-5:0' one process would have the accelerators 2-5, of the nodes 0 and 1"):
        parse({"a": "2-5:0"}, two)
    spec = parse({"a": {"node_group": "node", "placement": "0-1:0-199"}}, two)["a"]
    assert spec.resources == ((0,),) * 100 + ((1,),) * 100


def test_a_typing_error_does_not_fill_the_memory() -> None:
    with pytest.raises(PlacementError, match="asks for 1000000000 processes"):
        parse({"a": "0:0-999999999"}, EIGHT)
    with pytest.raises(PlacementError, match="names accelerator 999999999"):
        parse({"a": "0-999999999"}, EIGHT)


def test_uneven_counts_are_refused_with_a_way_out() -> None:
    with pytest.raises(PlacementError, match=r"5 processes can't share 3 accelerators evenly.*: 3 or 6 processes would"):
        parse({"a": "0-2:0-4"}, EIGHT)


@pytest.mark.parametrize(
    ("cores", "virtual", "written", "threads"),
    [
        # Six processes on one accelerator; each by itself would have all cores.
        (16, False, {"actor,rollout": "0", "env": "0:0-3"}, {"actor": 2, "rollout": 2, "env": 2}),
        (16, False, {"actor": "0", "env": {"node_group": "node", "placement": "0:0-2"}}, {"actor": 4, "env": 4}),
        # Alone it has what it had, and never less than one.
        (16, False, {"actor": "0"}, {"actor": 16}),
        (2, False, {"actor,rollout": "0", "env": "0:0-3"}, {"actor": 1, "rollout": 1, "env": 1}),
        # Virtual ones are a core each, as they were: threads decide roundings.
        (2, True, {"actor": "0", "rollout": "0", "env": "0:0-3"}, {"actor": 1, "rollout": 1, "env": 1}),
    ],
)
def test_the_processes_of_a_run_plan_no_more_threads_than_cores(
    cores: int, virtual: bool, written: Any, threads: dict[str, int]
) -> None:
    node = Node(cores=cores, accelerators=1, virtual=virtual)
    placement = HybridComponentPlacement({"cluster": {"component_placement": written}}, Inventory.of(node))
    found = {name: [plan.threads for plan in placement.plan(name)] for name in placement.components}
    assert {name: set(counts) for name, counts in found.items()} == {name: {count} for name, count in threads.items()}
    assert sum(map(sum, found.values())) <= max(cores, sum(map(len, found.values())))


@pytest.mark.parametrize("virtual", [False, True])
def test_a_node_group_can_say_how_many_threads_its_processes_have(virtual: bool) -> None:
    inventory = Inventory.of(Node(cores=16, accelerators=1, virtual=virtual))
    inventory.groups[CLUSTER] = replace(inventory.groups[CLUSTER], env_vars={0: {"OMP_NUM_THREADS": "12"}})
    placement = HybridComponentPlacement({"cluster": {"component_placement": {"actor,rollout": "0"}}}, inventory)
    assert [plan.threads for name in ("actor", "rollout") for plan in placement.plan(name)] == [12, 12]
    inventory.groups[CLUSTER] = replace(inventory.groups[CLUSTER], env_vars={0: {"OMP_NUM_THREADS": "many"}})
    with pytest.raises(PlacementError, match=r"^cluster\.node_groups: cluster: OMP_NUM_THREADS: expected .*, found 'many'"):
        placement.get_strategy("actor").plan(inventory, place="")


def test_the_table_of_several_nodes() -> None:
    written = {"actor,rollout": "all", "env": "0-1:0-3", "reward": {"node_group": "node", "placement": "1:0-1"}}
    placement = HybridComponentPlacement({"cluster": {"component_placement": written}}, cluster_of(2, 2))
    assert placement.describe() == (
        "2 nodes with 16 CPU cores and 4 accelerators (0-3)\n"
        "node 0: 8 threads planned on 8 cores\n"
        "  accelerator 0           actor[0] (1 thread), rollout[0] (1 thread), env[0-1] (1 thread)\n"
        "  accelerator 1           actor[1] (1 thread), rollout[1] (1 thread), env[2-3] (1 thread)\n"
        "node 1: 6 threads planned on 8 cores\n"
        "  accelerator 2           actor[2] (1 thread), rollout[2] (1 thread)\n"
        "  accelerator 3           actor[3] (1 thread), rollout[3] (1 thread)\n"
        "  node 1                  reward[0-1] (1 thread)"
    )


def test_the_table_of_very_many_nodes_is_folded() -> None:
    written = {"actor": "all", "rollout": "0-4999:0-9999", "reward": {"node_group": "node", "placement": "0"}}
    placement = HybridComponentPlacement({"cluster": {"component_placement": written}}, cluster_of(1250, 8, virtual=True))
    assert placement.describe() == (
        "1250 nodes with 10000 CPU cores and 10000 virtual accelerators (0-9999)\n"
        "node 0: 32 threads planned on 8 cores\n"
        "  accelerators 0-7        actor[0-7] (1 thread), rollout[0-15] (2 on each, 1 thread)\n"
        "  node 0                  reward[0] (8 threads)\n"
        "nodes 1-624, each: 24 threads planned on 8 cores\n"
        "  accelerators 8-4999     actor[8-4999] (1 thread), rollout[16-9999] (2 on each, 1 thread)\n"
        "nodes 625-1249, each: 8 threads planned on 8 cores\n"
        "  accelerators 5000-9999  actor[5000-9999] (1 thread)"
    )
    cut = placement.describe(limit=3).splitlines()
    assert cut[-1] == "… 5 more lines; describe(limit=None) has them all"
    assert len(placement.describe(limit=None).splitlines()) == 1 + 1250 + 10_000 + 1


def test_the_mode_of_a_scheduler_at_run_time_is_told_what_stands_for_it() -> None:
    modes: Any = PlacementMode
    with pytest.raises(AttributeError, match=r"PlacementMode\.AUTO: there is no such name here\. .*cluster\.auto_scheduler"):
        _ = modes.AUTO
    assert [mode.name for mode in PlacementMode] == ["COLLOCATED", "DISAGGREGATED", "HYBRID"]
    assert PlacementMode("hybrid") is PlacementMode["HYBRID"] is PlacementMode.HYBRID
    with pytest.raises(AttributeError, match="COLOCATED"):
        _ = modes.COLOCATED
