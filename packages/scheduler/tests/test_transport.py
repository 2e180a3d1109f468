import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from channel_runs import connections
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, boolean_dtypes, floating_dtypes, integer_dtypes
from waiting import until

from rlinf.core.errors import ChannelClosed, DeadlineExceeded
from rlinf.scheduler.transport import _cuda
from rlinf.scheduler.transport.encoding import Unpicklable, decode, encode, snapshot
from rlinf.scheduler.transport.queues import Get, Put, Queues
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.sockets import server
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.wire import FrameReader, send_frame
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.transport.waits import ThreadMonitor, Wait
from rlinf.scheduler.transport.work import complete

NOW = Wait("me", "queue 'q'", "an item", 0.0)
SOON = Wait("me", "queue 'q'", "an item", 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    array: Any
    name: str


def queues() -> Queues:
    return Queues(lambda: ThreadMonitor(60.0))


def put(made: Queues, weight: int, content: list[Any], maxsize: int, wait: Wait) -> None:
    request = Put("q", "me", (weight, content), maxsize)
    made.start(request)
    complete(request, wait)


def get(made: Queues, target: int | None, wait: Wait) -> list[Any]:
    request = Get("q", "me", target)
    made.start(request)
    return complete(request, wait)


@given(st.lists(st.integers(0, 9)), st.integers(0, 20))
def test_batches_split_a_queue_as_their_weights_say(weights: list[int], target: int) -> None:
    made = queues()
    for i, weight in enumerate(weights):
        put(made, weight, [bytes([i])], 0, NOW)
    taken: list[int] = []
    while True:
        try:
            batch = [blobs[0][0] for blobs in get(made, target, NOW)]
        except DeadlineExceeded:
            break
        sums = np.cumsum([weights[i] for i in batch])
        after = batch[-1] + 1
        assert sums[-1] >= target or (after < len(weights) and sums[-1] + weights[after] > target)
        assert len(batch) == 1 or (sums[-1] <= target and sums[-2] < target)
        taken += batch
    assert taken == list(range(len(taken)))
    assert made.size("q") == len(weights) - len(taken)
    assert sum(weights[len(taken) :]) < max(target, 1)


def test_a_full_queue_waits_for_room_and_is_a_batch_as_it_is() -> None:
    made = queues()
    for i in range(2):
        put(made, 1, [bytes([i])], 2, NOW)
    with pytest.raises(DeadlineExceeded, match="queue 'q': me waited 0 s"):
        put(made, 1, [b"x"], 2, NOW)
    assert len(get(made, 100, NOW)) == 2


def test_many_producers_and_consumers_lose_nothing() -> None:
    made = queues()
    got: list[int] = []
    lock = threading.Lock()

    def produce(start: int) -> None:
        for i in range(start, start + 100):
            put(made, 0, [i.to_bytes(2, "big")], 3, SOON)

    def consume() -> None:
        for _ in range(100):
            item = int.from_bytes(get(made, None, SOON)[0][0], "big")
            with lock:
                got.append(item)

    threads = [threading.Thread(target=produce, args=(100 * i,)) for i in range(4)]
    threads += [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sorted(got) == list(range(400))


def test_closing_ends_waits_now_and_later() -> None:
    made = queues()
    caught: list[ChannelClosed] = []

    def wait() -> None:
        try:
            get(made, None, SOON)
        except ChannelClosed as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    made.close("rollout[0] died")
    made.close("later")
    thread.join(60.0)
    assert str(caught[0]) == "queue 'q': me can't get an item: rollout[0] died"
    with pytest.raises(ChannelClosed, match="rollout"):
        put(made, 0, [], 0, NOW)


@given(arrays(boolean_dtypes() | integer_dtypes() | floating_dtypes(), array_shapes(min_dims=0, max_dims=3, min_side=0)))
def test_arrays_survive(array: np.ndarray[Any, Any]) -> None:
    found = decode(snapshot(encode(Item(array=array, name="x"))))
    assert found.array.dtype == array.dtype
    assert found.array.tobytes() == array.tobytes()
    assert found.array.shape == array.shape
    assert found.array.flags.writeable


def test_another_thread_may_be_importing_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has, the module is there and has nothing in it: no tensor can be in an item, nor on a GPU."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert decode(encode(Item(array=np.arange(3), name="x"))).array.tolist() == [0, 1, 2]
    assert _cuda.devices() == {}
    assert list(Routes("auto", lambda _, __: "node").opens("a.0", SOON)) == []


@given(st.lists(st.tuples(st.integers(), st.lists(st.integers(0, 200_000), max_size=4)), max_size=6))
def test_frames_arrive_as_they_were_sent(frames: list[tuple[int, list[int]]]) -> None:
    import socket

    left, right = socket.socketpair()
    with left, right:

        def send() -> None:
            for header, sizes in frames:
                send_frame(left, header, [bytes([size % 251]) * size for size in sizes])
            left.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        reader = FrameReader(right)
        for header, sizes in frames:
            found, blobs = reader.read()
            assert found == header
            assert [bytes(blob) for blob in blobs] == [bytes([size % 251]) * size for size in sizes]
        with pytest.raises(EOFError):
            reader.read()
        thread.join()


def pair(peer: str, number: int) -> tuple[str, int]:
    return peer, number


SILENT = """
import socket, sys, time
silent = []
for _ in range(16):
    silent.append(socket.socket(socket.AF_UNIX))
    silent[-1].connect(sys.argv[1])
print("connected", flush=True)
time.sleep(60.0)
"""


def test_clients_that_say_nothing_hold_few_threads_and_not_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GREET_S", 3.0)
    monkeypatch.setattr(server, "GREETINGS", 8)
    place = Location("here", str(tmp_path / "s"))
    serving = server.Server(place, b"k", queues())
    serving.serve("hello", pair, peer=True)
    serving.start()
    before = threading.active_count()
    with subprocess.Popen([sys.executable, "-c", SILENT, place.path], stdout=subprocess.PIPE, text=True) as clients:
        assert clients.stdout is not None
        assert clients.stdout.readline() == "connected\n"
        assert threading.active_count() - before <= 8
        run_info = RunInfo(run="r", driver=place, authkey=b"k", timeout_s=60.0)
        try:
            wait = Wait("me", "queue 'q'", "an answer", 50.0)
            assert connections(run_info, "a.0").ask(DRIVER, "hello", 7, wait=wait) == ("a.0", 7)
            deadline = time.monotonic() + 50.0
            while threading.active_count() - before > 1:  # that of the client that spoke
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            clients.kill()
            serving.stop()


@pytest.mark.parametrize("waits", [False, True])
def test_an_answer_that_cannot_be_sent_is_told_at_once(tmp_path: Path, waits: bool) -> None:
    serving = server.Server(Location("here", str(tmp_path / "s")), b"k", queues())
    serving.serve("lock", threading.Lock, waits=waits)
    serving.serve("hello", pair, peer=True)
    serving.start()
    asking = connections(RunInfo(run="r", driver=serving.place, authkey=b"k", timeout_s=60.0), "a.0")
    with pytest.raises(Unpicklable, match=r"an answer to a\[0\]: an item can't be pickled: cannot pickle '_thread\.lock' object"):
        asking.ask(DRIVER, "lock", wait=SOON)
    assert asking.ask(DRIVER, "hello", 7, wait=SOON) == ("a.0", 7)
    serving.stop()


def test_a_server_that_was_stopped_does_not_accept_with_a_descriptor_that_became_anothers(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    serving = server.Server(Location("here", str(tmp_path / "s"), ("127.0.0.1", 0)), b"k", queues())
    serving.start()
    accepting = set(threading.enumerate()) - before
    assert len(accepting) == 2
    time.sleep(0.1)  # they wait for clients
    serving.stop()
    until(lambda: not any(thread.is_alive() for thread in accepting))
    assert list(tmp_path.iterdir()) == []


SHORT = """
import contextlib, os, resource, socket, sys, time
from rlinf.scheduler.transport.queues import Queues
from rlinf.scheduler.transport.sockets.server import Server
from rlinf.scheduler.transport.sockets.locations import Location
from rlinf.scheduler.transport.waits import ThreadMonitor

serving = Server(Location("here", sys.argv[1]), b"k", Queues(lambda: ThreadMonitor(5.0)))
# The kernel has a descriptor ready for the first client before it comes.
first, second = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
serving.start()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
opened = []
with contextlib.suppress(OSError):
    while True:
        opened.append(os.open(os.devnull, os.O_RDONLY))
first.connect(sys.argv[1])
second.connect(sys.argv[1])
time.sleep(0.2)  # it tries to accept in vain
for descriptor in opened:
    os.close(descriptor)
# One that is accepted while the descriptors come back may fail for want of the next one.
third = socket.socket(socket.AF_UNIX)
third.settimeout(60.0)
third.connect(sys.argv[1])
print(bool(third.recv(1)), flush=True)  # the challenge, as it has been accepted
os._exit(0)
"""


def test_a_server_without_file_descriptors_accepts_again_when_it_has_some(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHORT, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120.0, check=False)
    assert done.stdout == "True\n", done.stderr


def test_a_server_that_accepts_nobody_is_not_waited_for_in_vain(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        run_info = RunInfo(run="r", driver=Location("here", str(tmp_path / "s")), authkey=b"k", timeout_s=60.0)
        with pytest.raises(DeadlineExceeded, match=r"me waited 0\.3 s for room in vain; driver does not answer"):
            connections(run_info, "a.0").ask(DRIVER, "hello", wait=Wait("me", "queue", "room", 0.3))


@pytest.mark.parametrize(
    ("queue", "what"), [(("message", "b.0", "a.0", "tag"), "a message"), (("frames", "key"), "an item of channel 'frames'")]
)
def test_what_comes_too_late_is_named(a: Any, b: Any, queue: Any, what: str, caplog: pytest.LogCaptureFixture) -> None:
    b.queues.close("the run is over")
    a.put("b.0", queue, 1, encode("late"), 0, SOON)
    until(lambda: bool(caplog.messages))
    assert caplog.messages == [f"{what} from a[0] is lost: the run is over"]
