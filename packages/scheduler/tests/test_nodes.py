"""Which machines make up a cluster, what each one's processes inherit, and how they reach each other; without Ray."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from itertools import permutations
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

import pytest
from channel_runs import connections

from rlinf.core.config import read
from rlinf.core.errors import ChannelClosed, ConfigError, PlacementError, UnknownName
from rlinf.scheduler import Cluster, ClusterConfig, HybridComponentPlacement, Node, NodePlacementStrategy, Worker
from rlinf.scheduler.machine import environment_of, interface_of, look_around, name_of, unhidden
from rlinf.scheduler.membership import JoinedNode, Machine, absence, choose, complete
from rlinf.scheduler.placement.environment import changes_since, network_variables, on_top
from rlinf.scheduler.transport.encoding import decode, encode
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo, connect
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport, SocketTransport
from rlinf.scheduler.transport.waits import Wait


def node(
    ip: str, rank: str | None = None, *, head: bool = False, kind: str = "", silent: bool = False, port: int = 1
) -> JoinedNode:
    machine = Machine(
        hostname="",
        memory=1,
        interpreter="",
        environment={} if rank is None else {"RLINF_NODE_RANK": rank},
        interface="",
        node=Node(cores=1, accelerators=0, virtual=False, accelerator_type=kind),
    )
    return JoinedNode(id=f"{ip}-{port}", ip=ip, port=port, head=head, machine=None if silent else machine)


def ips(arrivals: tuple[JoinedNode, ...]) -> list[str]:
    return [arrival.ip for arrival in arrivals]


def test_without_ranks_the_head_is_first_and_the_others_follow_by_accelerator_and_address() -> None:
    come = [
        node("10.0.0.9", head=True, kind="NV_GPU"),
        node("10.0.0.2", kind="AMD_GPU"),
        node("10.0.0.10", kind="AMD_GPU"),
        node("10.0.0.1", kind="NV_GPU"),
    ]
    for order in permutations(come):
        assert ips(choose(order, 0, grouped=False)) == ["10.0.0.9", "10.0.0.2", "10.0.0.10", "10.0.0.1"]
        assert ips(choose(order, 2, grouped=False)) == ["10.0.0.9", "10.0.0.2"]
    twins = [node("10.0.0.1", port=7), node("10.0.0.1", port=5), node("host", port=2)]
    assert {tuple(arrival.port for arrival in choose(order, 3, grouped=False)) for order in permutations(twins)} == {(2, 5, 7)}


def test_ranks_that_were_exported_are_the_ranks() -> None:
    come = [node("10.0.0.1", "2", head=True), node("10.0.0.2", "0"), node("10.0.0.3", "1"), node("10.0.0.4", "10")]
    assert ips(choose(come, 3, grouped=True)) == ["10.0.0.2", "10.0.0.3", "10.0.0.1"]
    assert complete(come, 3)
    assert not complete(come[:2], 2), "2 and 0 came, 1 may follow"
    assert not complete([*come[:2], node("10.0.0.3", "1", silent=True)], 3)
    assert complete(come[:1], 0)
    assert not complete([*come[:1], node("10.0.0.9", silent=True)], 0)
    assert not complete([], 0)
    assert complete(come[:1], 1)
    assert ips(choose(come[:1], 1, grouped=True)) == ["10.0.0.1"], "a node alone is node 0, whatever it has"
    for arrivals, wanted, message in [
        (come, 0, "RLINF_NODE_RANK: no node is 3; found 10.0.0.2 (RLINF_NODE_RANK 0), 10.0.0.3 (RLINF_NODE_RANK 1), 10.0.0.1"),
        ([node("a", "1"), node("b", "2")], 2, "no node is 0"),
        ([node("a", "1"), node("b")], 2, "RLINF_NODE_RANK: a (RLINF_NODE_RANK 1) have one, b have none. Export RLINF_NODE_RANK"),
        ([node("a", "1"), node("b", "01")], 2, "a and b both are 1"),
        ([node("a", "first")], 1, "expected 0, 1, 2, …, found 'first' on a"),
        ([node("a", "-1")], 1, "found '-1' on a"),
        ([node("a", "²")], 1, "found '²' on a"),
    ]:
        with pytest.raises(ConfigError, match=re.escape(message)):
            choose(arrivals, wanted, grouped=False)
    with pytest.raises(ConfigError, match="both are 1"):
        complete([node("a", "1"), node("b", "1")], 5)


def test_groups_of_nodes_need_ranks() -> None:
    come = [node("10.0.0.1"), node("10.0.0.2")]
    with pytest.raises(ConfigError, match=re.escape("cluster.node_groups names nodes by rank, but the 2 nodes have none. Export")):
        choose(come, 2, grouped=True)
    assert len(choose(come[:1], 1, grouped=True)) == 1
    assert len(choose(come, 2, grouped=False)) == 2


def test_who_is_missing() -> None:
    come = [node("10.0.0.2", "2"), node("10.0.0.1", "0"), node("10.0.0.3", silent=True)]
    assert absence(come, 5) == (
        "3 of 5 nodes came: 10.0.0.3, 10.0.0.1 (RLINF_NODE_RANK 0), 10.0.0.2 (RLINF_NODE_RANK 2); no answer from 10.0.0.3; "
        "missing: RLINF_NODE_RANK 1,3-4"
    )
    assert absence([node("10.0.0.1")], 2) == "1 of 2 nodes came: 10.0.0.1"
    assert absence([], 2) == "0 of 2 nodes came: none"


def test_what_a_machine_says_of_itself() -> None:
    seen = look_around(read(ClusterConfig, {}, place="cluster"), "127.0.0.1", {"A": "1"})
    assert seen.environment == {"A": "1"}
    assert (seen.interface, seen.node.cores) == ("lo", len(os.sched_getaffinity(0)))
    assert seen.memory > 1 << 28
    assert interface_of("203.0.113.1") == ""
    assert environment_of(2**22 + 1) is None
    inherited = environment_of(os.getpid())
    assert inherited is not None
    assert inherited["PATH"] == os.environ["PATH"]
    assert name_of(os.getpid())
    assert unhidden({"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "1", "X": ""}) == {"HIP_VISIBLE_DEVICES": "1", "X": ""}


def test_what_was_set_since_ray_was_started_goes_to_all_nodes() -> None:
    started = {"A": "1", "PATH": "/bin", "B": "2"}
    now = {"A": "1", "B": "3", "PATH": "/venv/bin:/bin", "PWD": "/x", "RAY_ADDRESS": "y", "RLINF_NODE_RANK": "0", "C": ""}
    now |= {"CUDA_VISIBLE_DEVICES": "1", "PYTHONPYCACHEPREFIX": "/home/me/.cache"}
    changes = changes_since(started, now)
    assert changes == {"B": "3", "PATH": "/venv/bin:/bin", "C": ""}
    there = {"PATH": "/opt/bin:/bin", "A": "other"}
    assert on_top(changes, there) == {"B": "3", "PATH": "/venv/bin:/bin:/opt/bin", "C": ""}
    assert on_top(changes, {**there, "RLINF_PATH_ENV_MERGE_MODE": "override"}) == changes
    with pytest.raises(ConfigError, match="no mode 'prepend'"):
        on_top({"RLINF_PATH_ENV_MERGE_MODE": "prepend"}, there)


def test_which_network_interface_collective_libraries_take() -> None:
    assert network_variables({}, "eth1", spans_nodes=True) == {"GLOO_SOCKET_IFNAME": "eth1"}
    assert network_variables({}, "eth1", spans_nodes=False) == {}
    assert network_variables({}, "", spans_nodes=True) == {}
    assert network_variables({"GLOO_SOCKET_IFNAME": "ib0"}, "eth1", spans_nodes=True) == {}
    named = {"RLINF_COMM_NET_DEVICES": "ib0", "NCCL_SOCKET_IFNAME": "ib1"}
    assert network_variables(named, "eth1", spans_nodes=False) == {"GLOO_SOCKET_IFNAME": "ib0"}


class Where(Worker):
    def about(self) -> int:
        return self.world_size


def test_a_laptop_stands_for_several_nodes() -> None:
    config: dict[str, Any] = {
        "backend": "local",
        "virtual_accelerators": {"count": 2, "cores": 4, "nodes": {"2": {"count": 0}}},
        "node_groups": [{"label": "last", "node_ranks": 2}],
        "component_placement": {"actor": "0-3", "env": {"node_group": "last", "placement": "0:0-1"}},
    }
    with Cluster(3, config) as cluster:
        assert (cluster.num_nodes, cluster.num_accelerators, cluster.accelerator_ranks) == (3, 4, [[0, 1], [2, 3], []])
        assert cluster.get_node_group("last").nodes == (2,)
        assert cluster.get_node_group().nodes == (0, 1, 2)
        info = cluster.get_node_info(1)
        assert (info.node_rank, info.num_cpus, info.hardware.accelerators, info.label) == (1, 4, 2, "node 1 (127.0.0.1)")
        assert cluster.get_node_ip(2) == "127.0.0.1"
        strategy = HybridComponentPlacement(None, cluster).get_strategy("actor")
        group = Where.create_group().launch(cluster, name="actor", placement_strategy=strategy)
        assert group.about().wait() == [4] * 4
        assert [info.node for info in group.worker_infos] == [0, 0, 1, 1]
        assert "node 2" in cluster.describe()
        with pytest.raises(UnknownName, match=re.escape("get_node_group: no node group 'lats'. Did you mean 'last'?")):
            cluster.get_node_group("lats")
        with pytest.raises(UnknownName, match=r"no node 3\. Nodes: 0-2"):
            cluster.get_node_info(3)
        port = cluster.find_free_port()
        with socket.socket() as server:
            server.bind(("", port))
        assert Cluster.find_free_port(2000) <= 2000


def test_a_laptop_without_virtual_accelerators_has_its_own_on_node_0() -> None:
    with Cluster(2, {"backend": "local"}) as cluster:
        assert cluster.num_nodes == 2
        assert cluster.inventory.nodes[1].accelerators == 0
        assert cluster.inventory.nodes[1].cores == cluster.node.cores
        group = Where.create_group().launch(cluster, name="w", placement_strategy=NodePlacementStrategy([0, 1, 1]))
        assert [info.node for info in group.worker_infos] == [0, 1, 1]
    with Cluster(0, {"backend": "local"}) as cluster:
        assert cluster.num_nodes == 1


def test_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for config, message in [
        ({"num_nodes": -1}, "cluster.num_nodes: expected at least 0, found -1"),
        ({"join_timeout_s": 0.0}, "cluster.join_timeout_s: expected a value in"),
        (
            {"num_nodes": 2},
            "cluster.num_nodes: a cluster of 2 nodes joins a Ray, and none was started here. Run `ray start --head`",
        ),
        ({"num_nodes": 2, "address": "local"}, "a cluster of 2 nodes joins a Ray, and none was started here"),
        ({"num_nodes": 2, "address": "auto"}, "none was started here"),
        ({"num_nodes": 2, "address": "ray://127.0.0.1:10001"}, "is an address of Ray Client, whose driver is outside the cluster"),
        ({"num_nodes": 2, "address": "127.0.0.1:9"}, "cluster.address: no Ray answers at '127.0.0.1:9'"),
        ({"num_nodes": 2, "address": "head"}, "cluster.address: expected host:port, found 'head'. Name the Ray's port, 6379"),
        ({"num_nodes": 2, "address": "head:70000"}, "cluster.address: expected host:port, found 'head:70000'"),
    ]:
        with pytest.raises(ConfigError, match=re.escape(message)):
            Cluster(cluster_cfg=config)
    for given, message in (
        (
            "nonsense",
            "RAY_ADDRESS: expected host:port, found 'nonsense'. Name the Ray's port, 6379 unless `ray start` was told another, or",
        ),
        ("127.0.0.1:9", "no Ray answers at '127.0.0.1:9'. Start one with `ray start --head`, or unset RAY_ADDRESS."),
    ):
        monkeypatch.setenv("RAY_ADDRESS", given)
        with pytest.raises(ConfigError, match=re.escape(message)):
            Cluster(cluster_cfg={"num_nodes": 2})
    monkeypatch.delenv("RAY_ADDRESS")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9\n")
    with pytest.raises(ConfigError, match=re.escape("no Ray answers at '127.0.0.1:9'")):
        Cluster(2)
    with pytest.raises(PlacementError, match="accelerator 4"):
        Cluster(2, {"virtual_accelerators": {"count": 2}, "component_placement": {"a": "0-4"}})
    with Cluster(2, {"virtual_accelerators": {"count": 2}, "component_placement": {"a": "0-3"}}) as cluster:
        assert cluster.num_accelerators == 4, "what is virtual is known without the nodes"


class Net:
    """A driver and workers that take each other to be on other nodes."""

    def __init__(self, folder: Path) -> None:
        driver = Location("first", str(folder / "driver"), ("127.0.0.1", 0))
        run_info = RunInfo(run=folder.name, driver=driver, authkey=b"k" * 32, timeout_s=30.0)
        self.lost: list[str] = []
        self.driver = DriverTransport(run_info, on_lost=lambda host, *_: bool(self.lost.append(host)), on_log=lambda *_: None)
        self.run_info = RunInfo(run=folder.name, driver=self.driver.server.place, authkey=b"k" * 32, timeout_s=30.0)

    def worker(self, me: str, node: str) -> SocketTransport:
        transport = SocketTransport(
            self.run_info, me, Location(node, f"\0rlinf-test-{os.getpid()}-{self.run_info.run}-{node}-{me}", ("127.0.0.1", 0))
        )
        transport.server.start()
        transport.connect_control(lambda: None)
        return transport


def test_processes_of_other_nodes_are_reached_over_tcp_and_those_of_the_same_without_a_file(tmp_path: Path) -> None:
    net = Net(tmp_path)
    far, near = net.worker("a.0", "second"), net.worker("a.1", "second")
    assert net.run_info.networked
    for source, target in [(far, near), (near, far), (net.driver, far), (far, net.driver)]:
        to = target.server.place
        host = "driver" if target is net.driver else "a.1" if target is near else "a.0"
        for sent in (b"x", b"y" * (1 << 20)):
            source.put(host, "q", 0, encode(sent), 0, Wait("me", "q", "room"))
            assert decode(target.get(host, "q", None, Wait("me", "q", "an item"))[0]) == sent
        same = source.server.place.node == to.node
        assert same == (source is not net.driver and target is not net.driver)
    listening = {transport.server.place.tcp[0] for transport in (net.driver, far, near) if transport.server.place.tcp}
    assert listening == {"127.0.0.1"}
    for transport in (far, near, net.driver):
        transport.stop()
    assert [path.name for path in tmp_path.iterdir() if path.name != "driver"] == []


def test_a_stranger_who_says_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    net = Net(tmp_path)
    place = net.run_info.driver
    assert place.tcp is not None
    with socket.create_connection(place.tcp), socket.create_connection(place.tcp) as liar:
        liar.sendall(b"\0\0\0\x14" + b"#CHALLENGE#" + b"?" * 9)
        worker = net.worker("a.0", "second")
        worker.put("driver", "q", 0, encode(1), 0, Wait("me", "q", "room"))
        assert decode(net.driver.get("driver", "q", None, Wait("me", "q", "an item", 60.0))[0]) == 1
    with pytest.raises(AuthenticationError):
        connect(place, "third", b"wrong" * 8, ("queue", "x", 0, None), 60.0)
    worker.stop()
    net.driver.stop()


def test_a_peer_that_the_network_has_given_up_is_no_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off: the kernel says ETIMEDOUT, which Python makes a TimeoutError, too."""
    net = Net(tmp_path)
    worker = net.worker("a.0", "second")
    asking = connections(net.run_info, "driver", "first")

    class Cut:
        ahead = True

        def __init__(self, _: socket.socket) -> None: ...

        def read(self) -> Any:
            raise TimeoutError(110, "Connection timed out")

    monkeypatch.setattr("rlinf.scheduler.transport.sockets.connection.FrameReader", Cut)
    with pytest.raises(ChannelClosed, match="x: me can't get y: driver, which hosts it, is cut off"):
        asking.ask("driver", "where", "a.0", 1.0, wait=Wait("me", "x", "y"))
    worker.stop()
    net.driver.stop()


def test_a_control_connection_over_tcp_breaks_with_the_process(tmp_path: Path) -> None:
    net = Net(tmp_path)
    ended = threading.Event()
    worker = SocketTransport(
        net.run_info, "a.0", Location("second", f"\0rlinf-test-{os.getpid()}-{tmp_path.name}", ("127.0.0.1", 0))
    )
    worker.connect_control(ended.set)
    net.driver.controls._open["a.0"][0]._sock.shutdown(socket.SHUT_RDWR)  # pyright: ignore[reportPrivateUsage]
    deadline = time.monotonic() + 60
    while not net.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert net.lost == ["a.0"]
    assert ended.wait(60.0)
    worker.stop()
    net.driver.stop()
