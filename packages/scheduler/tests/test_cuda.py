"""CUDA tensors: the choice of their way with stand-ins, and the whole of it where there is a GPU."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.core import gather
from rlinf.core.errors import RLinfError
from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker
from rlinf.scheduler.trace import spans
from rlinf.scheduler.transport import _cuda
from rlinf.scheduler.transport.encoding import OnDevice
from rlinf.scheduler.transport.routes import Routes, route_of
from rlinf.scheduler.transport.waits import Wait

SOON = Wait("me", "queue", "room", 60.0)


@dataclass
class FakeTensor:
    index: int
    made: list[str] = field(default_factory=list)

    @property
    def device(self) -> Any:
        return SimpleNamespace(index=self.index)

    def detach(self) -> Any:
        return self

    def clone(self) -> Any:
        return FakeTensor(self.index, [*self.made, "clone"])

    def cpu(self) -> Any:
        return FakeTensor(-1, [*self.made, "cpu"])


def rebuild(shape: Any, storage_device: int, handle: bytes) -> Any:
    return shape, storage_device, handle


def share(tensor: FakeTensor) -> Any:
    assert tensor.made == ["clone"], "the receiver must have memory of its own"
    return rebuild, ((2, 3), tensor.index, b"handle")


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets which GPUs this process sees, by UUID."""
    return lambda **gpus: monkeypatch.setattr(_cuda, "devices", lambda: {uuid.replace("_", "-"): n for uuid, n in gpus.items()})


def test_the_gpus_of_a_process_are_known_by_their_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = lambda number: SimpleNamespace(uuid=f"GPU-{number + 7}")  # noqa: E731
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, get_device_properties=properties)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert _cuda.devices() == {"GPU-7": 0, "GPU-8": 1}
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    assert _cuda.devices() == {}


@pytest.mark.parametrize(("opens", "shared"), [(["GPU-8"], True), (["GPU-7", "GPU-9"], False), ([], False)])
def test_memory_is_shared_with_who_sees_the_same_gpu(
    opens: list[str], shared: bool, sees: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.multiprocessing.reductions", SimpleNamespace(reduce_tensor=share))
    sees(GPU_7=0, GPU_8=1)
    found, function, args = _cuda.reduced(FakeTensor(1), opens)
    assert found is shared
    if shared:
        # The receiver has the GPU under another number.
        sees(GPU_8=0)
        assert function(*args) == ((2, 3), 0, b"handle")
    else:
        assert function is _cuda.from_cpu
        assert args[0].made == ["cpu"]


def test_who_does_not_see_the_gpu_is_told_so(sees: Callable[..., None]) -> None:
    sees(GPU_7=0)
    with pytest.raises(RLinfError, match=r"GPU-8.*sees GPU-7.*cluster\.route=socket"):
        _cuda.opened("GPU-8", rebuild, ((2, 3), 0, b"handle"))


def test_a_host_is_asked_once_and_only_where_its_answer_can_help(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def devices(host: str, _: Wait) -> list[str]:
        asked.append(host)
        return ["GPU-7"]

    cuda = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    near, far = Routes("auto", lambda *_: "node", devices=devices), Routes("auto", lambda *_: "network", devices=devices)
    assert [near.opens("a.0", SOON), near.opens("a.0", SOON)] == [["GPU-7"]] * 2
    assert list(far.opens("a.0", SOON)) == []
    assert list(Routes("socket", lambda *_: "node", devices=devices).opens("a.0", SOON)) == []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))
    assert list(near.opens("a.0", SOON)) == []
    assert asked == ["a.0"]


def test_the_trace_tells_a_handle_from_bytes() -> None:
    assert route_of([OnDevice(b"handle")], "node") == "cuda_ipc"
    assert route_of([OnDevice(b"handle")], "network") == "tcp"


RECEIVER = """
import socket, sys
from rlinf.scheduler.transport.encoding import decode
from rlinf.scheduler.transport.sockets.wire import FrameReader, send_frame
import torch
torch.cuda.init()
sock = socket.socket(fileno=int(sys.argv[1]))
tensor = decode(FrameReader(sock).read()[1])
tensor += 1
send_frame(sock, (str(tensor.device), float(tensor.sum())))
FrameReader(sock).read()
"""


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("same", [True, False])
def test_a_tensor_on_a_gpu_arrives(same: bool) -> None:
    import socket

    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    from rlinf.scheduler.transport.encoding import encode
    from rlinf.scheduler.transport.sockets.wire import FrameReader, send_frame

    left, right = socket.socketpair()
    with left, right, subprocess.Popen([sys.executable, "-c", RECEIVER, str(right.fileno())], pass_fds=[right.fileno()]) as child:
        left.settimeout(120.0)
        tensor = torch.ones(1000, device="cuda")
        blobs = encode(tensor, _cuda.devices() if same else ())
        assert isinstance(blobs[0], OnDevice) is same
        tensor.zero_()
        send_frame(left, "item", blobs)
        header, _ = FrameReader(left).read()
        send_frame(left, "end")
        child.wait(60.0)
    assert header == ("cuda:0", 2000.0)
    assert float(tensor.sum()) == 0.0


class Peer(Worker):
    """One of two that see the same GPU."""

    def begin(self) -> str:
        torch: Any = importlib.import_module("torch")
        return str(torch.zeros(1, device="cuda").device)

    def give(self, channel: Channel) -> float:
        torch: Any = importlib.import_module("torch")
        tensor = torch.arange(1 << 18, device="cuda", dtype=torch.float32)
        expected = float(tensor.sum())
        self.send({"tensor": tensor, "number": 7}, "taker", 0)
        tensor.zero_()
        channel.put(tensor + 2)
        return expected

    def take(self, channel: Channel) -> tuple[str, float, str, float]:
        item, other = self.recv("giver", 0)["tensor"], channel.get()
        return str(item.device), float(item.sum()), str(other.device), float(other.mean())


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.ray
def test_workers_on_one_gpu_share_its_memory(tmp_path: Path) -> None:
    """A message goes as a handle, which the trace says; an item of a channel, whose receiver nobody knows, by way of the CPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    tracer = {"enabled": True, "path": str(tmp_path / "trace.json")}
    with Cluster(cluster_cfg={"backend": "ray", "timeout_s": 120.0, "tracer": tracer}) as cluster:
        giver, taker = (
            Peer.create_group().launch(cluster, name=name, placement_strategy=PackedPlacementStrategy(0, 0))
            for name in ("giver", "taker")
        )
        gather(giver.begin(), taker.begin(), timeout=120.0)
        channel = cluster.create_channel("items")
        given, taken = gather(giver.give(channel), taker.take(channel), timeout=120.0)
    (expected,), ((device, total, other, mean),) = given, taken
    assert (device, total, other, mean) == ("cuda:0", expected, "cuda:0", 2.0)
    routes = {span.route for span in spans(tmp_path / "trace.json") if span.kind == "send"}
    assert "cuda_ipc" in routes, routes
