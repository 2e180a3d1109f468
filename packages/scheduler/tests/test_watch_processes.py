"""What the driver sees of other processes: stacks, states, waits, and the heartbeat. Without Ray."""

import gc
import logging
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from waiting import becomes, until

from rlinf.scheduler.transport import waits
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.watch import heartbeat, silence, stacks
from rlinf.scheduler.watch.heartbeat import LOG, Heartbeat
from rlinf.scheduler.watch.processes import describe, state
from rlinf.scheduler.watch.silence import SilenceWatch
from rlinf.scheduler.watch.watcher import Watcher
from rlinf.scheduler.workers.logs import WORKERS

LONG_S = 60.0


FAULTHANDLER = """Thread 0x00007f10 (most recent call first):
  File "/a/b/c/d.py", line 12 in wait
  File "/a/b/c/d.py", line 3 in <module>

Current thread 0x00007f11 (most recent call first):
  File "/x/worker.py", line 41 in generate
"""
PY_SPY = """Process 12: python worker.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 12 (active): "MainThread"
    generate (/x/y/z/worker.py:41)
    perform (rlinf/scheduler/workers/calls.py:99)
Thread 0x7F (idle)
    wait (threading.py:320)
    epoll (native.c)
"""


def test_what_faulthandler_and_py_spy_write_can_be_read() -> None:
    assert stacks.parse(FAULTHANDLER) == [
        stacks.Stack("0x00007f10", ("wait (b/c/d.py:12)", "<module> (b/c/d.py:3)")),
        stacks.Stack("0x00007f11", ("generate (/x/worker.py:41)",)),
    ]
    assert stacks.parse(PY_SPY) == [
        stacks.Stack("MainThread", ("generate (y/z/worker.py:41)", "perform (scheduler/workers/calls.py:99)")),
        stacks.Stack("0x7F", ("wait (threading.py:320)", "epoll (native.c)")),
    ]
    assert stacks.in_calls(stacks.parse(PY_SPY)) == ["generate (y/z/worker.py:41)"]
    assert stacks.in_calls(stacks.parse(PY_SPY.replace("perform", "perform_async"))) == ["generate (y/z/worker.py:41)"]
    assert stacks.in_calls(stacks.parse(FAULTHANDLER)) == []


SLEEPER = """
import ctypes, sys, time
from rlinf.scheduler.watch.stacks import answer_signals

def holds_the_lock():
    while True:  # a signal ends a native sleep early
        ctypes.PyDLL(None).sleep(60)

answer_signals()
print("ready", flush=True)
holds_the_lock() if sys.argv[1] == "native" else time.sleep(60)
"""


@contextmanager
def sleeper(how: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", SLEEPER, how], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        until(lambda: state(process.pid) == "S")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_stacks_of_a_process_whose_native_code_holds_the_lock() -> None:
    with sleeper("native") as pid:
        assert describe(pid) == f"blocked in native code that holds Python's lock (state S), pid {pid}"
        becomes(lambda: names_of_frames(stacks.by_signal([pid]).get(pid, [])), [["holds_the_lock", "<module>"]])


def names_of_frames(found: list[stacks.Stack]) -> list[list[str]]:
    return [[frame.partition(" ")[0] for frame in stack.frames] for stack in found]


def test_a_process_that_never_agreed_is_not_sent_a_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert stacks.by_signal([process.pid, 2**22 + 1]) == {}
        assert process.poll() is None
        process.kill()


def test_a_stopped_process_is_named_as_such() -> None:
    with sleeper("python") as pid:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state(pid) == "T")
        assert describe(pid) == f"stopped (state T), pid {pid}"
    assert describe(pid) == f"gone, pid {pid}"


def test_py_spy_is_asked_first_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text(f'#!/bin/sh\n[ "$*" = "dump --pid 1" ] || exit 1\ncat <<EOF\n{PY_SPY}EOF\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with sleeper("native") as pid:
        becomes(
            lambda: {of: names_of_frames(found)[0][:1] for of, found in stacks.foreign_stacks([1, pid]).items() if found},
            {1: ["generate"], pid: ["holds_the_lock"]},
        )
        assert stacks.foreign_stacks([1])[1][0].frames[0] == "generate (y/z/worker.py:41)"


def test_the_stacks_of_this_process_have_the_names_of_its_threads() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait, name="waiter")
    thread.start()

    def waits() -> bool:
        (found,) = [stack for stack in stacks.own_stacks() if stack.thread == "waiter"]
        return any(frame.startswith("wait (") and "threading.py" in frame for frame in found.frames)

    until(waits)  # a thread that has started need not have come there yet
    event.set()
    thread.join()


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_while_frames_are_taken(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    """Python 3.11 can deadlock there: python/cpython#106883."""
    taken, seen = sys._current_frames, list[bool]()

    def frames() -> dict[int, FrameType]:
        seen.append(gc.isenabled())
        return taken()

    monkeypatch.setattr(sys, "_current_frames", frames)
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        stacks.own_stacks()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False]


PROCESS = """
import ctypes, os, sys, time
from rlinf.scheduler.transport.waits import calling
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport
from rlinf.scheduler.workers.device_lock import DeviceLock
from rlinf.scheduler.transport.p2p import PeerMessenger
from rlinf.scheduler.transport.sockets.locations import RunInfo, Location
from rlinf.scheduler.watch.answers import answer

path, run, me, how, *details = sys.argv[1:]
who = me.replace(".", "[") + "]"
meeting = RunInfo(run=run, driver=Location("here", path + "/driver"), authkey=b"k", timeout_s=60.0)
transport = SocketTransport(meeting, me, Location("here", path + "/" + me))
transport.server.start()
answer(who, transport.server)
transport.connect_control(lambda: os._exit(0))
lock = DeviceLock(transport, who, [0])

def native():
    while True:  # a signal ends a native sleep early
        ctypes.PyDLL(None).sleep(60)

with calling(who, how):
    if how == "train":
        with lock:
            print("in", flush=True)
            time.sleep(600.0)
    print("in", flush=True)
    if how == "step":
        lock.acquire()
    elif how == "native":
        native()
    elif how == "recv":
        PeerMessenger(transport, me, lambda: {"x": 1}).recv(*details, 0)
    time.sleep(600.0)
"""


class Run:
    """A driver here, and processes that do what they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        place = Location("here", str(folder / DRIVER))
        run_info = RunInfo(run=secrets.token_hex(4), driver=place, authkey=b"k", timeout_s=LONG_S)
        self.transport = DriverTransport(run_info, on_lost=lambda *_: None, on_log=lambda *_: None)
        self.watcher = Watcher(self.transport)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, me: str, how: str, *details: str) -> int:
        command = [sys.executable, "-c", PROCESS, str(self.folder), self.transport.run, me, how, *details]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        return process.pid

    def line(self, who: str) -> str:
        """What the graph has of a process, with N for numbers of seconds."""
        found = next((waiter.describe() for waiter in self.watcher.wait_graph().waiters if waiter.who == who), "")
        return re.sub(r"\d+ s", "N s", found)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.transport.stop()
    for process in made.processes:
        process.kill()
        process.wait()


def test_the_graph_has_locks_with_their_holders_and_processes_that_do_not_answer(run: Run) -> None:
    run.start("actor.0", "train")
    run.start("env.0", "step")
    becomes(
        lambda: run.line("env[0]"),
        "env[0] has waited N s for the lock (device 0), in step() for N s; "
        "device 0 is held by actor[0] (for N s, in train()), in line: env[0] (for N s, in step())",
    )
    becomes(lambda: run.line("actor[0]"), "actor[0] has been running train() for N s")
    becomes(lambda: run.watcher.wait_graph().edges.get("env[0]"), {"actor[0]"})
    stopped, native = run.start("a.0", "sleep"), run.start("b.0", "native")
    os.kill(stopped, signal.SIGSTOP)
    silent = rf"b\[0\] does not answer: \w+ in native code that holds Python's lock \(state [SR]\), pid {native}\b"
    until(lambda: re.match(silent, run.line("b[0]")))
    until(lambda: f"  a[0] does not answer: stopped (state T), pid {stopped}" in run.watcher.wait_graph().describe())

    def stacks_are_seen() -> bool:
        found = run.watcher.stacks()
        native_frame = any(stack.frames and stack.frames[0].startswith("native (") for stack in found["b[0]"])
        own_name = any(stack.thread == "MainThread" for stack in found["actor[0]"])
        return native_frame and own_name and found["a[0]"] == [stacks.Stack(f"stopped (state T), pid {stopped}", ())]

    until(stacks_are_seen)
    os.kill(stopped, signal.SIGCONT)
    until(lambda: run.line("a[0]").startswith("a[0] has been running sleep()"))
    until(lambda: run.transport.controls._open["a.0"][0].unanswered == 0)
    file = stacks._memory_file(stopped)
    assert file is not None
    assert Path(file).read_text() == ""  # nobody sent it a signal


def test_a_stopped_process_is_not_asked_for_ever(run: Run) -> None:
    pid = run.start("a.0", "sleep")
    until(lambda: list(run.transport.controls.ask("activities", timeout=20.0)) == ["a.0"])
    os.kill(pid, signal.SIGSTOP)
    until(lambda: all(state(int(thread.name)) == "T" for thread in Path(f"/proc/{pid}/task").iterdir()))
    start = time.monotonic()
    for _ in range(5000):
        assert run.transport.controls.ask("activities", "x" * 100, timeout=0.0) == {}
    assert time.monotonic() - start < 20.0
    os.kill(pid, signal.SIGCONT)
    until(lambda: list(run.transport.controls.ask("activities", timeout=1.0)) == ["a.0"])


def test_a_stopped_process_is_named_and_given_up_while_a_silent_one_is_left_alone(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENT_S", 2.0)
    caplog.set_level(logging.INFO, WORKERS)
    stopped, native = run.start("a.0", "sleep"), run.start("b.0", "native")
    given_up: list[tuple[str, int]] = []
    warned: list[bool] = []
    waited: list[float] = []

    def give_up(host: str, pid: int, seconds: float) -> None:
        warned.append(any("SIGSTOP" in message for message in caplog.messages))
        waited.extend((seconds, time.monotonic() - start))
        given_up.append((host, pid))

    start = time.monotonic()
    watch = SilenceWatch(run.watcher.silent, give_up, grace_s=3.0, look_s=0.2)
    try:
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: any("SIGSTOP" in record.message for record in caplog.records))
        until(lambda: bool(given_up))
        until(lambda: any("has not answered for" in record.message for record in caplog.records))
        os.kill(stopped, signal.SIGCONT)
        until(lambda: any("answers again" in record.message for record in caplog.records))
    finally:
        watch.end()
    assert (given_up, warned) == ([("a.0", stopped)], [True])
    assert 3.0 <= waited[0] <= waited[1]
    said = {record.message: record for record in caplog.records}
    (warning,) = [record for message, record in said.items() if "SIGSTOP" in message]
    assert (warning.name, warning.levelno) == (f"{WORKERS}.a.0", logging.WARNING)
    assert f"`kill -CONT {stopped}` continues it; the run waits 3 s for it (cluster.stopped_grace_s)" in warning.message
    (info,) = [record for message, record in said.items() if "has not answered" in message]
    assert (info.name, info.levelno) == (f"{WORKERS}.b.0", logging.INFO)
    assert re.search(rf"in native code that holds Python's lock \(state [SR]\), pid {native}$", info.message)


def test_looks_that_fail_in_a_row_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    looks: list[str] = []

    def look() -> dict[str, tuple[int, str]]:
        looks.append("")
        if len(looks) == 2:
            return {}
        raise OSError("too many open files")

    watch = SilenceWatch(look, lambda *_: None, grace_s=3.0, look_s=0.01)
    until(lambda: len(looks) > 8)
    watch.end()
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert told == ["processes that are stopped are not noticed now: OSError: too many open files"]


def test_a_circle_of_messages_is_found(run: Run) -> None:
    run.start("x.0", "recv", "x")
    until(lambda: "waited" in run.line("x[0]"))
    graph = run.watcher.wait_graph()
    assert graph.cycles() == [("x[0]",)]
    assert "recv from x[0]" in graph.describe()


def test_while_a_run_starts_a_wait_is_told_soon(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.1)
    line = r"driver has waited \d+ s for actor\[0\] to start"
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.05)
    caplog.set_level(logging.INFO, LOG.name)
    for starting in (True, False):
        monkeypatch.setattr(heartbeat, "START_S", 600.0 if starting else 0.0)
        beating = Heartbeat(run.watcher.wait_graph, 300.0)
        with waits.blocking(Wait(DRIVER, "actor[0]", "it to start", peers=("actor[0]",))):
            if starting:
                until(lambda: any(re.fullmatch(line, message) for message in caplog.messages))
            else:
                time.sleep(0.5)
        beating.stop()
        assert bool(caplog.messages) == starting
        caplog.clear()


def test_what_takes_long_before_there_are_workers_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    with heartbeat.told("starting Ray", 0.05):
        until(lambda: caplog.messages == ["starting Ray"])
    before = set(threading.enumerate())
    with heartbeat.told("starting it again", 60.0):
        (timer,) = (thread for thread in set(threading.enumerate()) - before if isinstance(thread, threading.Timer))
    timer.join(30.0)
    assert not timer.is_alive(), "it may still speak"
    assert caplog.messages == ["starting Ray"]


def test_the_heartbeat_speaks_only_when_the_driver_waits_for_long_and_not_too_often(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.start("actor.0", "train")
    caplog.set_level(logging.INFO, LOG.name)
    beating = Heartbeat(run.watcher.wait_graph, 0.5)
    try:
        time.sleep(0.8)
        assert caplog.messages == []
        wait = Wait(DRIVER, "actor[0].train()", "it to return", peers=("actor[0]",))
        start = time.monotonic()
        number = waits.begin(wait)
        until(lambda: len(caplog.messages) >= 4)
        elapsed = time.monotonic() - start
        until(lambda: any(re.fullmatch(r"actor\[0\] has been running train\(\) for \d+ s", message) for message in caplog.messages))
        waits.end(number)
        assert elapsed >= 1.0
        assert re.sub(r"\d+ s", "N s", caplog.messages[0]) == "driver has waited N s for actor[0].train() to return"
    finally:
        beating.stop()
