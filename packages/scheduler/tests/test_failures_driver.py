"""Drivers that are killed, interrupted, or lose the Ray beneath them: each is a program of its own, with a Ray of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import alive, all_dead, descendants, until

pytestmark = pytest.mark.ray
OWN_RAY = True

SCRIPT = """
import os, signal, subprocess, sys, time
from rlinf.core.errors import RLinfError
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker

class Sleeper(Worker):
    def __init__(self, seconds=0.0):
        time.sleep(seconds)

    def children(self):
        return [subprocess.Popen(["sleep", "600"], start_new_session=alone).pid for alone in (False, True)]

    def sleep(self):
        time.sleep(600)

def say(*words):
    print(*words, flush=True)

def launch(cluster, seconds=0.0):
    return Sleeper.create_group(seconds).launch(cluster, name="sleeper", placement_strategy=NodePlacementStrategy([0, 0]))

def wait(cluster):
    group = launch(cluster)
    children = group.children().wait()
    handle = group.sleep()
    say("workers", *[info.pid for info in group.worker_infos])
    say("children", *children[0], *children[1])
    handle.wait()

def handler(cluster):
    def stop(*_):
        cluster.shutdown()
        say("stopped")
        sys.exit(5)

    signal.signal(signal.SIGTERM, stop)
    wait(cluster)

def launching(cluster):
    cluster.create_channel("started")
    say("launching")
    launch(cluster, 600.0)

def idle(cluster):
    group = launch(cluster)
    cluster.on_failure(lambda error: say("heard", error))
    say("workers", *[info.pid for info in group.worker_infos])
    sys.stdin.readline()
    group.sleep()
    time.sleep(600.0)

if __name__ == "__main__":
    with Cluster(cluster_cfg={"timeout_s": 60.0}) as cluster:
        {"wait": wait, "handler": handler, "launching": launching, "idle": idle}[sys.argv[1]](cluster)
"""


class Driver:
    """A program that runs a cluster."""

    def __init__(self, folder: Path, what: str) -> None:
        script = folder / "driver.py"
        script.write_text(SCRIPT)
        self.errors = folder / "errors"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(script), what],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def hear(self, word: str) -> list[str]:
        """What it says after a word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, _, rest = line.strip().partition(" ")
            if first == word:
                return rest.split()
        raise AssertionError(f"it never said '{word}'; its errors:\n{self.errors.read_text()}")

    def go_on(self) -> None:
        """Ends the pause of `idle`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait(self, seconds: float = 120.0) -> int:
        """Its exit status."""
        return self.process.wait(seconds)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[[str], Driver]]:
    made: list[Driver] = []

    def make(what: str) -> Driver:
        made.append(Driver(tmp_path, what))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait(60.0)
        for pipe in (one.process.stdin, one.process.stdout):
            assert pipe is not None
            pipe.close()


def name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def test_a_killed_driver_leaves_nobody_not_even_who_is_stopped(driver: Callable[[str], Driver]) -> None:
    one = driver("wait")
    workers = [int(pid) for pid in one.hear("workers")]
    children = [int(pid) for pid in one.hear("children")]
    until(lambda: {*workers, *children} <= {*descendants(one.process.pid)})
    everybody = {*workers, *children, *descendants(one.process.pid)}
    os.kill(workers[0], signal.SIGSTOP)
    os.kill(children[0], signal.SIGSTOP)
    os.kill(one.process.pid, signal.SIGKILL)
    assert all_dead(everybody), [name(pid) for pid in everybody if alive(pid)]


@pytest.mark.slow
def test_a_signal_handler_may_shut_down(driver: Callable[[str], Driver]) -> None:
    one = driver("handler")
    one.hear("children")
    everybody = descendants(one.process.pid)
    os.kill(one.process.pid, signal.SIGTERM)
    one.hear("stopped")
    assert one.wait() == 5, one.errors.read_text()
    assert all_dead(everybody), [name(pid) for pid in everybody if alive(pid)]


def test_an_interrupted_launch_leaves_nothing(driver: Callable[[str], Driver]) -> None:
    one = driver("launching")
    one.hear("launching")
    time.sleep(2.0)
    everybody = descendants(one.process.pid)
    os.killpg(one.process.pid, signal.SIGINT)
    assert one.wait() != 0
    assert "KeyboardInterrupt" in one.errors.read_text()
    assert all_dead(everybody), [name(pid) for pid in everybody if alive(pid)]


def test_a_ray_that_dies_while_it_starts_is_named(driver: Callable[[str], Driver]) -> None:
    for _ in range(3):
        one = driver("launching")
        server, everybody = kill_while_ray_starts(one)
        assert one.wait() == 1
        assert all_dead(everybody), [name(pid) for pid in everybody if alive(pid)]
        assert one.process.stdout is not None
        if "launching" not in one.process.stdout.read():
            break
        # This process was not run for so long that Ray had started before it was looked at.
    words = f"ClusterError: Ray's gcs_server, pid {server}: it was killed by SIGKILL while Ray was starting"
    assert words in one.errors.read_text()


def kill_while_ray_starts(one: Driver) -> tuple[int, list[int]]:
    """Kills the first of Ray's processes when its last one is there; returns the id of the first, and those of all."""
    deadline = time.monotonic() + 60.0
    # Ray starts its raylet last: the driver still waits for it, and a failure before it would be tried again.
    while "raylet" not in (names := {name(pid): pid for pid in descendants(one.process.pid)}):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    everybody = descendants(one.process.pid)
    os.kill(names["gcs_server"], signal.SIGKILL)
    return names["gcs_server"], everybody


@pytest.mark.parametrize(
    "service",
    ["raylet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gcs_server", "ray::RuntimeEnv", "dashboard_agent"))],
)
def test_rays_own_processes_are_named_when_they_die(driver: Callable[[str], Driver], service: str) -> None:
    one = driver("wait")
    one.hear("children")
    until(lambda: any(name(pid).startswith(service) for pid in descendants(one.process.pid)))
    everybody = descendants(one.process.pid)
    (victim,) = [pid for pid in everybody if name(pid).startswith(service)]
    start = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert one.wait() == 1
    assert time.monotonic() - start < 45.0, "before the cluster's timeout_s"
    errors = one.errors.read_text()
    known = "runtime_env_agent" if service.startswith("ray::") else service
    last = errors.strip().splitlines()[-1]
    assert f"ClusterError: Ray's {known}, pid {victim}: " in errors, errors
    assert "WorkerError" not in last
    assert all_dead(everybody), [name(pid) for pid in everybody if alive(pid)]


@pytest.mark.slow
def test_an_idle_driver_hears_of_a_death_at_once_and_fails_at_its_next_call(driver: Callable[[str], Driver]) -> None:
    one = driver("idle")
    workers = [int(pid) for pid in one.hear("workers")]
    os.kill(workers[1], signal.SIGKILL)
    heard = " ".join(one.hear("heard"))
    one.go_on()
    assert heard == f"sleeper[1] failed between calls: the process died (it was killed by SIGKILL), pid {workers[1]}"
    assert one.wait() == 1
    assert f"WorkerError: {heard}" in one.errors.read_text()


AGAIN = """
import os, signal
from rlinf.scheduler import Cluster, Worker
from rlinf.scheduler.backends.ray import _backend, services

class Adder(Worker):
    def add(self, a, b):
        return a + b

launch = _backend.RayBackend.launch

def give_up(self, *args):
    _backend.RayBackend.launch = launch
    (raylet,) = [pid for pid, name in services.own_services().items() if name == "raylet"]
    os.kill(raylet, signal.SIGTERM)  # it ends its agents, then itself, as when the machine is too slow for it
    return launch(self, *args)

if __name__ == "__main__":
    _backend.RayBackend.launch = give_up
    with Cluster(cluster_cfg={"timeout_s": 120.0}) as cluster:
        print(Adder.create_group().launch(cluster, name="adder").add(1, 2).wait())
"""


@pytest.mark.slow
def test_a_ray_that_gives_up_under_the_first_launch_is_started_once_more(tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(AGAIN)
    done = subprocess.run([sys.executable, str(tmp_path / "again.py")], capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout == "[3]\n", done.stderr
    assert "Ray's raylet, pid" in done.stderr
    assert "starting Ray once more" in done.stderr
    assert "agent, pid" not in done.stderr
