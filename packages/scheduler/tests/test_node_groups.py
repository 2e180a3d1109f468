"""`cluster.node_groups` and `virtual_accelerators`: what a configuration makes of machines."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.config import read
from rlinf.core.envs.robots import HasController
from rlinf.core.errors import ConfigError, PlacementError
from rlinf.scheduler import Cluster, ClusterConfig, HybridComponentPlacement, Node, Worker
from rlinf.scheduler.hardware import Device, Franka, Inventory, NodeGroup, SimulatedArm, register_hardware, take_inventory
from rlinf.scheduler.placement.environment import process_environment, process_interpreter
from rlinf.scheduler.ranks import format_ranks, parse_ranks

VIRTUAL = {"virtual_accelerators": {"count": 2, "cores": 4, "nodes": {"2-3": {"count": 0}}}, "num_nodes": 4}
ARMS = {
    "label": "arms",
    "node_ranks": "2-3",
    "hardware": {
        "type": "Franka",
        "configs": [{"node_rank": 3, "robot_ip": "10.0.0.3"}, {"node_rank": 2, "robot_ip": "10.0.0.2", "camera_serials": ["a"]}],
    },
}

TWIN = {"node_rank": 3, "robot_ip": "10.0.0.2", "camera_serials": ["b"]}
"""Nothing but its address is that of another arm."""


def inventory(*groups: dict[str, Any], **more: Any) -> Inventory:
    return take_inventory(read(ClusterConfig, {**VIRTUAL, **more, "node_groups": list(groups)}, place="cluster"))


def placed(have: Inventory, **placement: Any) -> HybridComponentPlacement:
    return HybridComponentPlacement({"cluster": {"component_placement": placement}}, have)


def test_virtual_nodes() -> None:
    have = inventory()
    assert [node.accelerators for node in have.nodes] == [2, 2, 0, 0]
    assert [node.rank for node in have.nodes] == [0, 1, 2, 3]
    assert have.accelerator_ranks == [[0, 1], [2, 3], [], []]
    assert have.describe() == "4 nodes with 16 CPU cores and 4 virtual accelerators (0-3)"
    more = {"count": 1, "memory": "8GiB", "nodes": {"1": {"memory": "9GiB", "model": "big", "cores": 7}}}
    first, second = inventory(virtual_accelerators=more, num_nodes=2).nodes
    assert (first.devices[0].memory, first.devices[0].model) == (8 * 2**30, "")
    assert (second.devices[0].memory, second.devices[0].model, second.cores) == (9 * 2**30, "big", 7)


@pytest.mark.parametrize(
    ("virtual", "message"),
    [
        ({"count": 1, "memory": "lots"}, "cluster.virtual_accelerators.memory: expected a size such as '80GiB', found 'lots'"),
        ({"count": 1, "memory": "8Gib/s"}, "cluster.virtual_accelerators.memory: expected a size"),
        ({"count": 1, "memory": "8GiBs"}, "Did you mean 'GiB'?"),
        ({"count": 1, "cores": 0}, "cluster.virtual_accelerators.cores: expected at least 1, found 0"),
        ({"count": 1, "nodes": {"0": {"count": -1}}}, "cluster.virtual_accelerators.nodes.0.count: expected at least 0, found -1"),
        ({"count": 1, "nodes": {"4": {}}}, "cluster.virtual_accelerators.nodes.4: '4' names node 4, but there are 4 nodes (0-3)"),
        ({"count": 1, "nodes": {"0-1": {}, "1": {}}}, "cluster.virtual_accelerators.nodes.1: node 1 is described twice"),
        ({"count": 1, "nodes": {"x": {}}}, "cluster.virtual_accelerators.nodes.x: 'x' can't be read at 'x'"),
    ],
)
def test_refused_virtual_accelerators(virtual: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        inventory(virtual_accelerators=virtual)


def test_a_robot_says_where_its_controller_answers() -> None:
    """As an environment asks for it, of the hardware of its worker."""
    assert all(isinstance(arm, HasController) for arm in (Franka(node_rank=0, robot_ip="10.0.0.2"), SimulatedArm(node_rank=0)))
    assert Franka(node_rank=0, robot_ip="10.0.0.2").controller == "127.0.0.1:7000"
    assert SimulatedArm(node_rank=0).controller is None
    with pytest.raises(ConfigError, match="controller: expected host:port, found 'somewhere'"):
        SimulatedArm(node_rank=0, controller="somewhere")


def test_robots_are_resources() -> None:
    have = inventory(ARMS, {"label": "train", "node_ranks": "0-1"})
    assert have.nodes[2].types == ("Franka",)
    placement = placed(
        have,
        env={"node_group": "arms", "placement": "0-1"},
        actor={"node_group": "train", "placement": "0-3:0-1"},
        data={"node_group": "node", "placement": "2-3:0-3"},
    )
    first, second = placement.plan("env")
    assert (first.node, first.hardware_type, first.devices, first.threads) == (2, "Franka", (), 4)
    assert first.hardware[0].config == Franka(node_rank=2, robot_ip="10.0.0.2", camera_serials=("a",))
    assert (second.node, second.node_group) == (3, "arms")
    assert [plan.devices for plan in placement.plan("actor")] == [(0, 1), (2, 3)]
    assert [(plan.node, plan.threads) for plan in placement.plan("data")] == [(2, 2), (2, 2), (3, 2), (3, 2)]
    assert placement.get_hardware_ranks("env") == [0, 1]
    assert placement.get_hardware_ranks("data") == []
    assert "  Franka 1                env[1] (4 threads)" in placement.describe()
    with pytest.raises(PlacementError, match=re.escape("'0-2' names Franka 2, but node group 'arms' has 2 Frankas (0-1)")):
        placed(have, env={"node_group": "arms", "placement": "0-2"})


def test_a_simulated_arm_stands_on_one_machine() -> None:
    arm = {"label": "arm", "node_ranks": 0, "hardware": {"type": "simulatedarm", "configs": [{"node_rank": 0, "model": "ur5e"}]}}
    config = {
        "backend": "local",
        "virtual_accelerators": {"count": 1},
        "node_groups": [arm],
        "component_placement": {"actor": 0, "env": {"node_group": "arm", "placement": 0}},
    }
    with Cluster(cluster_cfg=config) as cluster:
        (plan,) = HybridComponentPlacement(None, cluster).plan("env")
        assert plan.hardware[0].config == SimulatedArm(node_rank=0, model="ur5e")
        assert "env[0]" in cluster.describe()


def test_a_stranger_registers_hardware() -> None:
    @register_hardware("TestGripper")
    @dataclass(frozen=True, kw_only=True)
    class Gripper:
        node_rank: int
        port: str

    group = {"label": "g", "node_ranks": 1, "hardware": {"type": "TestGripper", "configs": [{"node_rank": 1, "port": "usb"}]}}
    (device,) = inventory(group).nodes[1].hardware["TestGripper"]
    assert device.config == Gripper(node_rank=1, port="usb")


def test_several_groups_are_numbered_one_after_another() -> None:
    b, a = {"label": "b", "node_ranks": 1}, {"label": "a", "node_ranks": 0}
    have = inventory(b, a)
    for labels in ("b,a", " b , a ", ["b", "a"], ("b", "a")):
        plans = placed(have, x={"node_group": labels, "placement": "0-3"}).plan("x")
        assert [plan.devices for plan in plans] == [(2,), (3,), (0,), (1,)]
        assert [plan.node_group for plan in plans] == ["b", "b", "a", "a"]
    assert [plan.node for plan in placed(have, x={"node_group": "node", "placement": "all"}).plan("x")] == [0, 1, 2, 3]


def test_a_group_without_hardware_makes_all_of_them_nodes() -> None:
    have = inventory({"label": "gpus", "node_ranks": "0-1"}, {"label": "cpus", "node_ranks": "2-3"})
    plans = placed(have, x={"node_group": ["cpus", "gpus"], "placement": "all"}).plan("x")
    assert [(plan.node, plan.devices) for plan in plans] == [(2, ()), (3, ()), (0, ()), (1, ())]
    with pytest.raises(PlacementError, match="spreads one process over 2 nodes"):
        placed(have, x={"node_group": "cpus", "placement": "0-1:0"})


def test_ignore_hardware_and_hardware_type() -> None:
    have = inventory({"label": "plain", "node_ranks": "0-1", "ignore_hardware": True}, {"label": "gpus", "node_ranks": "0-1"})
    assert [p.devices for p in placed(have, x={"node_group": "plain", "placement": "0-1"}).plan("x")] == [(), ()]
    assert [p.devices for p in placed(have, x={"node_group": "gpus", "placement": "1"}).plan("x")] == [(1,)]
    virtual = {**VIRTUAL["virtual_accelerators"], "type": "NV_GPU"}
    have = inventory({"label": "g", "node_ranks": "all", "hardware_type": "nv_gpu"}, virtual_accelerators=virtual)
    assert [p.devices for p in placed(have, x={"node_group": "g", "placement": "all"}).plan("x")] == [(0,), (1,), (2,), (3,)]


def test_two_types_of_hardware_in_one_placement() -> None:
    have = inventory(ARMS, {"label": "gpus", "node_ranks": "0-1"})
    plans = placed(have, x={"node_group": "gpus,arms", "placement": "0-5"}).plan("x")
    assert [plan.hardware_type for plan in plans] == ["Accelerator"] * 4 + ["Franka"] * 2
    with pytest.raises(PlacementError, match="one process would have"):
        placed(have, x={"node_group": "gpus,arms", "placement": "3-4:0"})


def test_environments() -> None:
    group = {
        "label": "g",
        "node_ranks": "all",
        "env_configs": [
            {"node_ranks": "0-1", "env_vars": [{"A": 1}, {"PATH": "/new:/old"}], "python_interpreter_path": "/opt/python"},
            {"node_ranks": 3, "env_vars": {"B": "x"}},
        ],
    }
    have = inventory(group)
    plans = placed(have, x={"node_group": "g", "placement": "0,2"}, y="0").plan("x")
    inherited = {"PATH": "/old:/usr"}
    assert process_environment(have, plans[0], inherited=inherited) == {"A": "1", "PATH": "/new:/old:/usr"}
    override = {**inherited, "RLINF_PATH_ENV_MERGE_MODE": "override"}
    assert process_environment(have, plans[1], inherited=override) == {"A": "1", "PATH": "/new:/old"}
    assert process_interpreter(have, plans[0]) == "/opt/python"
    (other,) = placed(have, y="0").plan("y")
    assert (process_environment(have, other, inherited=inherited), process_interpreter(have, other)) == ({}, None)
    with pytest.raises(ConfigError, match="Did you mean 'override'"):
        process_environment(have, other, inherited={"RLINF_PATH_ENV_MERGE_MODE": "overide"})


def test_a_process_is_told_its_devices_by_their_own_names() -> None:
    devices = (Device(id="2"), Device(id="5"), Device(id="MIG-1"))
    nodes = [Node(cores=9, accelerators=3, virtual=False, rank=r, accelerator_type="NV_GPU", devices=devices) for r in range(2)]
    have = Inventory(nodes)
    (_, plan) = placed(have, x="0,4-5:1").plan("x")
    assert plan.devices == (4, 5)
    assert process_environment(have, plan, inherited={})["CUDA_VISIBLE_DEVICES"] == "5,MIG-1"
    (plan,) = placed(have, x={"node_group": "node", "placement": 0}).plan("x")
    assert process_environment(have, plan, inherited={}) == {}, "on a node, a process sees all devices"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"label": "node", "node_ranks": 0}], "cluster.node_groups[0].label: 'node' always exists"),
        ([{"label": "a,b", "node_ranks": 0}], "cluster.node_groups[0].label: 'a,b' can't be a label"),
        ([{"label": "", "node_ranks": 0}], "can't be a label"),
        (
            [{"label": "a", "node_ranks": "0-4"}],
            "cluster.node_groups[0].node_ranks: '0-4' names node 4, but there are 4 nodes (0-3)",
        ),
        (
            [{"label": "a", "node_ranks": "2-0"}],
            "cluster.node_groups[0].node_ranks: in '2-0' the range 2-0 runs backwards. Write 0-2",
        ),
        ([{"label": "a", "node_ranks": "0-2,1"}], "'0-2,1' names rank 1 twice"),
        ([{"label": "a", "node_ranks": "0,x"}], "'0,x' can't be read at 'x'"),
        ([{"label": "a", "node_ranks": True}], "cluster.node_groups[0].node_ranks: expected"),
        ([{"label": "a", "nodes": 0}], "cluster.node_groups[0].nodes: unknown key. Did you mean 'node_ranks'?"),
        ([{"label": "a", "node_ranks": 0}, {"label": "a", "node_ranks": 1}], "cluster.node_groups[1].label: 'a' is given twice"),
        (
            [{"label": "a", "node_ranks": "0-1"}, {"label": "b", "node_ranks": 1}],
            "[1]: node 1 and its accelerators are in the group 'a'",
        ),
        ([ARMS, {**ARMS, "label": "b"}], "node 2 and its Franka are in the group 'arms' already"),
        (
            [{"label": "a", "node_ranks": 2, "hardware_type": "Accelerator"}],
            "no hardware of type 'Accelerator' at node 2 of the group 'a'",
        ),
        ([{"label": "a", "node_ranks": 0, "hardware_type": "VIRTAUL"}], "Did you mean 'VIRTUAL'? They have: VIRTUAL"),
        (
            [{"label": "a", "node_ranks": 0, "hardware": {"type": "Franca"}}],
            "[0].hardware.type: no hardware named 'Franca'. Did you mean 'franka'",
        ),
        ([{"label": "a", "node_ranks": 0, "hardware": {"type": "Franka"}}], "no hardware of type 'Franka' at node 0"),
        (
            [{"label": "a", "node_ranks": 0, "hardware": {"type": "Franka"}, "hardware_type": "Accelerator"}],
            "is not the 'Franka' of",
        ),
        ([{"label": "a", "node_ranks": 0, "ignore_hardware": True, "hardware_type": "Accelerator"}], "contradicts hardware_type"),
        ([{**ARMS, "node_ranks": 2}], "hardware.configs[0].node_rank: expected a node of the group (2), found 3"),
        (
            [
                {
                    "label": "a",
                    "node_ranks": 0,
                    "hardware": {"type": "Franka", "configs": [{"node_rank": 0, "robot_ip": "franka.local"}]},
                }
            ],
            "cluster.node_groups[0].hardware.configs[0].robot_ip: expected an address such as 172.16.0.2, found 'franka.local'",
        ),
        (
            [{**ARMS, "hardware": {"type": "Franka", "configs": [{"node_rank": 2, "robot_ip": "10.0.0.2"}, TWIN]}}],
            "[0].hardware.configs[1]: this Franka is declared at [0].hardware.configs[0] already. Declare each piece once.",
        ),
        (
            [{"label": "a", "node_ranks": 0, "hardware": {"type": "SimulatedArm", "configs": [{"node_rank": 0}] * 2}}],
            "[0].hardware.configs[1]: this SimulatedArm is declared",
        ),
        (
            [{"label": "a", "node_ranks": "0-1", "env_configs": [{"node_ranks": "1-2"}]}],
            "env_configs[0].node_ranks: '1-2' names node 2, but the group 'a' has 0-1",
        ),
        (
            [{"label": "a", "node_ranks": "0-1", "env_configs": [{"node_ranks": "all"}, {"node_ranks": 1}]}],
            "env_configs[1].node_ranks: node 1 has an entry already",
        ),
        (
            [{"label": "a", "node_ranks": 0, "env_configs": [{"node_ranks": 0, "env_vars": [{"A": 1}, {"A": 2}]}]}],
            "env_vars.A: given twice",
        ),
        ([{"label": "a", "node_ranks": 0, "env_configs": [{"node_ranks": 0, "env_vars": {"A=B": 1}}]}], "'A=B' can't be the name"),
        ([{"label": "a", "node_ranks": 0, "env_configs": [{"node_ranks": 0, "python_interpreter_path": ""}]}], "is empty"),
    ],
)
def test_refused_groups(groups: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        inventory(*groups)


def test_all_faults_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        inventory(
            {"label": "a", "node_ranks": "0-9"},
            {"label": "b", "node_ranks": 0, "hardware": {"type": "Robot"}},
            {**ARMS, "node_ranks": 3},
        )
    text = str(caught.value)
    assert "3 faults" in text
    assert all(place in text for place in ("[0].node_ranks", "[1].hardware.type", "[2].hardware.configs[1].node_rank"))
    with pytest.raises(ConfigError) as caught:
        inventory({"label": "node", "node_ranks": "x"}, {"label": "b", "node_rank": 0})
    assert all(place in str(caught.value) for place in ("[0].label", "[1].node_rank: unknown key", "[1].node_ranks: missing"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            "arm",
            "component_placement.x.node_group: no node group 'arm'. Did you mean 'arms'? The cluster has: arms, cluster, node",
        ),
        ("arms,arms", "node group 'arms' is named twice"),
        ("arms,", "expected labels of node groups"),
        ([], "names no node group"),
        (["arms", 3], "no node group '3'"),
        (3, "expected labels of node groups, found 3"),
        ("cluster,node", "share node 0"),
    ],
)
def test_refused_labels(labels: Any, message: str) -> None:
    with pytest.raises(PlacementError, match=re.escape(message)):
        placed(inventory(ARMS), x={"node_group": labels, "placement": "0"})


def test_an_inventory_by_hand() -> None:
    nodes = [Node(cores=8, accelerators=4, virtual=False, rank=rank) for rank in range(3)]
    have = Inventory(nodes, {"last": NodeGroup(label="last", nodes=(2,))})
    assert placed(have, x={"node_group": "last", "placement": "all"}).get_hardware_ranks("x") == [8, 9, 10, 11]
    for wrong in ([], nodes[1:], [nodes[0], nodes[0]]):
        with pytest.raises(ConfigError, match="expected the ranks 0, 1, 2"):
            Inventory(wrong)
    with pytest.raises(ConfigError, match=re.escape("node group 'far': expected nodes of 0-2, found [3]")):
        Inventory(nodes, {"far": NodeGroup(label="far", nodes=(3,))})


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, (3,)), ("0-3", (0, 1, 2, 3)), ("0,2,5-7", (0, 2, 5, 6, 7)), ("5, 0-1", (0, 1, 5)), ("all", tuple(range(8)))],
)
def test_ranks(value: int | str, expected: tuple[int, ...]) -> None:
    assert parse_ranks(value, 8, place="here") == expected


@pytest.mark.parametrize("value", ["", "0,", "-1", "a", "8", "0-8", "2-1", "1,1", "0-3,2", "alll", -1])
def test_no_ranks(value: int | str) -> None:
    with pytest.raises(ConfigError, match=r"^here: "):
        parse_ranks(value, 8, place="here")


@given(st.sets(st.integers(0, 40)))
def test_ranks_are_read_as_they_are_written(ranks: set[int]) -> None:
    text = format_ranks(sorted(ranks))
    assert not ranks or parse_ranks(text, 41, place="") == tuple(sorted(ranks))
    assert text.count(",") == max(0, sum(rank - 1 not in ranks for rank in ranks) - 1), "as short as can be"


class Looker(Worker):
    """Says what it was told."""

    def look(self) -> tuple[str | None, str | None]:
        return os.environ.get("RLINF_TEST_A"), os.environ.get("OMP_NUM_THREADS")


@pytest.mark.ray
def test_a_worker_on_ray_gets_the_environment_of_its_group() -> None:
    group = {"label": "g", "node_ranks": "all", "env_configs": [{"node_ranks": 0, "env_vars": [{"RLINF_TEST_A": 3}]}]}
    placement = {"told": {"node_group": "g", "placement": "0-1:0"}, "untold": 0}
    config = {"virtual_accelerators": {"count": 2}, "node_groups": [group], "component_placement": placement, "timeout_s": 120.0}
    with Cluster(cluster_cfg=config) as cluster:
        found = HybridComponentPlacement(None, cluster)
        seen = [
            Looker.create_group().launch(cluster, name=name, placement_strategy=found.get_strategy(name)).look().wait()
            for name in placement
        ]
    assert seen == [[("3", "2")], [(None, "1")]]
