"""What becomes of items when processes are killed: real processes, without Ray."""

import os
import pickle
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import until

from rlinf.core.errors import ChannelClosed
from rlinf.scheduler import Channel
from rlinf.scheduler.transport.channel_registry import Site
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport
from rlinf.scheduler.transport.transport import DRIVER

SCRIPT = Path(__file__).with_name("channel_peers.py")
WAIT_S = 60.0


class Peers:
    """A driver, and the processes that it starts and kills."""

    def __init__(self, books: Path) -> None:
        self.books = books
        self.folder = Path(tempfile.mkdtemp(prefix="rlinf-"))
        self.lost: list[str] = []
        place = Location("here", str(self.folder / DRIVER))
        run_info = RunInfo(run=secrets.token_hex(4), driver=place, authkey=secrets.token_bytes(8), timeout_s=WAIT_S)
        self.driver = DriverTransport(run_info, lambda host, _: self.lost.append(host), lambda *_: None)
        run_info = replace(run_info, driver=self.driver.server.place)
        command = [sys.executable, str(SCRIPT), pickle.dumps(run_info).hex(), str(books)]
        self._parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pids: dict[str, int] = {}
        self.started: list[str] = []

    def start(self, role: str, me: str, *options: object) -> None:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        print(role, me, *options, file=self._parent.stdin, flush=True)
        self.pids[me] = int(self._parent.stdout.readline())
        self.started.append(me)

    def arrived(self, me: str) -> None:
        until(lambda: me in self.driver.directory._places or me in self.lost, WAIT_S)

    def kill(self, me: str) -> None:
        os.kill(self.pids.pop(me), signal.SIGKILL)

    def create(self, maxsize: int = 0, near: str | None = None) -> Channel:
        self.driver.channels.hosts = lambda: dict.fromkeys(self.started, 0)
        return Channel.create_at(self.driver, "c", maxsize, Site(near=near))

    def book(self, role: str, me: str) -> list[str]:
        path = self.books / f"{role}-{me}"
        return path.read_text().splitlines() if path.exists() else []

    def ended(self, me: str) -> bool:
        return me in self.lost

    def stop(self) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
        self._parent.kill()
        self._parent.communicate()
        self.driver.stop()
        shutil.rmtree(self.folder)


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    made = Peers(tmp_path)
    yield made
    made.stop()


def count_items(peers: Peers, killed: list[str]) -> None:
    """No item came twice or in part; each that was put came, but for those that a killed reader took and could not write down."""
    begun: set[tuple[str, int]] = set()
    put: set[tuple[str, int]] = set()
    got: Counter[tuple[str, int]] = Counter()
    for me in peers.started:
        for line in peers.book("writer", me):
            what, number = line.split()
            {"begin": begun, "end": put, "refused": set()}[what].add((me, int(number)))
        for line in peers.book("reader", me):
            if line != "end":
                writer, number, whole = line.split()
                assert whole == "True", line
                got[writer, int(number)] += 1
    assert not list(peers.books.glob("error-*")), [path.read_text() for path in peers.books.glob("error-*")]
    assert [item for item, times in got.items() if times > 1] == []
    assert got.keys() <= begun
    readers = [me for me in killed if me.startswith("reader")]
    missing = put - got.keys()
    assert len(missing) <= len(readers), (sorted(missing), killed)
    assert len(got) > 100


def run_pipeline(peers: Peers, seed: int, seconds: float, maxsize: int, near: str | None, options: tuple[str, ...]) -> list[str]:
    """Four writers and four readers, one of which is killed and replaced again and again; then the end."""
    choose = random.Random(seed)
    if near is not None:
        peers.start("host", f"{near}.0")
        peers.arrived(f"{near}.0")
    channel = peers.create(maxsize, near)
    number = 0
    for number in range(4):
        peers.start("writer", f"writer.{number}", 1_000_000, *options)
        peers.start("reader", f"reader.{number}", *options)
    killed: list[str] = []
    deadline = time.monotonic() + seconds

    def got() -> int:
        return sum(len(peers.book("reader", me)) for me in peers.started)

    # Longer where the machine is busy, so that there is something to count.
    while time.monotonic() < deadline or (time.monotonic() < deadline + WAIT_S and got() < 500):
        time.sleep(choose.uniform(0.0, 0.15))
        victim = choose.choice([me for me in peers.pids if not me.startswith("host")])
        peers.kill(victim)
        killed.append(victim)
        number += 1
        role = victim.partition(".")[0]
        peers.start(role, f"{role}.{number}", *([1_000_000] if role == "writer" else []), *options)
    channel.close()
    for me in list(peers.pids):
        if not me.startswith("host"):
            peers.arrived(me)
            until(lambda me=me: peers.ended(me), WAIT_S)
            del peers.pids[me]
    return killed


@pytest.mark.parametrize(("maxsize", "near", "options"), [(0, None, ()), (3, "host", ("async",))])
def test_no_item_is_lost_nor_comes_twice(peers: Peers, maxsize: int, near: str | None, options: tuple[str, ...]) -> None:
    count_items(peers, run_pipeline(peers, 1, 3.0, maxsize, near, options))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("options", [(), ("async",)])
@pytest.mark.parametrize(("maxsize", "near"), [(0, None), (4, None), (0, "host"), (1, "host")])
def test_no_item_is_lost_nor_comes_twice_for_long(
    peers: Peers, seed: int, maxsize: int, near: str | None, options: tuple[str, ...]
) -> None:
    count_items(peers, run_pipeline(peers, seed, 8.0, maxsize, near, options))


def test_a_dead_host_is_named_with_what_was_lost(peers: Peers) -> None:
    peers.start("host", "host.0")
    peers.arrived("host.0")
    channel = peers.create(near="host")
    for i in range(10):
        channel.put(i)
    assert [channel.get() for _ in range(3)] == [0, 1, 2]
    blocked = channel.get("never", async_op=True)
    peers.kill("host.0")
    expected = r"host\[0\], which hosted it, died \(of 10 items that the others had put there, they had got 3;"
    with pytest.raises(ChannelClosed, match=expected):
        blocked.wait()
    for use in (channel.get, channel.qsize, lambda: channel.put(0), lambda: channel.get(async_op=True).wait()):
        with pytest.raises(ChannelClosed, match=expected):
            use()
    peers.start("host", "host.0")  # takes its place, but has not its items
    time.sleep(0.5)
    with pytest.raises(ChannelClosed, match=expected):
        channel.get()
    channel.close()


def test_what_a_killed_process_waited_for_goes_to_the_next(peers: Peers) -> None:
    channel = peers.create()
    for i in range(3):
        peers.start("reader", f"reader.{i}")
        peers.arrived(f"reader.{i}")
    waiting = peers.driver.queues._queues
    until(lambda: [len(queue.getters) for queue in list(waiting.values())] == [3], WAIT_S)
    for i in range(3):
        peers.kill(f"reader.{i}")
    # That they are lost is known by another connection than the one on which they wait.
    until(lambda: len(peers.lost) == 3 and not waiting, WAIT_S)
    for i in range(5):
        channel.put(i)
    assert [channel.get() for _ in range(5)] == [0, 1, 2, 3, 4]
