"""The supervisor of a worker's process, the guard of the driver, and the watch over Ray's processes; without Ray."""

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
from waiting import all_dead

from rlinf.core.process import is_running, supervisor
from rlinf.scheduler.backends.ray.exits import GRACE_S, STOPPED, exit_of, obstacle
from rlinf.scheduler.backends.ray.guard import Guard
from rlinf.scheduler.backends.ray.services import Services, Shutdown, children

CHILDREN = """
import os, subprocess, sys, time
plain = subprocess.Popen(["sleep", "600"]).pid
alone = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
print(os.getpid(), plain, alone, flush=True)
time.sleep(600)
"""


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


class Supervised:
    """A command below a supervisor, as Ray would start it: in a process group of its own."""

    def __init__(self, status: Path, driver: int, code: str) -> None:
        command = supervisor.command_line(
            [sys.executable, "-c", code], watched=[driver], grace_s=GRACE_S, status=str(status), detached=True
        )
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
def supervise(tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]) -> Iterator[Callable[[str], Supervised]]:
    made: list[Supervised] = []

    def make(code: str) -> Supervised:
        made.append(Supervised(tmp_path / "end", sleeper().pid, code))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGKILL, "it was killed by SIGKILL"), (signal.SIGSEGV, "it was killed by SIGSEGV")]
)
def test_a_supervisor_says_what_killed_its_program_and_ends_its_family(
    supervise: Callable[[str], Supervised], tmp_path: Path, number: signal.Signals, words: str
) -> None:
    one = supervise(CHILDREN)
    os.kill(one.pids[0], number)
    assert exit_of(tmp_path / "end", 60.0) == words
    assert all_dead(one.pids)
    assert one.front.wait(60.0) == 0


def test_a_supervisor_says_how_its_program_exited(supervise: Callable[[str], Supervised], tmp_path: Path) -> None:
    supervise("import os, sys; print(os.getpid(), flush=True); sys.exit(3)")
    assert exit_of(tmp_path / "end", 60.0) == "it exited with status 3"


@pytest.mark.parametrize("stopped", [False, True])
def test_nobody_outlives_the_driver_not_even_who_is_stopped(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]], stopped: bool
) -> None:
    driver = sleeper()
    one = Supervised(tmp_path / "end", driver.pid, CHILDREN)
    if stopped:
        for pid in one.pids:
            os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 60.0
        while not obstacle(one.pids[0]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert obstacle(one.pids[0]) == STOPPED
    driver.kill()
    driver.wait()
    assert all_dead(one.pids)
    one.end()


def test_nobody_outlives_ray_which_kills_the_process_group(supervise: Callable[[str], Supervised]) -> None:
    one = supervise(CHILDREN)
    os.killpg(one.front.pid, signal.SIGTERM)
    time.sleep(0.3)
    assert all(is_running(pid) for pid in one.pids)
    os.killpg(one.front.pid, signal.SIGKILL)
    assert all_dead(one.pids)


def test_who_clears_up_is_not_in_the_workers_process_group(supervise: Callable[[str], Supervised], tmp_path: Path) -> None:
    one = supervise(CHILDREN)
    os.killpg(os.getpgid(one.pids[0]), signal.SIGKILL)
    assert all_dead(one.pids)
    assert exit_of(tmp_path / "end", 60.0) == "it was killed by SIGKILL"


def test_exits_in_words(tmp_path: Path) -> None:
    (tmp_path / "end").write_text("killed 9 oom")
    assert exit_of(tmp_path / "end", 0.0) == "it was killed by SIGKILL: the kernel ran out of memory"
    start = time.monotonic()
    assert exit_of(tmp_path / "none", 0.1) == ""
    assert time.monotonic() - start >= 0.1
    assert obstacle(os.getpid()) == ""


def test_a_guard_clears_up_only_if_its_process_was_killed(tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    folder, agent = tmp_path / "a folder", sleeper()
    folder.mkdir()
    guard = Guard([agent.pid], folder)
    guard.end()
    assert is_running(agent.pid)
    assert folder.is_dir()
    code = "import sys, time; from pathlib import Path; from rlinf.scheduler.backends.ray.guard import Guard\n"
    code += f"Guard([{agent.pid}], Path({str(folder)!r})); print('ready', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    assert all_dead([agent.pid])
    deadline = time.monotonic() + 60.0
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
    assert came.wait(60.0)
    one.kill()
    assert services.check()
    services.end()
    services.end()
    assert told == [("gcs_server", two.pid, "it was killed by SIGKILL")]


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
    sleeper: Callable[[], subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: str,
    told_of: str,
    why: str,
) -> None:
    monkeypatch.setattr("rlinf.scheduler.backends.ray.services.FOLLOW_S", 60.0)
    (tmp_path / "raylet.out").write_text(log)
    told: list[tuple[str, int, str]] = []
    came = threading.Event()
    raylet, agent = sleeper(), sleeper()
    names = {agent.pid: "dashboard_agent", raylet.pid: "raylet"}
    services = Services(names, lambda *news: (told.append(news), came.set()), tmp_path)
    agent.terminate()
    time.sleep(0.3)  # as the raylet does, which ends after them
    raylet.terminate()
    assert came.wait(60.0)
    services.end()
    pid = {name: pid for pid, name in names.items()}[told_of]
    assert told == [(told_of, pid, f"it was killed by SIGTERM{why}")]


def test_a_thread_that_ends_hides_nobodys_children(
    sleeper: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    child, there = sleeper().pid, Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: [folder / "0", *there(folder)])
    assert child in children(os.getpid())


def test_a_shutdown_kills_who_does_not_end(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    one, two = sleeper(), sleeper()
    last = Shutdown([one.pid, two.pid])
    assert not last.broken()
    last.end(0.1)
    assert all_dead([one.pid, two.pid])
    three, four = sleeper(), sleeper()
    last = Shutdown([three.pid, four.pid])
    three.terminate()
    assert all_dead([three.pid])
    assert last.broken()
    assert all_dead([four.pid])
    last.end(0.0)
