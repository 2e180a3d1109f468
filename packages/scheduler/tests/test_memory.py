import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf.scheduler.transport import shared_memory
from rlinf.scheduler.transport.encoding import decode, encode
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.shared_memory import Arena, Region
from rlinf.scheduler.transport.sockets.wire import FrameReader, begin_part, limit_socket, pack_frame, send_frame, send_part
from rlinf.scheduler.transport.waits import Wait

pytestmark = pytest.mark.skipif(not shared_memory.AVAILABLE, reason="shared memory is there on Linux only")
MIB = 1 << 20
SOON = Wait("me", "queue", "room", 60.0)
Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        yield left, right


@pytest.fixture
def arena() -> Iterator[Arena]:
    gc.collect()
    before = len(shared_memory._live)
    yield Arena(64 * MIB)
    gc.collect()
    assert len(shared_memory._live) <= before, "those of earlier tests may end meanwhile"


def held(arena: Arena, *sizes: int, several: bool = False) -> list[Region]:
    found = arena.hold([bytes([i + 1]) * size for i, size in enumerate(sizes)], several=several)
    assert found is not None
    return found


def segments(items: list[list[Region]]) -> set[bytes]:
    return {region.lease.segment for regions in items for region in regions}


def near(arena: Arena) -> Routes:
    return Routes("auto", lambda _, __: "node", arena=arena)


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_is_held_is_a_copy_side_by_side_in_one_segment(arena: Arena) -> None:
    source = bytearray(b"a" * 100)
    regions = arena.hold([source, b"b" * 7, b""])
    assert regions is not None
    source[:] = b"x" * 100
    assert [bytes(region.view()) for region in regions] == [b"a" * 100, b"b" * 7, b""]
    assert [len(region) for region in regions] == [100, 7, 0]
    assert len({region.lease.segment for region in regions}) == 1
    assert all(region.offset % 64 == 0 for region in regions)


def test_a_segment_is_used_again_when_its_last_view_is_gone(arena: Arena) -> None:
    region = held(arena, MIB)[0]
    name = region.lease.segment
    array = np.frombuffer(region.view(), np.uint8)[5:10]
    del region
    assert held(arena, MIB)[0].lease.segment != name
    array[:] = 9
    assert array.tolist() == [9] * 5
    del array
    assert name in segments([held(arena, MIB), held(arena, MIB)])
    assert arena.total == 2 * MIB


def test_room_is_bounded(arena: Arena) -> None:
    kept = [held(arena, 20 * MIB) for _ in range(3)]
    assert arena.hold([bytes(20 * MIB)]) is None
    assert arena.hold([bytes(65 * MIB)]) is None
    del kept[0]
    assert held(arena, 20 * MIB)
    kept.clear()
    assert held(arena, 50 * MIB), "free segments of another size make room"
    assert arena.total <= 64 * MIB


def test_leases_are_bounded_by_the_files_that_a_process_may_open(
    arena: Arena, sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = sockets
    send_frame(left, "x", held(arena, 100))
    monkeypatch.setattr(shared_memory, "LEASES", len(shared_memory._live))
    assert arena.hold([b"x"]) is None
    _, blobs = FrameReader(right).read()
    assert blobs == [bytearray(b"\x01" * 100)], "what comes is copied into memory of the process"


def test_idle_memory_is_given_back(arena: Arena, sockets: Sockets) -> None:
    gc.collect()
    shared_memory.trim(time.monotonic())
    before = files()
    busy, region = held(arena, MIB), held(arena, 2 * MIB)[0]
    send_frame(sockets[0], "x", [region])
    array = decode_all(FrameReader(sockets[1]).read()[1])[0]
    del region
    shared_memory.trim(time.monotonic() - 10)
    assert arena.total == 3 * MIB
    shared_memory.trim(time.monotonic() + 10)
    assert arena.total == 3 * MIB, "both are in use"
    assert array[0] == 1
    del array
    shared_memory.trim(time.monotonic() + 10)
    assert arena.total == MIB
    del busy
    shared_memory.trim(time.monotonic() + 10)
    assert arena.total == 0
    assert files() <= before, "those of earlier tests may be closed meanwhile"


def decode_all(blobs: list[Any]) -> list[Any]:
    return [np.frombuffer(blob.view(), np.uint8) for blob in blobs]


def test_a_unix_socket_carries_the_memory_and_not_its_bytes(arena: Arena, sockets: Sockets) -> None:
    left, right = sockets
    regions = held(arena, MIB, 2 * MIB)
    name = regions[0].lease.segment
    send_frame(left, ("put", 7), [b"first", *regions, b"last"])
    del regions
    header, blobs = FrameReader(right).read()
    assert header == ("put", 7)
    assert [bytes(blob) for blob in (blobs[0], blobs[3])] == [b"first", b"last"]
    assert [type(blob) for blob in blobs[1:3]] == [Region, Region]
    one, two = decode_all(blobs[1:3])
    del blobs
    assert one.tobytes() == b"\x01" * MIB
    assert two.tobytes() == b"\x02" * 2 * MIB
    one[:] = 8
    del one
    assert held(arena, 3 * MIB)[0].lease.segment != name, "the second array still needs it"
    del two
    assert name in segments([held(arena, 3 * MIB), held(arena, 3 * MIB)])


def test_another_kind_of_socket_carries_the_bytes(arena: Arena) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as left:
        right, _ = server.accept()
        with right:
            regions = held(arena, 1000, 10)
            send_frame(left, None, [b"x", *regions])
            _, blobs = FrameReader(right).read()
            assert [bytes(blob) for blob in blobs] == [b"x", b"\x01" * 1000, b"\x02" * 10]


def test_a_message_on_its_way_keeps_its_memory_and_a_dead_socket_does_not(arena: Arena) -> None:
    left, right = socket.socketpair(socket.AF_UNIX)
    regions = held(arena, MIB)
    name = regions[0].lease.segment
    send_frame(left, None, regions)
    del regions
    assert held(arena, MIB)[0].lease.segment != name
    left.close()
    right.close()
    assert name in segments([held(arena, MIB), held(arena, MIB)])


def test_a_frame_carries_some_leases_and_the_rest_as_bytes(arena: Arena, sockets: Sockets) -> None:
    left, right = sockets
    many = [held(arena, 500)[0] for _ in range(70)]
    thread = threading.Thread(target=send_frame, args=(left, "many", many))
    thread.start()
    _, blobs = FrameReader(right).read()
    thread.join()
    assert sum(isinstance(blob, Region) for blob in blobs) == 64
    assert all(bytes(blob.view() if isinstance(blob, Region) else blob) == b"\x01" * 500 for blob in blobs)


def test_frames_of_all_kinds_in_a_row_keep_their_memory_apart(arena: Arena, sockets: Sockets) -> None:
    left, right = sockets
    expected: list[list[bytes]] = []

    def send() -> None:
        for i in range(60):
            blobs = [bytes([i + k]) * (1 + 997 * (i * k) % 200_000) for k in range(4)]
            expected.append(blobs)
            regions = arena.hold(blobs[1:3]) if i % 3 else None
            send_frame(left, i, [blobs[0], *(regions or blobs[1:3]), blobs[3]])

    thread = threading.Thread(target=send)
    thread.start()
    reader = FrameReader(right)
    for i in range(60):
        header, blobs = reader.read()
        assert header == i
        assert [bytes(blob.view() if isinstance(blob, Region) else blob) for blob in blobs] == expected[i]
    thread.join()


def test_parts_can_be_sent_one_by_one(arena: Arena, sockets: Sockets) -> None:
    left, right = sockets
    parts = pack_frame("x", [*held(arena, 300), bytes(1 << 17)], left)
    sent = begin_part(left, parts[0], socket.MSG_DONTWAIT)
    assert 0 < sent <= len(parts[0])

    def rest() -> None:
        for part in [memoryview(parts[0])[sent:], *parts[1:]]:
            send_part(left, part)

    thread = threading.Thread(target=rest)
    thread.start()
    _, blobs = FrameReader(right).read()
    thread.join()
    assert bytes(blobs[0].view()) == b"\x01" * 300


class Crowded(socket.socket):
    def sendmsg(self, *_: Any) -> int:
        raise OSError(errno.ETOOMANYREFS, "Too many references")  # whoever is to read them has stopped


def test_files_that_nobody_makes_room_for_are_waited_for_no_longer_than_the_limit(arena: Arena, sockets: Sockets) -> None:
    with Crowded(fileno=os.dup(sockets[0].fileno())) as crowded:
        limit_socket(crowded, 0.05)
        with pytest.raises(BlockingIOError, match="Too many references"):
            send_frame(crowded, "x", held(arena, 300))


def test_several_receivers_have_changes_of_their_own(sockets: Sockets) -> None:
    left, right = sockets
    routes = near(Arena(64 * MIB))
    array = np.arange(1 << 17)
    blobs = routes.several(encode({"array": array}))
    reader = FrameReader(right)
    found = []
    for _ in range(3):
        send_frame(left, None, blobs)
        found.append(decode(reader.read()[1])["array"])
    del blobs
    for i, each in enumerate(found):
        each[0] = 100 + i
    array[:] = 0
    assert [each[:2].tolist() for each in found] == [[100, 1], [101, 1], [102, 1]]
    assert all((each[2:] == np.arange(2, 1 << 17)).all() for each in found)


CHILD = """
import os, socket, sys, time
from rlinf.scheduler.transport.sockets.wire import FrameReader, send_frame
from rlinf.scheduler.transport.encoding import decode
sock = socket.socket(fileno=int(sys.argv[1]))
reader = FrameReader(sock)
kept = []
while True:
    word, blobs = reader.read()
    if word == "keep":
        kept.append(decode(blobs))
        kept[-1] += 1
    elif word == "drop":
        kept.clear()
    send_frame(sock, [int(each.sum()) for each in kept])
"""


@pytest.fixture
def child(sockets: Sockets) -> Iterator[subprocess.Popen[bytes]]:
    left, right = sockets
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(right.fileno())], pass_fds=[right.fileno()])
    right.close()
    left.settimeout(60.0)
    yield process
    process.kill()
    process.wait()


def test_memory_of_a_killed_process_is_free_again(sockets: Sockets, child: subprocess.Popen[bytes]) -> None:
    left, _ = sockets
    arena = Arena(3 * MIB)
    routes, reader = near(arena), FrameReader(left)
    array = np.ones(MIB, np.uint8)

    def keep() -> None:
        blobs, route = routes.staged("child", encode(array), SOON)
        assert route == "shared_memory"
        send_frame(left, "keep", blobs)
        del blobs
        assert reader.read()[0][-1] == 2 * MIB

    for _ in range(2):
        for _ in range(3):
            keep()
        assert routes.staged("child", encode(array), SOON)[1] == "socket", "there is no room"
        send_frame(left, "drop")
        assert reader.read()[0] == []
    for _ in range(3):
        keep()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert len([held(arena, MIB) for _ in range(3)]) == 3


def test_a_forked_child_makes_no_segments(arena: Arena) -> None:
    held(arena, 100)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"none" if arena.hold([b"x"]) is None else b"some")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 4) == b"none"
    os.close(reading)
    os.close(writing)


FEW_FILES = """
import gc, os, resource, secrets, sys, tempfile
from pathlib import Path

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
sys.path.insert(0, sys.argv[1])
import numpy as np
from channel_runs import Run, through
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport
from rlinf.scheduler.transport.sockets.locations import RunInfo, Location

with tempfile.TemporaryDirectory() as folder:
    meeting = RunInfo(run="r", driver=Location("here", folder + "/driver"), authkey=b"k", timeout_s=60.0)
    run = Run(DriverTransport(meeting, lambda *_: None, lambda *_: None), meeting, [])
    worker = run.transport("a.0")
    run.driver.channels.hosts = lambda: {"driver": 0, "a.0": 0}
    for host in ({}, {"near": "a"}):
        for by, to in ((run.driver, worker), (worker, run.driver), (worker, worker)):
            channel = run.create(secrets.token_hex(4), **host)
            putter, getter = through(by, channel), through(to, channel)
            for number in range(int(sys.argv[2])):
                putter.put(np.full(1 << 19, number % 251, np.uint8))
            kept = [getter.get() for _ in range(int(sys.argv[2]))]
            assert all((array == number % 251).all() for number, array in enumerate(kept))
            assert all(array.flags.writeable for array in kept)
            del kept
            gc.collect()
    print("all came", flush=True)
    os._exit(0)
"""


def test_more_large_items_than_files_can_be_open() -> None:
    """Both ends and their host are one process here, which so needs as many files as three."""
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES, folder, "200"], capture_output=True, text=True, timeout=120.0, check=False
    )
    assert done.stdout == "all came\n", done.stderr[-2000:]


def test_threads_map_and_give_back_at_once(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest mapping is looked for while another thread gives back all of them."""

    class Slow(shared_memory._Mapping):
        @property
        def used(self) -> float:
            if threading.current_thread() is threading.main_thread():
                threads.append(threading.Thread(target=shared_memory.trim, args=(time.monotonic() + 1.0,)))
                threads[-1].start()
                threads[-1].join(0.2)
            return 0.0

    threads: list[threading.Thread] = []
    mappings: dict[bytes, shared_memory._Mapping] = {}
    for name in (b"a", b"b"):
        mappings[name] = Slow.__new__(Slow)
    monkeypatch.setattr(shared_memory, "_mappings", mappings)
    monkeypatch.setattr(shared_memory, "MAPPINGS", 2)
    held(arena, 5)
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


def test_a_view_is_a_copy_where_no_file_can_be_opened(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    first, second = held(arena, 5, 70_000)
    shared_memory.trim(time.monotonic() + 1.0)
    monkeypatch.setattr(shared_memory, "_opened", refuse)
    assert bytes(first.view()) == b"\1" * 5
    assert bytes(second.view()) == b"\2" * 70_000
    assert arena.hold([b"x"]) is None
