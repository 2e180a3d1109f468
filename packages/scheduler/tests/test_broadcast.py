"""Messages between the transports of several processes, which are threads here: order, kinds of items, broadcasts, refusals."""

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import together

from rlinf.core.errors import ConfigError, DeadlineExceeded, ShapeError, UnknownName
from rlinf.scheduler.transport.p2p import PeerMessenger
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo, short_folder
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport, SocketTransport
from rlinf.scheduler.transport.transport import address

SIZES = {"a": 1, "b": 2, "c": 1}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, PeerMessenger]]:
    """The messengers of a[0], b[0], b[1] and c[0]."""
    folder = tmp_path_factory.mktemp("m")
    if len(str(folder)) > 80:
        folder = Path(short_folder())
    run_info = RunInfo(run="broadcast", driver=Location("here", str(folder / "driver")), authkey=b"k", timeout_s=60.0)
    driver = DriverTransport(run_info, on_lost=lambda _, __: None, on_log=lambda _, __, ___: None)
    driver.sizes.update(SIZES)
    messengers: dict[str, PeerMessenger] = {}
    for group, size in SIZES.items():
        for rank in range(size):
            me = address(group, rank)
            transport = SocketTransport(run_info, me, Location("here", str(folder / me)))
            transport.server.start()
            transport.connect_control(lambda: None)
            messengers[f"{group}{rank}"] = PeerMessenger(transport, me, transport.groups, 60.0)
    yield messengers
    driver.stop()


@dataclasses.dataclass
class Sample:
    tensor: Any
    rest: list[Any]


def kinds() -> list[Any]:
    record = np.zeros(3, dtype=[("x", np.float32), ("y", np.int16, (2,))])
    objects = np.array([{"a": 1}, None, "x"], dtype=object)
    large = np.arange(1 << 16, dtype=np.int32)
    arrays = [
        record,
        objects,
        large,
        large[::2],
        large.reshape(256, 256).T,
        np.array(3.5),
        np.zeros((0, 4)),
        np.array([1 + 2j]),
        large > 9,
    ]
    return [
        *arrays,
        Sample(large, [{"deep": (large[:3], "text")}]),
        [],
        {},
        None,
        b"bytes",
        {1: [2, (3, {"x"})]},
        ValueError("value"),
    ]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool(np.all(one == other))
    if isinstance(one, Sample):
        return same(one.tensor, other.tensor) and same(one.rest[0]["deep"][0], other.rest[0]["deep"][0])
    return repr(one) == repr(other)


@pytest.mark.parametrize("number", range(len(kinds())))
def test_all_kinds_of_items_arrive(office: dict[str, PeerMessenger], number: int) -> None:
    item = kinds()[number]
    office["a0"].send(item, "b", 0)
    work = office["a0"].send(item, "b", 0, async_op=True)
    assert same(item, office["b0"].recv("a", 0))
    assert same(item, office["b0"].recv("a", 0, async_op=True).wait())
    work.wait()


@pytest.mark.torch
def test_all_kinds_of_tensors_arrive(office: dict[str, PeerMessenger]) -> None:
    torch = pytest.importorskip("torch")

    global Named

    class Named(torch.Tensor): ...

    base = torch.arange(1 << 15, dtype=torch.float32).reshape(128, 256) % 100
    tensors = [
        base.to(kind) for kind in (torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.uint8, torch.float8_e4m3fn)
    ]
    tensors += [base.T, base[:, ::3], torch.tensor(3), torch.zeros(0, 4), torch.nn.Parameter(base), base.as_subclass(Named)]
    tensors += [base.clone().requires_grad_(), (base.clone().requires_grad_() * 2)]
    office["a0"].send({"list": tensors}, "b", 0)
    found = office["b0"].recv("a", 0)["list"]
    for sent, got in zip(tensors, found, strict=True):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert torch.equal(got.detach().to(torch.complex64), sent.detach().to(torch.complex64))
    assert isinstance(found[10], torch.nn.Parameter)


def test_order_is_kept_whatever_is_waited_for(office: dict[str, PeerMessenger]) -> None:
    sizes = itertools.cycle([1, 70_000, 3, 400_000])
    works: list[Any] = []
    for number in range(40):
        item = np.full(next(sizes), number, np.int32)
        works.append(office["a0"].send(item, "b", 1, async_op=number % 3 != 0, tag="t"))
    got = [office["b1"].recv("a", 0, tag="t", async_op=number % 2 == 0) for number in range(40)]
    items = [item if isinstance(item, np.ndarray) else item.wait() for item in got]
    assert [int(item[0]) for item in items] == list(range(40))
    assert all((item == item[0]).all() for item in items)
    assert all(work is None or work.wait() is None for work in works)


def test_a_receive_that_came_too_early_takes_nothing(office: dict[str, PeerMessenger]) -> None:
    with pytest.raises(DeadlineExceeded, match=r"recv from a\[0\], tag 'late': b\[0\] waited 0.05 s for an item"):
        office["b0"].recv("a", 0, tag="late", timeout=0.05)
    kept = office["b0"].recv("a", 0, tag="late", async_op=True)
    assert not kept.done()
    office["a0"].send(1, "b", 0, tag="late")
    office["a0"].send(2, "b", 0, tag="late")
    assert (kept.wait(), office["b0"].recv("a", 0, tag="late")) == (1, 2)


def test_both_send_first_more_than_any_buffer_holds(office: dict[str, PeerMessenger]) -> None:
    exchange(office, 32 << 20)


@pytest.mark.slow
def test_both_send_first_a_quarter_of_a_gigabyte(office: dict[str, PeerMessenger]) -> None:
    exchange(office, 256 << 20)


def exchange(office: dict[str, PeerMessenger], size: int) -> None:
    def talk(me: str, group: str, value: int) -> bool:
        office[me].send(np.full(size, value, np.uint8), group, 0, tag="big")
        got = office[me].recv(group, 0, tag="big")
        return got.shape == (size,) and bool((got == 1 - value).all())

    assert together(lambda: talk("a0", "b", 0), lambda: talk("b0", "a", 1)) == [True, True]


def test_a_handle_is_awaited_and_others_run_meanwhile(office: dict[str, PeerMessenger]) -> None:
    async def main() -> tuple[Any, int]:
        work = office["b0"].recv("a", 0, tag="await", async_op=True)
        turns = 0
        task = asyncio.ensure_future(work.async_wait())
        while not task.done():
            turns += 1
            if turns == 5:
                office["a0"].send("x", "b", 0, tag="await")
            await asyncio.sleep(0.01)
        return task.result(), turns

    item, turns = asyncio.run(main())
    assert (item, turns >= 5) == ("x", True)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("size", [3, 1 << 18])
def test_every_member_of_a_broadcast_has_the_sources_object(office: dict[str, PeerMessenger], size: int, *, async_op: bool) -> None:
    members = [("a", 0), ("b", 1), ("b", 0)]

    def share(me: str, src: tuple[str, int] | None, value: int) -> int:
        item = {"array": np.full(size, value, np.int64)}
        found = office[me].broadcast(item, members, src, async_op=async_op)
        found = found.wait() if async_op else found
        found["array"] += 1  # nobody else sees that
        return int(found["array"].sum()) // size

    for src, value in ((None, 10), (("b", 0), 12), (("b", 0), 12)):
        calls = [lambda me=me, i=i, src=src: share(me, src, 10 + i) for i, me in enumerate(("a0", "b1", "b0"))]
        assert together(*calls) == [value + 1] * 3


def test_broadcasts_neither_overtake_nor_mix_with_messages(office: dict[str, PeerMessenger]) -> None:
    members = [("a", 0), ("b", 0)]
    office["a0"].send("message", "b", 0)
    for number in range(3):
        office["a0"].broadcast(number, members, None)
    assert [office["b0"].broadcast(None, members, None) for _ in range(3)] == [0, 1, 2]
    assert office["b0"].recv("a", 0) == "message"


def test_a_broadcast_encodes_its_object_once(office: dict[str, PeerMessenger]) -> None:
    class Counted:
        count = 0

        def __reduce__(self) -> Any:
            Counted.count += 1
            return int, (7,)

    members = [("a", 0), ("b", 0), ("b", 1), ("c", 0)]
    office["a0"].broadcast(Counted(), members, None)
    assert Counted.count == 1
    assert [office[me].broadcast(None, members, None) for me in ("b0", "b1", "c0")] == [7, 7, 7]


def test_what_is_no_broadcast_is_refused(office: dict[str, PeerMessenger]) -> None:
    for members, src, problem in (
        ([], None, "names no members"),
        ([("a", 0), ("b", 0), ("a", 0)], None, r"a\[0\] is named twice"),
        ([("a", 0), ("b", 0)], ("b", 1), r"the source, b\[1\], is no member"),
        ([("b", 0), ("b", 1)], None, r"who calls it, a\[0\], is no member"),
        ([("a", 0), ("b", 2)], None, r"b has no rank 2"),
    ):
        with pytest.raises(ConfigError, match=problem):
            office["a0"].broadcast(1, members, src)


def test_wrong_addresses_are_refused_and_itself_is_none(office: dict[str, PeerMessenger]) -> None:
    with pytest.raises(UnknownName, match=r"send to b\[2\]: b has no rank 2. Ranks: 0-1."):
        office["a0"].send(1, "b", 2)
    with pytest.raises(UnknownName, match=r"recv from b\[-1\]"):
        office["a0"].recv("b", -1)
    with pytest.raises(DeadlineExceeded, match=r"no group 'bb' was launched. Did you mean 'b'\?"):
        office["a0"].recv("bb", 0, timeout=0.05)
    office["a0"].send("mine", "a", 0)
    assert office["a0"].recv("a", 0) == "mine"


def test_arrays_are_received_into_memory_that_is_there(office: dict[str, PeerMessenger]) -> None:
    target = np.zeros((2, 2), np.float32)[:, ::-1]
    office["a0"].send(np.arange(4, dtype=np.float32).reshape(2, 2), "b", 0)
    assert office["b0"].recv("a", 0, into=target) is target
    assert target.tolist() == [[0, 1], [2, 3]]
    for item, problem in (
        (np.zeros((2, 2)), r"expected float32 \[2, 2\], found float64"),
        ("text", "expected an array or a tensor, found str"),
    ):
        office["a0"].send(item, "b", 0)
        with pytest.raises(ShapeError, match=problem):
            office["b0"].recv("a", 0, into=target)
    assert target.tolist() == [[0, 1], [2, 3]]


@pytest.mark.torch
def test_tensors_are_received_into_memory_that_is_there(office: dict[str, PeerMessenger]) -> None:
    torch = pytest.importorskip("torch")
    target = torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.bfloat16))
    office["a0"].send(torch.ones(2, 3, dtype=torch.bfloat16), "b", 0)
    work = office["b0"].recv("a", 0, into=target, async_op=True)
    assert work.wait() is target
    assert target.sum() == 6


def test_many_threads_of_a_worker_may_talk_at_once(office: dict[str, PeerMessenger]) -> None:
    def talk(tag: str) -> list[int]:
        for number in range(30):
            office["a0"].send(number, "b", 0, tag=tag, async_op=number % 2 == 0)
        return [office["b0"].recv("a", 0, tag=tag) for _ in range(30)]

    before = threading.active_count()
    assert together(*[lambda tag=f"thread {i}": talk(tag) for i in range(6)]) == [list(range(30))] * 6
    assert threading.active_count() < before + 200
