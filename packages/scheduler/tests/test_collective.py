"""Messages whose large parts go over process groups: gloo between transports in this process, and between processes that die."""

import asyncio
import dataclasses
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from collective_peers import Peers
from waiting import together

from rlinf.core.errors import ChannelClosed, ConfigError, DeadlineExceeded, RLinfError
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker
from rlinf.scheduler.trace.reading import spans
from rlinf.scheduler.trace.recorder import Recorder
from rlinf.scheduler.trace.transfers import TracedTransport
from rlinf.scheduler.transport import _process_groups
from rlinf.scheduler.transport._process_groups import GroupCarrier
from rlinf.scheduler.transport.encoding import decode, encode
from rlinf.scheduler.transport.p2p import PeerMessenger
from rlinf.scheduler.transport.routes import RouteChoice, Routes, route_of, size_of, ticket_of
from rlinf.scheduler.transport.sockets import connection
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo, short_folder
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport, SocketTransport
from rlinf.scheduler.transport.waits import Wait

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SOON = Wait("me", "queue", "an item", 60.0)
NODES = {"a": "near", "b": "near", "c": "far"}
BIG = 1 << 18


class Office:
    """The workers a[0] and b[0] on one node and c[0] on another; all in this process."""

    def __init__(self, route: RouteChoice = "gloo", here: str = "abc") -> None:
        self.folder = short_folder() / f"rlinf-test-{secrets.token_hex(4)}"
        self.folder.mkdir()
        place = Location("near", str(self.folder / "driver"), ("127.0.0.1", 0))
        run_info = RunInfo(run=secrets.token_hex(4), driver=place, authkey=b"k", timeout_s=60.0, route=route)
        self.driver = DriverTransport(run_info, lambda *_: None, lambda *_: None)
        self.driver.sizes.update(dict.fromkeys(NODES, 1))
        self.run_info = replace(run_info, driver=self.driver.server.place)
        self.ends = {group: self._untraced(group) for group in here}
        self.messengers = {group: messenger(end, f"{group}.0") for group, end in self.ends.items()}

    def _untraced(self, group: str) -> SocketTransport:
        made = SocketTransport(
            self.run_info, f"{group}.0", Location(NODES[group], str(self.folder / f"{group}.0"), ("127.0.0.1", 0))
        )
        made.server.start()
        made.connect_control(lambda: None)
        return made

    def __getitem__(self, group: str) -> PeerMessenger:
        return self.messengers[group]

    def kept(self, group: str) -> int:
        return len(self.ends[group].carrier._payloads)

    def stop(self) -> None:
        for end in [*self.ends.values(), self.driver]:
            end.close("the test is over")
            end.stop()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


def messenger(transport: Any, me: str) -> PeerMessenger:
    return PeerMessenger(transport, me, lambda: dict.fromkeys(NODES, 1), 60.0)


@pytest.fixture(scope="module")
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.stop()


@pytest.fixture
def own() -> Iterator[Callable[..., Office]]:
    made: list[Office] = []

    def begin(**options: Any) -> Office:
        made.append(Office(**options))
        return made[-1]

    yield begin
    for each in made:
        each.stop()


@dataclasses.dataclass
class Sample:
    tensor: Any
    rest: Any


def ticket(end: SocketTransport, item: Any, to: str) -> Any:
    """The ticket of a message as it would go; it is not sent."""
    blobs = end.routes.left(to, encode(item), (), SOON)
    end.routes.settle(blobs, sent=False)
    return ticket_of(blobs)


@pytest.mark.parametrize("to", ["b", "c"])
def test_tensors_arrive_wherever_they_are_in_an_item(office: Office, to: str) -> None:
    big = torch.arange(BIG, dtype=torch.float32)
    item = {
        "half": big.to(torch.bfloat16),
        "deep": [Sample(big.reshape(512, -1).T, (big > 5, "text"))],
        "grad": torch.nn.Parameter(big.clone()),
        "array": np.arange(BIG),
        "small": torch.ones(3),
        "none": torch.zeros(0, 4),
    }
    expected = decode([bytearray(blob) for blob in encode(item)])
    office["a"].send(item, to, 0)
    big.zero_()
    found = office[to].recv("a", 0)
    assert office.kept("a") == 0
    for name in ("half", "grad", "small", "none"):
        assert found[name].dtype == expected[name].dtype
        assert torch.equal(found[name], expected[name])
    assert type(found["grad"]) is torch.nn.Parameter
    assert torch.equal(found["deep"][0].tensor, expected["deep"][0].tensor)
    assert torch.equal(found["deep"][0].rest[0], expected["deep"][0].rest[0])
    np.testing.assert_array_equal(found["array"], item["array"])
    found["half"].fill_(1)  # it is the receiver's own
    found["array"][:] = 1


def test_what_is_small_or_has_no_tensor_or_stays_goes_as_before(office: Office) -> None:
    end = office.ends["a"]
    large, small = torch.ones(BIG), torch.ones(8)
    assert ticket(end, {"x": large}, "b.0").sizes == (4 * BIG,)
    assert ticket(end, small, "b.0") is None
    assert ticket(end, np.ones(BIG), "b.0") is None
    assert ticket(end, large, "a.0") is None
    assert office.kept("a") == 0
    office["a"].send(large, "a", 0)
    assert torch.equal(office["a"].recv("a", 0), large)


def test_a_message_is_as_large_as_all_of_its_parts(office: Office) -> None:
    end = office.ends["a"]
    blobs = end.routes.left("b.0", encode({"x": torch.ones(BIG)}), (), SOON)
    assert route_of(blobs, "network") == "gloo"
    assert 4 * BIG < size_of(blobs) < 4 * BIG + 2000
    assert sum(map(len, blobs)) < 2000
    end.routes.settle(blobs, sent=False)
    assert office.kept("a") == 0


@pytest.mark.parametrize("to", ["b", "c"])
def test_both_post_first(office: Office, to: str) -> None:
    def side(me: str, other: str) -> list[float]:
        for number in range(3):
            office[me].send(torch.full((BIG * 4,), float(number)), other, 0, async_op=number == 1)
        return [float(office[me].recv(other, 0)[-1]) for _ in range(3)]

    assert together(lambda: side("a", to), lambda: side(to, "a")) == [[0.0, 1.0, 2.0]] * 2


def test_order_is_kept_for_each_tag_in_whatever_order_they_are_taken(office: Office) -> None:
    sizes = [3, BIG, 10, 4 * BIG, BIG // 16, 1]
    for tag, number in itertools.product(("x", "y"), range(len(sizes))):
        office["a"].send((number, torch.full((sizes[number],), number)), "b", 0, tag=tag, async_op=number % 2 == 0)
    for tag in ("y", "x"):
        handles = [office["b"].recv("a", 0, tag=tag, async_op=True) for _ in sizes]
        for number, handle in reversed(list(enumerate(handles))):
            found, tensor = handle.wait(60.0)
            assert (found, len(tensor), int(tensor[-1])) == (number, sizes[number], number)


def test_handles_are_awaited_and_given_up(office: Office) -> None:
    async def take() -> list[Any]:
        first = office["b"].recv("a", 0, tag="t", async_op=True)
        office["a"].send(torch.full((BIG,), 7), "b", 0, tag="t")
        return [await first, await office["b"].recv("a", 0, tag="t", async_op=True)]

    early = office["b"].recv("a", 0, tag="t", async_op=True)
    office["a"].send(torch.full((BIG,), 6), "b", 0, tag="t")
    while not early.done():
        time.sleep(0.01)
    assert early.cancel()
    assert [int(tensor[0]) for tensor in asyncio.run(take())] == [6, 7]
    target = torch.zeros(BIG)
    office["a"].send(torch.ones(BIG), "b", 0)
    assert office["b"].recv("a", 0, into=target) is target
    assert target.sum() == BIG


def test_many_threads_may_talk_at_once(office: Office) -> None:
    def talk(tag: str) -> list[int]:
        for number in range(5):
            office["a"].send(torch.full((BIG // 4,), number), "c", 0, tag=tag)
        return [int(office["c"].recv("a", 0, tag=tag)[-1]) for _ in range(5)]

    assert together(*[lambda tag=f"t{i}": talk(tag) for i in range(4)]) == [list(range(5))] * 4


def test_a_group_that_broke_is_said_and_replaced(office: Office) -> None:
    def give() -> None:
        office["c"].send(torch.ones(BIG), "a", 0)

    give()
    office["a"].recv("c", 0)
    (pair,) = [pair for key, pair in office.ends["c"].carrier._sending.items() if key[0] == "a.0"]
    pair.close()
    give()
    with pytest.raises(ChannelClosed, match=r"recv from c\[0\].*by gloo.*cluster\.route=socket"):
        office["a"].recv("c", 0)
    give()
    assert office["a"].recv("c", 0).sum() == BIG


def test_memory_of_a_gpu_goes_apart_from_its_message(own: Callable[..., Office], monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of GPU tensors, with memory of the CPU and gloo for those of a GPU and NCCL."""
    office = own(route="auto")
    a, b = office["a"], office["b"]
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.dim() == 2), raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(GroupCarrier, "gpus", lambda *_: ["GPU-1"])
    monkeypatch.setattr(_process_groups, "_nccl", _process_groups._gloo)
    monkeypatch.setattr(_process_groups, "_copied", lambda parts, _: [part.clone() for part in parts])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    real = torch.arange(BIG).reshape(2, -1).to(torch.bfloat16)
    item = {"gpu": real, "also": [torch.nn.Parameter(torch.ones(2, 3))], "cpu": torch.ones(BIG), "again": real}
    blobs = encode(item, (), found := [])
    assert [len(part) for part in found] == [2 * BIG, 24]
    assert [len(blob) for blob in blobs[1:]] == [0, 0, 4 * BIG]
    a.send(item, "b", 0)
    real.zero_()
    came = b.recv("a", 0)
    assert torch.equal(came["gpu"], torch.arange(BIG).reshape(2, -1).to(torch.bfloat16))
    assert came["again"] is came["gpu"]
    assert type(came["also"][0]) is torch.nn.Parameter
    assert came["also"][0].sum() == 6
    assert came["cpu"].sum() == BIG


def test_a_wait_for_a_gpu_can_be_given_up() -> None:
    looks = iter([False, False, True])
    done = SimpleNamespace(is_completed=lambda: next(looks), wait=lambda: None)
    pair = _process_groups._Pair("x", ("nccl",), "b.0", 0, "127.0.0.1", 0, None)
    pair._finish(done, 20.0)
    assert next(looks, None) is None
    never = SimpleNamespace(is_completed=lambda: False)
    with pytest.raises(RuntimeError, match="have passed"):
        pair._finish(never, 0.01)
    aborted: list[str] = []
    pair._group = SimpleNamespace(abort=lambda: aborted.append("group"))
    pair.close()
    with pytest.raises(RuntimeError, match="given up"):
        pair._finish(never, 20.0)
    assert aborted == ["group"]


def test_nccl_is_taken_where_both_have_it_and_asked_for_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        ready = True

        def __init__(self, *gpus: str) -> None:
            self.gpus = lambda *_: gpus

    def routes(choice: RouteChoice, carrier: Any, reach: Any = "node") -> Routes:
        return Routes(choice, lambda *_: reach, devices=lambda *_: ["GPU-1"], carrier=carrier)

    assert not routes("auto", Fake("GPU-1")).by_nccl("b.0", SOON), "nothing here uses a GPU"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert routes("auto", Fake("GPU-1")).by_nccl("b.0", SOON)
    assert routes("auto", Fake("GPU-1"), "network").by_nccl("b.0", SOON)
    assert not routes("auto", Fake("GPU-1"), "process").by_nccl("b.0", SOON)
    assert not routes("auto", Fake()).by_nccl("b.0", SOON)
    assert not routes("auto", None).by_nccl("b.0", SOON)
    for choice in ("socket", "shared_memory", "gloo"):
        assert not routes(choice, Fake("GPU-1")).by_nccl("b.0", SOON)
    assert routes("nccl", Fake("GPU-1")).by_nccl("b.0", SOON)
    assert list(routes("nccl", Fake("GPU-1")).opens("b.0", SOON)) == []
    assert list(routes("auto", Fake("GPU-1")).opens("b.0", SOON)) == ["GPU-1"]
    with pytest.raises(ConfigError, match=r"cluster\.route.*'nccl'"):
        routes("nccl", Fake()).by_nccl("b.0", SOON)


def test_the_trace_names_the_way(office: Office, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a.0")
    a = messenger(TracedTransport(office.ends["a"], recorder), "a.0")
    b = messenger(TracedTransport(office.ends["b"], recorder), "b.0")
    a.send(torch.ones(BIG), "b", 0)
    a.send(torch.ones(8), "b", 0)
    b.recv("a", 0), b.recv("a", 0)
    recorder.close()
    assert {(span.kind, span.route) for span in spans(tmp_path)} >= {("send", "gloo"), ("recv", "gloo"), ("send", "socket")}


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    office = Office(here="a")
    made = Peers(office)
    yield made
    made.stop()
    office.stop()


@pytest.mark.parametrize("role", ["dies", "dies half way"])
def test_the_death_of_a_sender_ends_a_transfer(peers: Peers, role: str) -> None:
    peers.play(role)
    start = time.monotonic()
    with pytest.raises(ChannelClosed, match=r"b\[0\].*is gone"):
        peers.office["a"].recv("b", 0)
    peers.gone()
    assert time.monotonic() - start < 30.0, "before the deadline"


def test_a_message_of_a_dead_sender_has_lost_its_parts(peers: Peers) -> None:
    peers.play("waits")
    work = peers.office["a"].recv("b", 0, async_op=True)
    while not work.done():
        time.sleep(0.01)
    peers.kill()
    with pytest.raises(RLinfError, match=r"b\[0\]"):
        work.wait()


def test_a_transfer_has_a_deadline(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    # How long the answer of a host is waited for after the deadline: this one is stopped.
    monkeypatch.setattr(connection, "GRACE_S", 1.0)
    peers.play("stops")
    with pytest.raises(DeadlineExceeded, match="recv from b"):
        peers.office["a"].recv("b", 0, timeout=2.0)
    peers.kill()


def test_nothing_is_kept_for_a_dead_receiver(peers: Peers) -> None:
    peers.play("takes nothing")
    peers.office["a"].send(torch.ones(BIG), "b", 0)
    assert peers.office.kept("a") == 1
    peers.kill()
    with pytest.raises(ChannelClosed):
        peers.office["a"].send(torch.ones(BIG), "b", 0)
    assert peers.office.kept("a") == 0


@pytest.mark.parametrize("amid", [False, True])
def test_a_process_ends_well_while_its_groups_are_open(peers: Peers, amid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    a = peers.office["a"]
    peers.play("leaves amid a transfer" if amid else "leaves")
    assert a.recv("b", 0)[1].sum() == 1 << 20
    a.send(torch.ones(1 << 20), "b", 0, tag="answer")
    if amid:
        assert a.recv("b", 0) == "so far"
        never = threading.Event()
        monkeypatch.setattr(_process_groups._Pair, "send", lambda *_: never.wait(20.0))
        a.send(torch.ones(BIG), "b", 0)
    assert peers.line() == 0
    if amid:
        never.set()
    peers.gone()


class Part(Worker):
    def exchange(self, size: int) -> float:
        import torch

        other = 1 - self.rank
        self.send({"t": torch.full((size,), float(self.rank))}, self.group_name, other)
        work = self.recv(self.group_name, other, async_op=True)
        self.send_tensor(torch.ones(size), self.group_name, other)
        total = float(work.wait()["t"].sum())
        target = torch.zeros(size)
        self.recv_tensor(target, self.group_name, other)
        return total + float(target.sum())


@pytest.mark.ray
def test_workers_of_a_cluster_exchange_by_gloo(tmp_path: Path) -> None:
    config = {
        "virtual_accelerators": {"count": 1},
        "timeout_s": 120.0,
        "route": "gloo",
        "tracer": {"enabled": True, "path": str(tmp_path / "t.json")},
    }
    with Cluster(cluster_cfg=config) as cluster:
        group = Part.create_group().launch(cluster, name="parts", placement_strategy=NodePlacementStrategy([0, 0]))
        assert group.exchange(BIG).wait() == [2.0 * BIG, 1.0 * BIG]
    assert '"gloo"' in (tmp_path / "t.json").read_text()
