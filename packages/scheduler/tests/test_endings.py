"""The parent of a worker's process, the guard of the driver, and the watch over Ray's processes; without Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlinf.scheduler.ray_cluster.endings import PARENT, STOPPED, ending, killed, runs, standing
from rlinf.scheduler.ray_cluster.guard import Guard
from rlinf.scheduler.ray_cluster.services import Services, Shutdown

CHILDREN = """
import os, subprocess, sys, time
plain = subprocess.Popen(["sleep", "600"]).pid
alone = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
print(os.getpid(), plain, alone, flush=True)
time.sleep(600)
"""


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(runs(pid) for pid in pids)


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []

    def make() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(["sleep", "600"]))
        return made[-1]

    yield make
    for process in made:
        process.kill()
        process.wait()


class Adopted:
    """A command below a parent, as Ray would start it: in a process group of its own."""

    def __init__(self, status: Path, driver: int, code: str) -> None:
        command = [sys.executable, "-ISE", str(PARENT), str(status), str(driver), sys.executable, "-c", code]
        self.front = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
        assert self.front.stdout is not None
        self.pids = [int(pid) for pid in self.front.stdout.readline().split()]

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.front.pid, signal.SIGKILL)
        self.front.wait()
        assert self.front.stdout is not None
        self.front.stdout.close()


@pytest.fixture
def adopt(tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]) -> Iterator[Callable[[str], Adopted]]:
    made: list[Adopted] = []

    def make(code: str) -> Adopted:
        made.append(Adopted(tmp_path / "end", sleeper().pid, code))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSEGV, "killed by SIGSEGV")])
def test_a_parent_says_what_killed_its_child_and_ends_its_family(
    adopt: Callable[[str], Adopted], tmp_path: Path, number: signal.Signals, words: str
) -> None:
    one = adopt(CHILDREN)
    os.kill(one.pids[0], number)
    assert ending(tmp_path / "end", 10.0) == words
    assert gone(one.pids)
    assert one.front.wait(10.0) == 0


def test_a_parent_says_how_its_child_exited(adopt: Callable[[str], Adopted], tmp_path: Path) -> None:
    adopt("import os, sys; print(os.getpid(), flush=True); sys.exit(3)")
    assert ending(tmp_path / "end", 10.0) == "it exited with status 3"


@pytest.mark.parametrize("stopped", [False, True])
def test_nobody_outlives_the_driver_not_even_who_is_stopped(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]], stopped: bool
) -> None:
    driver = sleeper()
    one = Adopted(tmp_path / "end", driver.pid, CHILDREN)
    if stopped:
        for pid in one.pids:
            os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10.0
        while not standing(one.pids[0]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert standing(one.pids[0]) == STOPPED
    driver.kill()
    driver.wait()
    assert gone(one.pids)
    one.end()


def test_nobody_outlives_ray_which_kills_the_process_group(adopt: Callable[[str], Adopted]) -> None:
    one = adopt(CHILDREN)
    os.killpg(one.front.pid, signal.SIGTERM)
    time.sleep(0.3)
    assert all(runs(pid) for pid in one.pids)
    os.killpg(one.front.pid, signal.SIGKILL)
    assert gone(one.pids)


def test_who_clears_up_is_not_in_the_workers_process_group(adopt: Callable[[str], Adopted], tmp_path: Path) -> None:
    one = adopt(CHILDREN)
    os.killpg(os.getpgid(one.pids[0]), signal.SIGKILL)
    assert gone(one.pids)
    assert ending(tmp_path / "end", 10.0) == "killed by SIGKILL"


def test_endings_in_words(tmp_path: Path) -> None:
    assert killed(9, oom=True) == "killed by SIGKILL: the kernel ran out of memory"
    assert killed(11, oom=True) == "killed by SIGSEGV"
    assert killed(200) == "killed by signal 200"
    (tmp_path / "end").write_text("killed 9 oom")
    assert ending(tmp_path / "end", 0.0) == "killed by SIGKILL: the kernel ran out of memory"
    start = time.monotonic()
    assert ending(tmp_path / "none", 0.1) == ""
    assert time.monotonic() - start >= 0.1
    assert standing(os.getpid()) == ""


def test_a_guard_clears_up_only_if_its_process_was_killed(tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    folder, agent = tmp_path / "a folder", sleeper()
    folder.mkdir()
    guard = Guard([agent.pid], folder)
    guard.end()
    assert runs(agent.pid)
    assert folder.is_dir()
    code = "import sys, time; from pathlib import Path; from rlinf.scheduler.ray_cluster.guard import Guard\n"
    code += f"Guard([{agent.pid}], Path({str(folder)!r})); print('ready', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    assert gone([agent.pid])
    deadline = time.monotonic() + 10.0
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()


def test_the_first_service_that_ends_is_told_once(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    told: list[tuple[str, int, str]] = []
    came = threading.Event()
    one, two = sleeper(), sleeper()
    services = Services({one.pid: "raylet", two.pid: "gcs_server"}, lambda *news: (told.append(news), came.set()))
    assert not services.check()
    two.kill()
    assert came.wait(10.0)
    one.kill()
    assert services.check()
    services.end()
    services.end()
    assert told == [("gcs_server", two.pid, "killed by SIGKILL")]


@pytest.mark.parametrize(
    ("log", "told_of", "why"),
    [
        ('reason: EXPECTED\nreason_message: "the GCS took this node for dead."\n', "raylet", " (the GCS took this node for dead)"),
        (
            "[2026 12:00:00,1 E 7 7] (raylet) node.cc:9: [Timeout] The machine is overloaded.\n",
            "raylet",
            " ([Timeout] The machine is overloaded)",
        ),
        ('reason_message: "dashboard_agent failed and raylet fate-shares with it."\n', "dashboard_agent", ""),
        ("", "raylet", ""),
    ],
)
def test_an_agent_that_the_raylet_has_ended_is_not_the_cause(
    sleeper: Callable[[], subprocess.Popen[bytes]], tmp_path: Path, log: str, told_of: str, why: str
) -> None:
    (tmp_path / "raylet.out").write_text(log)
    told: list[tuple[str, int, str]] = []
    came = threading.Event()
    raylet, agent = sleeper(), sleeper()
    names = {agent.pid: "dashboard_agent", raylet.pid: "raylet"}
    services = Services(names, lambda *news: (told.append(news), came.set()), tmp_path)
    agent.terminate()
    time.sleep(0.3)  # as the raylet does, which ends after them
    raylet.terminate()
    assert came.wait(10.0)
    services.end()
    pid = {name: pid for pid, name in names.items()}[told_of]
    assert told == [(told_of, pid, f"killed by SIGTERM{why}")]


def test_a_shutdown_kills_who_does_not_end(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    one, two = sleeper(), sleeper()
    last = Shutdown([one.pid, two.pid])
    assert not last.broken()
    last.end(0.1)
    assert gone([one.pid, two.pid])
    three, four = sleeper(), sleeper()
    last = Shutdown([three.pid, four.pid])
    three.terminate()
    assert gone([three.pid])
    assert last.broken()
    assert gone([four.pid])
    last.end(0.0)
