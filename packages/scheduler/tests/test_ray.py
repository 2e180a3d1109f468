import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from waiting import alive, all_dead, descendants, until

from rlinf.core.errors import ClusterError, ConfigError, DeadlineExceeded, WorkerError
from rlinf.core.testing.cluster import ClusterContract
from rlinf.scheduler import Channel, Cluster, FlexiblePlacementStrategy, NodePlacementStrategy, Worker
from rlinf.scheduler.backends.ray import _ray, _slim
from rlinf.scheduler.backends.ray.services import children, own_services

pytestmark = pytest.mark.ray
TWO = NodePlacementStrategy([0, 0])


class Peer(Worker):
    def about(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "devices": self.devices,
            "threads": self._context.threads,
            "omp": os.environ.get("OMP_NUM_THREADS"),
            "mkl": os.environ.get("MKL_NUM_THREADS"),
            "torch": "torch" in sys.modules,
            "rendezvous": self._context.rendezvous,
            "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        }

    def get(self, channel: Channel, timeout: float | None = None) -> Any:
        return channel.get(timeout=timeout)

    def recv_from(self, group: str) -> Any:
        return self.recv(group, 0)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def hold(self, seconds: float) -> tuple[float, float]:
        with self.device_lock:
            start = time.monotonic()
            time.sleep(seconds)
            return start, time.monotonic()

    def talk(self) -> None:
        self.log_info("hello")


def test_contract(ray_cluster: Cluster) -> None:
    ClusterContract(cluster=ray_cluster, two=TWO).run()


def test_processes_of_a_prepared_group_run_before_its_launch(ray_cluster: Cluster) -> None:
    ray_cluster.prepare(Peer, name="ahead", placement_strategy=TWO)
    begun = ray_cluster._backend._prepared["ahead"]
    pids = [future.result(60.0)[0] for future in begun.started]
    group = Peer.create_group().launch(ray_cluster, name="ahead", placement_strategy=TWO)
    assert [about["pid"] for about in group.about().wait(60.0)] == pids
    group.shutdown()


def test_the_launch_tells_that_a_prepared_process_has_died(ray_cluster: Cluster) -> None:
    ray_cluster.prepare(Peer, name="dead", placement_strategy=TWO)
    pids = [future.result(60.0)[0] for future in ray_cluster._backend._prepared["dead"].started]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"^dead\[1\] failed in __init__\(\): the process died \(it was killed by SIGKILL\)"):
        Peer.create_group().launch(ray_cluster, name="dead", placement_strategy=TWO)
    # The name is free again, and the run goes on.
    Peer.create_group().launch(ray_cluster, name="dead", placement_strategy=TWO).shutdown()


def listening(pid: int) -> set[str]:
    """The addresses on which a process accepts TCP connections, as the kernel writes them."""
    sockets: set[str] = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(file))
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.fixture(scope="module")
def peers(ray_cluster: Cluster) -> Any:
    return Peer.create_group().launch(ray_cluster, name="peers", placement_strategy=TWO)


def test_nobody_else_on_the_network_reaches_a_ray_of_our_own(peers: Any) -> None:
    servers = {name: pid for pid, name in own_services().items()}
    assert {"gcs_server", "raylet"} <= servers.keys()
    own = {**servers, "driver": os.getpid(), **{str(info): info.pid for info in peers.worker_infos}}
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    found = {name: listening(pid) for name, pid in own.items()}
    assert all(found[name] for name in ("gcs_server", "raylet", "driver"))
    assert {name: addresses - loopback for name, addresses in found.items() if addresses - loopback} == {}
    assert os.environ["RAY_AUTH_MODE"] == "token"


@pytest.mark.usefixtures("peers")
def test_ray_starts_only_what_a_run_needs() -> None:
    services = {name: pid for pid, name in own_services().items()}
    commands: list[str] = []
    for pid in [*children(os.getpid()), *children(services["raylet"])]:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            commands.append(Path(f"/proc/{pid}/cmdline").read_text())
    assert any("gcs_server" in command for command in commands)
    unused = ("log_monitor", "autoscaler", "dashboard/dashboard")
    assert not [command for command in commands for part in unused if part in command]
    raylet: Any = _ray.ray._raylet
    if all(hasattr(raylet, f"{port}_PORT_NAME") for port in _slim.PORTS):
        assert not [command for command in commands if "dashboard/agent" in command]
        # In its place, under its name: without it the raylet would end itself.
        assert "idle_agent.py" in Path(f"/proc/{services['dashboard_agent']}/cmdline").read_text()
    else:  # an older Ray, which waits for no files of its agent
        assert [command for command in commands if "dashboard/agent" in command]


def test_a_raylet_that_ends_while_ray_starts_is_missed_at_once() -> None:
    def start(command: list[str], process_type: str) -> Any:
        return SimpleNamespace(process=subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))

    private = SimpleNamespace(
        services=SimpleNamespace(start_ray_process=start, get_node=None),
        ray_constants=SimpleNamespace(PROCESS_TYPE_RAYLET="raylet"),
    )
    client = SimpleNamespace(get_all_node_info=lambda timeout: dict[Any, Any]())  # pyright: ignore[reportUnknownLambdaType]
    raylet = _slim.Raylet(SimpleNamespace(_private=private, _raylet=SimpleNamespace(GcsClient=lambda address: client)))  # pyright: ignore[reportUnknownLambdaType]
    started = raylet.start_process([], "raylet")
    began = time.monotonic()
    with pytest.raises(ClusterError, match=r"Ray's raylet: it exited with status 3 while Ray was starting"):
        raylet.get_node("127.0.0.1:1", "ab12")
    assert time.monotonic() - began < _slim.REGISTERED_S / 2
    assert started.process.returncode == 3


def test_a_ray_that_looks_for_other_files_keeps_its_agent() -> None:
    command = f"{_slim.AGENT}python agent.py --node-id=ab12 --session-dir=/s"
    raylet = SimpleNamespace(
        METRICS_AGENT_PORT_NAME="metrics",
        METRICS_EXPORT_PORT_NAME="export",
        DASHBOARD_AGENT_LISTEN_PORT_NAME="listen",
        get_port_filename="{1}_{0}".format,
    )
    ours = _slim.without_agent(SimpleNamespace(_raylet=raylet), command)
    assert ours.endswith("idle_agent.py /s/metrics_ab12 /s/export_ab12 /s/listen_ab12")
    assert _slim.without_agent(SimpleNamespace(_raylet=raylet), "--head") == "--head"
    del raylet.METRICS_EXPORT_PORT_NAME
    assert _slim.without_agent(SimpleNamespace(_raylet=raylet), command) == command


def test_a_second_cluster_refuses_another_ray(ray_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_cluster.create_channel("starts the Ray")
    at = _ray.ray.get_runtime_context().gcs_address
    port = at.rpartition(":")[2]
    for same in (None, "local", at, f"localhost:{port}"):
        with Cluster(cluster_cfg={"address": same}) as cluster:
            cluster.create_channel("c")
    both = rf"cluster\.address: found '198\.51\.100\.7:6379', but this process is connected to the Ray at '{at}'"
    with Cluster(cluster_cfg={"address": "198.51.100.7:6379"}) as cluster, pytest.raises(ConfigError, match=both):
        cluster.create_channel("c")
    monkeypatch.setenv("RAY_ADDRESS", f"198.51.100.7:{port}")
    with Cluster() as cluster, pytest.raises(ConfigError, match=rf"found '198\.51\.100\.7:{port}', but this process"):
        cluster.create_channel("c")
    with pytest.raises(ConfigError, match=r"found 'local', but this process is connected to the Ray at 'h:1'"):
        _ray.check_same("local", "h:1", started=False)


def test_a_token_is_asked_for_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    _ray._require_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    _ray._require_token()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


def test_a_worker_has_what_its_placement_says(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    wide = Peer.create_group().launch(ray_cluster, name="wide", placement_strategy=FlexiblePlacementStrategy([[0, 1], [1]]))
    first, second = wide.about().wait()
    assert (first["devices"], first["threads"], first["omp"], first["mkl"]) == ((0, 1), 2, "2", "2")
    assert (second["devices"], second["threads"], second["omp"], second["mkl"]) == ((1,), 1, "1", "1")
    assert not first["torch"]
    assert first["sigint"]
    assert first["rendezvous"] == second["rendezvous"]
    assert first["rendezvous"].startswith("tcp://127.0.0.1:")
    assert [info.pid for info in wide.worker_infos] == [first["pid"], second["pid"]]
    wide.talk().wait()
    assert ray_cluster.config.log_dir is not None
    assert "hello" in (Path(ray_cluster.config.log_dir) / "worker_logs" / "wide" / "rank_1.log").read_text()

    (one, end_one), (two, end_two) = wide.hold(0.2).wait()
    assert end_one <= two or end_two <= one

    with pytest.raises(DeadlineExceeded, match="wide"):
        wide.execute_on(0).sleep(10.0).wait(timeout=0.3)
    channel = ray_cluster.create_channel("empty", near="wide")
    with pytest.raises(DeadlineExceeded, match=r"channel 'empty', key 'default': driver waited 0.2 s"):
        channel.get(timeout=0.2)
    with pytest.raises(WorkerError, match=r"channel 'empty', key 'default': wide\[1\] waited 0.2 s"):
        wide.execute_on(1).get(channel, timeout=0.2).wait()


def test_arrays_of_all_sizes_arrive_whole(ray_cluster: Cluster) -> None:
    channel = ray_cluster.create_channel("arrays")
    echo = ray_cluster.create_channel("echo")

    class Echo(Worker):
        def echo(self, source: Channel, target: Channel, count: int) -> None:
            for _ in range(count):
                item = source.get()
                item["array"] += 1
                target.put(item)

    sizes = [0, 1, 4095, 8191, 8192, 16384, 1 << 20]
    group = Echo.create_group().launch(ray_cluster, name="echo", placement_strategy=NodePlacementStrategy([0]))
    done = group.echo(channel, echo, len(sizes))
    for size in sizes:
        channel.put({"array": np.arange(size, dtype=np.float32), "size": size})
    for size in sizes:
        item = echo.get()
        assert item["size"] == size
        np.testing.assert_array_equal(item["array"], np.arange(size, dtype=np.float32) + 1)
    done.wait()


DRIVER = """
import os, sys, time
from rlinf.scheduler import Cluster, Worker, NodePlacementStrategy

class Sleeper(Worker):
    def sleep(self):
        time.sleep(600)

if __name__ == "__main__":
    with Cluster() as cluster:
        group = Sleeper.create_group().launch(cluster, name="sleeper", placement_strategy=NodePlacementStrategy([0, 0]))
        handle = group.sleep()
        print(*[info.pid for info in group.worker_infos], flush=True)
        handle.wait()
"""


@pytest.mark.slow
def test_no_orphans_when_the_driver_is_interrupted(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    driver = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert driver.stdout is not None
    workers = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(workers) == 2
    until(lambda: set(workers) <= set(descendants(driver.pid)))
    everybody = {*workers, *descendants(driver.pid)}
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
    _, errors = driver.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    assert "WorkerError" not in errors
    assert all_dead(everybody), [pid for pid in everybody if alive(pid)]


def test_of_a_worker_that_dies_the_error_alone_tells() -> None:
    """Ray's raylet would print a long line above it, on standard output."""
    logging: Any = importlib.import_module("ray._private.ray_logging")
    line = "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check …"
    (batch,) = logging.LogDeduplicator(5, logging.RAY_DEDUP_LOGS_ALLOW_REGEX, logging.RAY_DEDUP_LOGS_SKIP_REGEX).deduplicate(
        {"pid": "raylet", "lines": ["another", line], "is_err": False}
    )
    assert batch["lines"] == ["another"]
