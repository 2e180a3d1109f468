"""A cluster joins a Ray that was there before, shares it, and leaves it as it was."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.scheduler.backends.ray.services import own_services

pytestmark = pytest.mark.ray

JOIN = """
import sys
from rlinf.scheduler import Cluster, Worker
from rlinf.scheduler.backends.ray.services import children

class Adder(Worker):
    def add(self, a, b):
        return a + b

if __name__ == "__main__":
    with Cluster(cluster_cfg={"address": sys.argv[1], "timeout_s": 120}) as cluster:
        before = children(int(sys.argv[2]))
        cluster.create_channel("joined")
        print("new", *set(children(int(sys.argv[2]))) - set(before))
        print("sum", Adder.create_group().launch(cluster, name="adder").add(2, 3).wait())
"""


def test_two_runs_one_after_the_other_share_a_ray(shared_ray: str, tmp_path: Path) -> None:
    script = tmp_path / "join.py"
    script.write_text(JOIN)
    (raylet,) = [pid for pid, name in own_services().items() if name == "raylet"]
    command = [sys.executable, str(script), shared_ray, str(raylet)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert {"new", "sum [5]"} <= {*done.stdout.splitlines()}, "joining starts no process"
    host, port = shared_ray.split(":")
    socket.create_connection((host, int(port)), timeout=5).close()
