"""How fast tensors go between nodes: by our own TCP, and by a gloo process group, in the same run.

    uv run benchmarks/scheduler_gloo.py [--mib 1 16 64 256] [--rounds 7]

Two processes that take themselves for two nodes, at the loopback address; no Ray. A transfer begins when the receiver has said that
it waits, and ends when the sender has its receipt, which it sends when it has read one byte of each page. Both ways take turns; the
first round does not count. `copy` is `numpy.copyto` into memory that exists. Prints medians: milliseconds, GB/s, and that
over TCP's of the same round.
"""

from __future__ import annotations

import argparse
import os
import pickle
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rlinf.scheduler.transport.p2p import PeerMessenger
from rlinf.scheduler.transport.routes import RouteChoice
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport, SocketTransport

WAYS: dict[str, RouteChoice] = {"tcp": "auto", "gloo": "gloo"}
PAGE = 4096
TIMEOUT_S = 300.0


def part(run_info: RunInfo, me: str, node: str) -> tuple[SocketTransport, PeerMessenger]:
    """A process of a node, and what it sends and receives with."""
    place = Location(node, str(Path(run_info.driver.path).parent / me), ("127.0.0.1", 0))
    endpoint = SocketTransport(run_info, me, place)
    endpoint.server.start()
    endpoint.connect_control(lambda: os._exit(1))
    return endpoint, PeerMessenger(endpoint, me, lambda: {"a": 1, "b": 1}, TIMEOUT_S)


def receive(run_infos: dict[str, RunInfo]) -> None:
    """The other process."""
    parts = {way: part(run_info, "b.0", "there") for way, run_info in run_infos.items()}
    ways = {way: messenger for way, (_, messenger) in parts.items()}
    while True:
        way, size = ways["tcp"].recv("a", 0)
        if not size:
            for endpoint, _ in parts.values():
                endpoint.stop()
            return
        ways[way].send("ready", "a", 0)
        found = ways[way].recv("a", 0)
        ways[way].send(int(found[::PAGE].sum()), "a", 0)


def transfer(ways: dict[str, PeerMessenger], way: str, tensor: torch.Tensor) -> float:
    """Seconds."""
    ways["tcp"].send((way, len(tensor)), "b", 0)
    ways[way].recv("b", 0)
    start = time.perf_counter()
    ways[way].send(tensor, "b", 0)
    assert ways[way].recv("b", 0) == len(tensor) // PAGE
    return time.perf_counter() - start


def copy(tensor: torch.Tensor, spare: torch.Tensor) -> float:
    """Seconds."""
    start = time.perf_counter()
    np.copyto(spare.numpy(), tensor.numpy())
    return time.perf_counter() - start


def measure(ways: dict[str, PeerMessenger], mib: int, rounds: int) -> list[str]:
    """The rows of one size."""
    tensor = torch.ones(mib << 20, dtype=torch.uint8)
    spare = torch.empty_like(tensor)
    found: dict[str, list[float]] = {way: [] for way in (*WAYS, "copy")}
    for turn in range(rounds + 1):
        for way in list(found) if turn % 2 else list(found)[::-1]:
            seconds = copy(tensor, spare) if way == "copy" else transfer(ways, way, tensor)
            if turn:
                found[way].append(seconds)
    rows: list[str] = []
    for way, times in found.items():
        seconds = statistics.median(times)
        share = statistics.median(tcp / one for tcp, one in zip(found["tcp"], times, strict=True))
        rows.append(f"{mib:>6}  {way:<6}{1e3 * seconds:>10.2f}{(mib << 20) / seconds / 1e9:>8.2f}{share:>11.2f}\n")
    return rows


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    before = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="rlinf-"))
    run_infos: dict[str, RunInfo] = {}
    drivers: list[DriverTransport] = []
    for way, route in WAYS.items():
        (folder / way).mkdir()
        place = Location("here", str(folder / way / "driver"), ("127.0.0.1", 0))
        run_info = RunInfo(run=way, driver=place, authkey=secrets.token_bytes(8), timeout_s=TIMEOUT_S, route=route)
        drivers.append(DriverTransport(run_info, lambda _, __: None, lambda _, __, ___: None))
        run_infos[way] = replace(run_info, driver=drivers[-1].server.place)
    other = subprocess.Popen([sys.executable, __file__, "--receive", pickle.dumps(run_infos).hex()])
    parts = {way: part(run_info, "a.0", "here") for way, run_info in run_infos.items()}
    ways = {way: messenger for way, (_, messenger) in parts.items()}
    rows = [row for mib in args.mib for row in measure(ways, mib, args.rounds)]
    ways["tcp"].send(("", 0), "b", 0)
    other.wait(TIMEOUT_S)
    for endpoint in [*drivers, *[endpoint for endpoint, _ in parts.values()]]:
        endpoint.stop()
    shutil.rmtree(folder)
    sys.stdout.write(f"load before {before:.1f}, after {os.getloadavg()[0]:.1f}, on {os.cpu_count()} cores\n")
    sys.stdout.write(f"{'MiB':>6}  {'way':<6}{'ms':>10}{'GB/s':>8}{'over tcp':>11}\n")
    sys.stdout.writelines(rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--receive"]:
        receive(pickle.loads(bytes.fromhex(sys.argv[2])))
    else:
        main()
