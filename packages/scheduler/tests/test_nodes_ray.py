"""Three logical Ray nodes on one machine: ranks, placement, messages over TCP, shared use, and a node that is lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import alive, all_dead

pytestmark = pytest.mark.ray
OWN_RAY = True
HERE = Path(__file__).parent
PATIENT = {"RAY_raylet_start_wait_time_s": "120"}
"""A busy machine may take longer to start a node than Ray allows."""
HEAD_RANK = 1
"""The driver is not on node 0."""


class Driver:
    """A process that runs a scenario of `nodes_driver.py`."""

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        command = [sys.executable, str(HERE / "nodes_driver.py"), *arguments]
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def line(self) -> dict[str, Any]:
        """The next thing that it says; Ray writes to its standard output, too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError(self.end()[1])

    def end(self) -> tuple[dict[str, Any], str]:
        """All that it still says, and its standard error."""
        out, errors = self.process.communicate(timeout=300)
        facts: dict[str, Any] = {}
        for line in filter(lambda line: line.startswith("{"), out.splitlines()):
            for name, value in json.loads(line).items():
                facts[name] = [*facts[name], *value] if name in facts else value
        return facts, errors

    def good(self) -> dict[str, Any]:
        """All that it still says; it must end well."""
        facts, errors = self.end()
        assert self.process.returncode == 0, errors
        return facts


class Host:
    """The Ray of `nodes_host.py`."""

    def __init__(self, folder: str) -> None:
        self.env = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder, "OMP_NUM_THREADS": "1", **PATIENT}
        self.env.pop("RAY_ADDRESS", None)
        ranks = [str(rank) for rank in (HEAD_RANK, 0, 2)]
        self._log = open(f"{folder}/host.log", "w")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nodes_host.py"), *ranks],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self.address = self._say("")

    def driver(self, *arguments: str) -> Driver:
        """A driver in the environment of the nodes."""
        scenario, *rest = arguments
        return Driver(self.env, scenario, self.address, *(rest or [""]))

    def remove(self, number: int) -> None:
        """Kills the Ray of a node."""
        assert self._say(f"remove {number}\n") == "removed"

    def _say(self, text: str) -> str:
        """The first of the answers that are its own: Ray writes to its standard output, too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.strip() == "removed" or line.replace(".", "").replace(":", "").strip().isdigit():
                return line.strip()
        return ""

    def end(self) -> None:
        """Ends all nodes, and whatever they have left."""
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._log.close()


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    folder = tempfile.mkdtemp(prefix="rn-")
    found = Host(folder)
    try:
        assert found.address, Path(f"{folder}/host.log").read_text()
        yield found
    finally:
        found.end()
        shutil.rmtree(folder, ignore_errors=True)


def test_two_runs_at_once_over_three_nodes(host: Host, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport RLINF_TEST_PYTHON=mine\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    talk, guest = host.driver("talk", str(tmp_path)), host.driver("guest")
    facts, other = talk.good(), guest.good()
    assert facts["cores"] == [2, 2, 3], "node 0 came after the head"
    assert facts["same"] == 3
    assert "ray cluster: 3 nodes with 7 CPU cores and no accelerator" in facts["text"]
    assert facts["nodes"] == [0, 1, 2, 1, 2]
    for rank, seen in enumerate(facts["peers"]):
        assert seen["RLINF_NODE_RANK"] == str(rank)
        assert seen["RLINF_TEST_PLACE"] == f"at {rank}"
        assert seen["RLINF_TEST_DRIVER"] == "told by the driver"
        assert (seen["RLINF_TEST_GROUP"], seen["RLINF_TEST_PYTHON"]) == (None, None), "not of that node group"
        assert f"/of/node{rank}" in seen["PYTHONPATH"].split(":")
        assert seen["rendezvous"].startswith(f"tcp://{facts['ips'][0]}:")
    first, second = facts["late"]
    assert [seen["RLINF_TEST_GROUP"] for seen in facts["late"]] == ["1", "2"]
    assert [seen["RLINF_TEST_PYTHON"] for seen in facts["late"]] == [None, "mine"]
    assert first["PYTHONPATH"].split(":")[0] == "/of/group"
    assert "/of/node1" in first["PYTHONPATH"].split(":")
    assert "/of/group" not in second["PYTHONPATH"]
    assert facts["ring"] == [[9.0, 3.0, 6.0], [3.0 * (1 << 20), 1.0 * (1 << 20), 2.0 * (1 << 20)]]
    assert facts["orders"] == [True] * 9
    assert other["ring"] == [6.0, 3.0]
    assert other["still"], "a Ray that the program has joined by itself is used, and left alone"


@pytest.mark.slow
def test_fewer_nodes_than_there_are_and_more(host: Host) -> None:
    run = host.driver("fewer")
    facts, errors = run.end()
    assert run.process.returncode == 0, errors
    assert facts["places"] == ["at 1"] * 2
    assert "cluster.num_nodes is 2; not used:" in errors
    assert facts["nodes"] == [2, 3]
    assert facts["kind"] == "DeadlineExceeded"
    assert 4.0 <= facts["seconds"] < 90.0, "and a moment for the answers of those that came"
    assert facts["error"].startswith("cluster.num_nodes: waited 4 s in vain: 3 of 5 nodes came: ")
    assert all(f"(RLINF_NODE_RANK {rank})" in facts["error"] for rank in range(3)), facts["error"]
    assert "missing: RLINF_NODE_RANK 3-4. Run `ray start" in facts["error"]


@pytest.mark.slow
def test_no_orphans_on_any_node_when_the_driver_is_killed(host: Host) -> None:
    run = host.driver("wait", "0,1,2")
    pids = run.line()["pids"]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.communicate(timeout=60)
    assert all_dead(pids)


def test_a_node_that_is_lost_is_named(host: Host) -> None:
    run = host.driver("wait", "0,1,2")
    pids = run.line()["pids"]
    start = time.monotonic()
    host.remove(1)
    facts = run.line()
    assert time.monotonic() - start < 60.0, "five seconds on a machine with nothing else to do, and before the cluster's timeout_s"
    assert (facts["kind"], facts["group"], facts["rank"]) == ("WorkerError", "sleepers", 2)
    assert "node 2 (" in facts["error"]
    assert "was lost" in facts["error"]
    run.good()
    assert all_dead(pids)
