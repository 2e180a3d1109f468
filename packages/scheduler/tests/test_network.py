"""Two nodes with addresses of their own, in network namespaces that a cable joins; then the cable is pulled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from waiting import all_dead, eventually

from rlinf.scheduler.transport.sockets.locations import SILENCE_S

pytestmark = [pytest.mark.ray, pytest.mark.slow]
OWN_RAY = True
DRIVER = Path(__file__).parent / "nodes_driver.py"
PORT = 6399
RAY = str(Path(sys.executable).with_name("ray"))


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Network:
    """Two namespaces, `near` and `far`, joined by a cable."""

    def __init__(self, ends: ExitStack) -> None:
        self.names = [f"rlinf-{os.getpid()}-{side}" for side in ("near", "far")]
        self.ips = ["10.213.77.1", "10.213.77.2"]
        self.cables = [f"rl{os.getpid() % 100000}{side}" for side in "nf"]
        for name in self.names:
            ip("netns", "add", name)
            ends.callback(ip, "netns", "del", name)
            ends.callback(self._clear, name)
            ip("-n", name, "link", "set", "lo", "up")
        near, far = self.cables
        ip("-n", self.names[0], "link", "add", near, "type", "veth", "peer", "name", far, "netns", self.names[1])
        for name, cable, address in zip(self.names, self.cables, self.ips, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")

    def cut(self) -> None:
        """Pulls the cable at the far node."""
        ip("-n", self.names[1], "link", "set", self.cables[1], "down")

    def start(self, side: int, *command: str, **options: Any) -> subprocess.Popen[str]:
        """A process in a namespace."""
        inside = ["ip", "netns", "exec", self.names[side], *command]
        return subprocess.Popen(inside, text=True, start_new_session=True, **options)

    def _clear(self, name: str) -> None:
        """Ends what still runs in a namespace of ours."""
        found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, timeout=20, check=False).stdout
        for pid in found.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command `ip`")
    with ExitStack() as ends:
        try:
            found = Network(ends)
        except OSError as error:
            pytest.skip(f"this machine does not allow network namespaces: {error}")
        yield found


@pytest.fixture
def cluster(network: Network) -> Iterator[dict[str, str]]:
    """A Ray node in each namespace; the environment of its drivers."""
    folder = tempfile.mkdtemp(prefix="rn-")
    env = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder, "OMP_NUM_THREADS": "1"}
    env.pop("RAY_ADDRESS", None)
    address = f"{network.ips[0]}:{PORT}"
    common = ["--block", "--num-cpus=2", "--disable-usage-stats", f"--object-store-memory={80 << 20}"]
    roles = [["--head", f"--port={PORT}", "--include-dashboard=false"], [f"--address={address}"]]
    rays: list[subprocess.Popen[str]] = []
    log = Path(f"{folder}/ray.log")
    try:
        for rank, role in enumerate(roles):
            command = [RAY, "start", *role, f"--node-ip-address={network.ips[rank]}", *common]
            with log.open("a") as file:
                mine = {**env, "RLINF_NODE_RANK": str(rank)}
                rays.append(network.start(rank, *command, env=mine, stdout=file, stderr=file))
            if rank == 0:
                assert eventually(lambda: (Path(folder) / "ray" / "ray_current_cluster").exists(), 150.0), log.read_text()
        yield {**env, "RLINF_TEST_ADDRESS": address}
    finally:
        for ray in rays:
            if ray.poll() is None:
                os.killpg(ray.pid, signal.SIGTERM)
        for ray in rays:
            try:
                ray.wait(timeout=5)
            except subprocess.TimeoutExpired:  # what it leaves is cleared with its namespace
                os.killpg(ray.pid, signal.SIGKILL)
                ray.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def driver(network: Network, env: dict[str, str], scenario: str, more: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, str(DRIVER), scenario, env["RLINF_TEST_ADDRESS"], more]
    return network.start(0, *command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def said(text: str) -> dict[str, Any]:
    """What a driver said; Ray writes to its standard output, too."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return {name: value for line in lines for name, value in json.loads(line).items()}


def listening(pid: int) -> set[str]:
    """The addresses at which a process accepts TCP connections."""
    mine = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found: set[str] = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
            found.add(socket.inet_ntoa(bytes.fromhex(fields[1].partition(":")[0])[::-1]))
    return found


def test_two_nodes_with_addresses_of_their_own(network: Network, cluster: dict[str, str]) -> None:
    """Arrays and torch's gloo between them; then one is cut off, which is noticed on both sides."""
    run = driver(network, cluster, "reduce")
    out, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    facts = said(out)
    assert facts["ips"] == network.ips
    assert facts["ring"] == [2.0 * (1 << 20), 1.0 * (1 << 20)]
    assert all(seen["rendezvous"].startswith(f"tcp://{network.ips[0]}:") for seen in facts["about"])
    assert facts["reduced"] == [3.0, 3.0]

    run = driver(network, cluster, "wait", "0,1,1")
    assert run.stdout is not None
    line = next((line for line in run.stdout if line.startswith("{")), "")
    assert line, run.communicate()[1]
    pids: list[int] = said(line)["pids"]
    assert network.ips[0] in listening(run.pid)
    assert network.ips[1] in listening(pids[1])
    start = time.monotonic()
    network.cut()
    out, errors = run.communicate(timeout=120)
    seconds = time.monotonic() - start
    assert out, errors
    seen = said(out)
    assert SILENCE_S - 10 < seconds < SILENCE_S + 15, "and a few seconds for a busy machine"
    assert (seen["kind"], seen["group"]) == ("WorkerError", "sleepers")
    assert seen["rank"] in (1, 2)
    assert f"node 1 ({network.ips[1]}) is cut off: it does not answer" in seen["error"]
    assert all_dead(pids, 20.0), "they end by themselves, as nobody can tell them to"
