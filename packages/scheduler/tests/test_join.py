"""A cluster joins a Ray that was there before, shares it, and leaves it as it was."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf.core.errors import ConfigError
from rlinf.scheduler import Cluster

pytestmark = pytest.mark.ray

JOIN = """
import sys
from rlinf.scheduler import Cluster, Worker

class Adder(Worker):
    def add(self, a, b):
        return a + b

if __name__ == "__main__":
    with Cluster(cluster_cfg={"address": sys.argv[1], "timeout_s": 120}) as cluster:
        print("sum", Adder.create_group().launch(cluster, name="adder").add(2, 3).wait())
"""


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    port = free_port()
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_MODE", "disabled")
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2"]
    command += ["--include-dashboard=false", "--disable-usage-stats", f"--object-store-memory={100 << 20}"]
    head = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.5)
        yield f"127.0.0.1:{port}"
    finally:
        patch.undo()
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(timeout=60)
        except subprocess.TimeoutExpired:
            head.kill()


def test_two_runs_one_after_the_other_share_a_ray(address: str, tmp_path: Path) -> None:
    script = tmp_path / "join.py"
    script.write_text(JOIN)
    for _ in range(2):
        done = subprocess.run([sys.executable, str(script), address], capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert "sum [5]" in done.stdout
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=5).close()


def test_an_address_where_nobody_answers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.address: no Ray answers"):
        Cluster(cluster_cfg={"address": f"127.0.0.1:{free_port()}"}).create_channel("any")
