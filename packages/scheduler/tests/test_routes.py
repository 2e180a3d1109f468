"""Which way items go between transports, and that all ways keep the same promises. Threads and plain processes, no Ray."""

import os
import pickle
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf.core.errors import ConfigError
from rlinf.scheduler.trace.reading import spans
from rlinf.scheduler.trace.recorder import Recorder
from rlinf.scheduler.trace.transfers import TracedTransport
from rlinf.scheduler.transport import routes, shared_memory
from rlinf.scheduler.transport.encoding import decode, encode
from rlinf.scheduler.transport.routes import Route, RouteChoice, Routes, route_of
from rlinf.scheduler.transport.shared_memory import Region
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo, short_folder
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport, SocketTransport
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.transport.waits import Wait

WAIT_S = 60.0
SOON = Wait("me", "queue", "an item", WAIT_S)
LARGE = 1 << 17
needs_memory = pytest.mark.skipif(not shared_memory.AVAILABLE, reason="shared memory is there on Linux only")


class Run:
    """A driver on node `a`, and transports on any node, all in this process."""

    def __init__(self, choice: RouteChoice) -> None:
        self.folder = short_folder() / f"rlinf-test-{secrets.token_hex(4)}"
        self.folder.mkdir()
        place = Location("a", str(self.folder / DRIVER), ("127.0.0.1", 0))
        run_info = RunInfo(run=secrets.token_hex(4), driver=place, authkey=b"key", timeout_s=WAIT_S, route=choice)
        self.driver = DriverTransport(run_info, lambda *_: None, lambda *_: None)
        self.run_info = replace(run_info, driver=self.driver.server.place)
        self.ends: list[SocketTransport] = []

    def transport(self, me: str, node: str = "a") -> SocketTransport:
        made = SocketTransport(self.run_info, me, Location(node, str(self.folder / me), ("127.0.0.1", 0)))
        made.server.start()
        made.connect_control(lambda: None)
        self.ends.append(made)
        return made

    def stop(self) -> None:
        self.driver.stop()
        for end in self.ends:
            end.stop()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def begin(choice: RouteChoice = "auto") -> Run:
        made.append(Run(choice))
        return made[-1]

    yield begin
    for run in made:
        run.stop()


def put(transport: Any, host: str, array: Any, queue: str = "q") -> None:
    transport.put(host, ("p2p", host, "x", queue), 0, encode({"array": array}), 0, SOON)


def got(transport: Any, host: str, queue: str = "q") -> tuple[Any, Route]:
    blobs = transport.get(host, ("p2p", host, "x", queue), None, SOON)[0]
    return decode(blobs)["array"], route_of(blobs, transport.routes.reach(host, SOON))


@pytest.mark.parametrize(
    ("choice", "size", "expected"),
    [
        ("auto", LARGE, ["shared_memory"] * 3),
        ("auto", 10, ["process", "socket", "socket"]),
        ("socket", LARGE, ["process", "socket", "socket"]),
        ("shared_memory", 10, ["shared_memory"] * 3),
    ],
)
@needs_memory
def test_the_way_of_an_item_depends_on_where_it_goes(
    start: Callable[..., Run], choice: RouteChoice, size: int, expected: list[Route]
) -> None:
    run = start(choice)
    one, two, far = run.transport("g.0"), run.transport("g.1"), run.transport("g.2", "b")
    array = np.arange(size)
    # Each item is put by `one`: to itself, to `two`, and to a queue of the driver from which `two` takes it.
    for host, reader, route in zip(["g.0", "g.1", DRIVER], [one, two, two], expected, strict=True):
        assert one.routes.staged(host, encode(array), SOON)[1] == route
        put(one, host, array)
        found, came = got(reader, host)
        assert came == ("process" if reader is not one and host == "g.1" and route == "socket" else route)
        np.testing.assert_array_equal(found, array)
        found += 1
    assert one.routes.staged("g.2", encode(array), SOON)[1] == "tcp"
    put(one, "g.2", array)
    found, _ = got(far, "g.2")
    np.testing.assert_array_equal(found, array)


@needs_memory
def test_what_a_process_of_another_node_takes_comes_as_bytes(start: Callable[..., Run]) -> None:
    run = start("shared_memory")
    near, far = run.transport("g.0"), run.transport("g.1", "b")
    array = np.arange(LARGE)
    put(near, "g.0", array)
    put(near, DRIVER, array)
    for host in ("g.0", DRIVER):
        blobs = far.get(host, ("p2p", host, "x", "q"), None, SOON)[0]
        assert not any(isinstance(blob, Region) for blob in blobs)
        found = decode(blobs)["array"]
        np.testing.assert_array_equal(found, array)
        found += 1
    put(far, DRIVER, array)
    found, _ = got(near, DRIVER)
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("choice", ["socket", pytest.param("shared_memory", marks=needs_memory)])
@pytest.mark.parametrize("host", ["g.0", "g.1", "g.2", DRIVER])
def test_an_item_is_as_it_was_when_it_was_put(start: Callable[..., Run], choice: RouteChoice, host: str) -> None:
    run = start(choice)
    ends = {"g.0": run.transport("g.0"), "g.1": run.transport("g.1"), "g.2": run.transport("g.2", "b"), DRIVER: run.driver}
    array = np.zeros(LARGE)
    for i in range(5):
        array[:] = i
        put(ends["g.0"], host, array)
    array[:] = -1
    kept = [got(ends[host], host)[0] for _ in range(5)]
    for i, found in enumerate(kept):
        assert (found == i).all()
        found[:] = 100 + i
    for i, found in enumerate(kept):
        assert (found == 100 + i).all()


@needs_memory
def test_several_receivers_share_one_copy_and_see_no_changes_of_each_other(start: Callable[..., Run]) -> None:
    run = start("auto")
    source = run.transport("g.0")
    hosts = {"g.1": run.transport("g.1"), "g.2": run.transport("g.2"), "g.3": run.transport("g.3", "b"), "g.0": source}
    array = np.arange(LARGE)
    blobs = source.routes.several(encode(array))
    assert isinstance(blobs[1], Region)
    for host in hosts:
        source.put(host, ("p2p", host, "x", "q"), 0, blobs, 0, SOON)
    del blobs
    array[:] = 0
    found = [decode(end.get(host, ("p2p", host, "x", "q"), None, SOON)[0]) for host, end in hosts.items()]
    for i, each in enumerate(found):
        each[0] = 100 + i
    for i, each in enumerate(found):
        assert each[0] == 100 + i
        np.testing.assert_array_equal(each[1:], np.arange(1, LARGE))


@needs_memory
def test_an_item_that_comes_back_can_be_read_by_the_next(start: Callable[..., Run]) -> None:
    run = start("auto")
    one, two = run.transport("g.0"), run.transport("g.1")
    array = np.arange(LARGE)
    name = ("p2p", DRIVER, "x", "q")
    put(one, DRIVER, array)
    for _ in range(3):
        operation = two.start_get(DRIVER, name, None, SOON)
        operation.wait(SOON)
        assert operation.cancel()
    found, route = got(two, DRIVER)
    np.testing.assert_array_equal(found, array)
    assert route == "shared_memory"


@needs_memory
def test_the_trace_says_which_way_items_went(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("auto")
    recorder = Recorder(tmp_path, "g.0")
    one = TracedTransport(run.transport("g.0"), recorder)
    run.transport("g.2", "b")
    for array in (np.arange(LARGE), np.arange(3)):
        put(one, DRIVER, array)
        put(one, "g.2", array)
        got(one, DRIVER)
    recorder.close()
    found = [(span.kind, span.route, span.bytes > LARGE) for span in spans(tmp_path)]
    large = [("send", "shared_memory", True), ("send", "tcp", True), ("recv", "shared_memory", True)]
    assert found == [*large, ("send", "socket", False), ("send", "tcp", False), ("recv", "socket", False)]


WRITER = """
import pickle, sys, time
import numpy as np
from rlinf.scheduler.transport.encoding import encode
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport
from rlinf.scheduler.transport.waits import Wait
meeting, place, count, size = pickle.loads(bytes.fromhex(sys.argv[1]))
endpoint = SocketTransport(meeting, "g.0", place)
endpoint.server.start()
for i in range(count):
    endpoint.put("driver", ("p2p", "driver", "x", "q"), 0, encode({"array": np.full(size, i)}), 0, Wait("me", "q", "room"))
print("done", flush=True)
time.sleep(600)
"""


@needs_memory
def test_items_of_a_killed_writer_can_be_read(start: Callable[..., Run]) -> None:
    run = start("auto")
    place = Location("a", str(run.folder / "g.0"), ("127.0.0.1", 0))
    what = pickle.dumps((run.run_info, place, 4, LARGE)).hex()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, what], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "done\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    for i in range(4):
        found, route = got(run.driver, DRIVER)
        assert route == "shared_memory"
        assert (found == i).all()
        found += 1


def test_without_shared_memory_items_take_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "AVAILABLE", False)
    blobs, route = Routes("auto", lambda *_: "node").staged("h", encode(np.zeros(LARGE)), SOON)
    assert (route, isinstance(blobs[1], Region)) == ("socket", False)
    with pytest.raises(ConfigError, match=r"cluster\.route.*Linux"):
        Routes("shared_memory", lambda *_: "node")
