"""The transport beside pyzmq: a small item there and back, and GB/s of large arrays, between two processes of one node.

    uv run --with pyzmq benchmarks/scheduler_zmq.py [--rounds 8]

pyzmq sends the same pickle with its arrays beside it, without copies, over a PAIR socket on IPC. It does less: nothing is
acknowledged, there are no keys, no deadlines and no limit of room, and the end of the other process goes unnoticed. The receiver
reads every byte of an array. Both take turns in each round; prints the smallest and the median round trip of the rounds' medians,
and the best GB/s.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pickle
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.scheduler.transport.p2p import PeerMessenger
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport, SocketTransport

TRIPS, REPEATS = 400, 12
MIB = (1, 16, 64)
TIMEOUT_S = 60.0
Way = tuple[Callable[[Any], Any], Callable[[], Any]]
"""Send and receive."""


def ours(run_info: RunInfo, me: str, other: str) -> Way:
    """A process of a run."""
    transport = SocketTransport(run_info, f"{me}.0", Location("here", str(Path(run_info.driver.path).parent / me)))
    transport.server.start()
    transport.connect_control(lambda: os._exit(1))
    messenger = PeerMessenger(transport, f"{me}.0", lambda: {"a": 1, "b": 1}, TIMEOUT_S)
    return lambda item: messenger.send(item, other, 0), lambda: messenger.recv(other, 0)


def pyzmq(path: str, *, binds: bool) -> Way:
    """One end of a pair of sockets."""
    zmq: Any = importlib.import_module("zmq")
    socket = zmq.Context.instance().socket(zmq.PAIR)
    (socket.bind if binds else socket.connect)(f"ipc://{path}")

    def send(item: Any) -> None:
        beside: list[pickle.PickleBuffer] = []
        head = pickle.dumps(item, 5, buffer_callback=beside.append)
        socket.send_multipart([head, *[buffer.raw() for buffer in beside]], copy=False)

    def receive() -> Any:
        head, *beside = socket.recv_multipart(copy=False)
        return pickle.loads(head.buffer, buffers=[part.buffer for part in beside])

    return send, receive


def answer(ways: dict[str, Way], rounds: int) -> None:
    """The other process: sends back what is small, and the sum of what is large."""
    for _ in range(rounds):
        for send, receive in ways.values():
            for _ in range(TRIPS):
                send(receive())
            for _ in range(REPEATS * len(MIB)):
                send(int(receive().view(np.uint64).sum()))


def seconds(way: Way, item: Any, count: int) -> list[float]:
    """Of each trip."""
    send, receive = way
    found: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        send(item)
        receive()
        found.append(time.perf_counter() - start)
    return found


def measure(ways: dict[str, Way], rounds: int) -> list[str]:
    """A line for each way."""
    small = {"states": np.zeros((16, 40), np.float32), "action": np.ones((16, 40), np.float32)}
    trips: dict[str, list[float]] = {name: [] for name in ways}
    speeds: dict[tuple[str, int], list[float]] = {(name, mib): [] for name in ways for mib in MIB}
    for _ in range(rounds):
        for name, way in ways.items():
            trips[name].append(1e6 * statistics.median(seconds(way, small, TRIPS)))
            for mib in MIB:
                speeds[name, mib].append((mib << 20) / min(seconds(way, np.ones(mib << 20, np.uint8), REPEATS)) / 1e9)
    lines = [f"{'':8}{'us, best':>10}{'median':>8}" + "".join(f"{f'{mib} MiB, GB/s':>16}" for mib in MIB)]
    for name, found in trips.items():
        cells = "".join(f"{max(speeds[name, mib]):>16.2f}" for mib in MIB)
        lines.append(f"{name:8}{min(found):>10.0f}{statistics.median(found):>8.0f}{cells}")
    return [*lines, f"load of the machine, 1 min: {os.getloadavg()[0]:.1f}; processors: {os.cpu_count()}"]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--answer", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        run_info, path = pickle.loads(bytes.fromhex(given.answer))
        answer({"ours": ours(run_info, "b", "a"), "pyzmq": pyzmq(path, binds=False)}, given.rounds)
        return
    with tempfile.TemporaryDirectory(prefix="rlinf-") as folder:
        place = Location("here", f"{folder}/driver")
        run_info = RunInfo(run="zmq", driver=place, authkey=secrets.token_bytes(8), timeout_s=TIMEOUT_S)
        driver = DriverTransport(run_info, lambda _, __: None, lambda _, __, ___: None)
        run_info = replace(run_info, driver=driver.server.place)
        told = pickle.dumps((run_info, f"{folder}/zmq")).hex()
        command = [sys.executable, __file__, "--rounds", str(given.rounds), "--answer", told]
        other = subprocess.Popen(command)
        ways = {"ours": ours(run_info, "a", "b"), "pyzmq": pyzmq(f"{folder}/zmq", binds=True)}
        sys.stdout.write("\n".join(measure(ways, given.rounds)) + "\n")
        sys.stdout.flush()  # the end of the driver may end this process
        other.wait()
        driver.stop()
    os._exit(0)  # the files of the sockets are gone, which their finalisers would not like


if __name__ == "__main__":
    main()
