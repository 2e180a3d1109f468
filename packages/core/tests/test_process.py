"""Child processes: what ends them, what they say, and how they are told to end."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.process import (
    ChildProcess,
    Connection,
    ConnectionLost,
    SharedMemory,
    exit_reason,
    free_port,
    is_running,
    log_ending,
    log_tail,
    own_cores,
)

SLEEPS = "import time; time.sleep(600)"
SOON_S = 60.0
"""Far above what anything here takes, for a machine that is busy."""
FAMILY = """
import os, signal, subprocess, sys, time
ignores = "ignores" in sys.argv
if ignores:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen(["sleep", "600"], start_new_session="alone" in sys.argv)
print(os.getpid(), grandchild.pid, flush=True)
if "ends" not in sys.argv:
    time.sleep(600)
"""
PARENT = """
import os, sys, threading, time
from pathlib import Path
from rlinf.core.process import ChildProcess
made = []
def start():
    made.append(ChildProcess([sys.executable, "-c", *sys.argv[3:]], log=Path(sys.argv[1]), grace_s=float(sys.argv[2])))
thread = threading.Thread(target=start)
thread.start()
thread.join()
print("started", flush=True)
sys.stdin.readline()
"""


def eventually(condition: Any) -> bool:
    deadline = time.monotonic() + SOON_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def pids_in(log: Path) -> list[int]:
    assert eventually(lambda: log.exists() and log.read_text().endswith("\n"))
    return [int(pid) for pid in log.read_text().split()]


def gone(pids: list[int]) -> bool:
    return eventually(lambda: not any(is_running(pid) for pid in pids))


def python(code: str, *arguments: str, **options: Any) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code, *arguments], **options)


@pytest.mark.parametrize("grace_s", ["0", "5"])
def test_a_child_does_not_outlive_a_killed_parent_but_does_outlive_a_thread(tmp_path: Path, grace_s: str) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", PARENT, str(log), grace_s, FAMILY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        family = pids_in(log)
        time.sleep(0.1)
        assert all(is_running(pid) for pid in family), "the thread that started it has ended"
        parent.kill()
    assert gone(family)


def test_a_fork_of_the_parent_does_not_keep_a_child_alive(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fork = "if os.fork() == 0:\n    time.sleep(600)\nos.kill(os.getpid(), 9)\n"
    command = [sys.executable, "-c", PARENT + fork, str(log), "0", FAMILY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdin is not None
        family = pids_in(log)
        parent.stdin.write("\n")
        parent.stdin.close()
        assert parent.wait(SOON_S) == -signal.SIGKILL
        assert gone(family)
        os.killpg(parent.pid, signal.SIGKILL)  # the fork


@pytest.mark.parametrize("how", ["", "ignores", "alone", "ignores alone"])
def test_a_stop_is_bounded_and_leaves_nobody(tmp_path: Path, how: str) -> None:
    log = tmp_path / "log"
    # One that hears what it is told has long to end, as a busy machine may not run it for a while.
    child = python(FAMILY, *how.split(), log=log, grace_s=0.5 if "ignores" in how else 45.0)
    family = pids_in(log)
    began = time.monotonic()
    child.stop()
    assert time.monotonic() - began < 40.0, "before what is given to those that hear"
    assert gone(family)
    assert child.returncode == (-signal.SIGKILL if "ignores" in how else -signal.SIGTERM)


def test_a_stopped_process_and_its_grandchildren_are_killed(tmp_path: Path) -> None:
    child = python(FAMILY, "ignores", log=tmp_path / "log")
    family = pids_in(tmp_path / "log")
    os.kill(family[0], signal.SIGSTOP)
    child.stop()
    assert gone(family)
    assert child.returncode == -signal.SIGKILL
    child.stop()


def test_what_an_ended_child_leaves_is_killed_and_no_zombie_stays(tmp_path: Path) -> None:
    child = python(FAMILY, "ends", log=tmp_path / "log")
    family = pids_in(tmp_path / "log")
    assert child.wait(SOON_S) == 0
    assert child.returncode == 0
    assert gone(family)
    assert eventually(lambda: not Path(f"/proc/{family[0]}").exists())


def test_a_child_that_is_forgotten_ends(tmp_path: Path) -> None:
    child = python(FAMILY, log=tmp_path / "log")
    family = pids_in(tmp_path / "log")
    del child
    assert gone(family)
    assert eventually(lambda: not Path(f"/proc/{family[0]}").exists())


def test_waiting() -> None:
    child = python("import sys; sys.stdin.readline()")
    assert child.wait(SOON_S) == 0, "standard input is empty"
    sleeping = python(SLEEPS)
    assert sleeping.wait(0.05) is None
    assert not sleeping.has_ended()
    assert is_running(sleeping.pid)
    threading.Timer(0.1, sleeping.stop).start()
    assert sleeping.wait() == -signal.SIGKILL
    assert sleeping.has_ended()
    assert not is_running(sleeping.pid)


def test_another_interpreter_and_a_given_environment(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.symlink_to(sys.executable)
    show = "import os, sys; print(sys.executable); print(sorted(set(os.environ) - {'LC_CTYPE'}), os.environ['A'])"
    command = [str(interpreter), "-ISE", "-c", show]
    child = ChildProcess(command, env={"A": "given"}, log=tmp_path / "log")
    assert child.wait(SOON_S) == 0
    assert (tmp_path / "log").read_text() == f"{interpreter}\n['A'] given\n"
    with pytest.raises(FileNotFoundError, match="no-such-python"):
        ChildProcess(["/no-such-python"])


@pytest.mark.parametrize("grace_s", [0.0, 1.0])
def test_the_cause_names_the_signal_and_the_last_lines(tmp_path: Path, grace_s: float) -> None:
    code = "import os, signal\nfor n in range(30): print('line', n, flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)"
    child = python(code, log=tmp_path / "log", grace_s=grace_s)
    child.wait(SOON_S)
    lines = "".join(f"\n  line {n}" for n in range(10, 30))
    assert child.cause() == f"was killed by SIGSEGV; the last lines of its log:{lines}\n"
    assert child.cause("its start").startswith("was killed by SIGSEGV during its start; ")
    quiet = python("raise SystemExit(3)", log=tmp_path / "quiet", grace_s=grace_s)
    quiet.wait(SOON_S)
    assert quiet.cause() == "exited with status 3; its log is empty"


def test_exits_in_words(tmp_path: Path) -> None:
    assert exit_reason(3) == "exited with status 3"
    assert exit_reason(-9) == "was killed by SIGKILL"
    assert exit_reason(-9, out_of_memory=True) == "was killed by SIGKILL: the kernel ran out of memory"
    assert exit_reason(-11, out_of_memory=True) == "was killed by SIGSEGV"
    assert exit_reason(-200) == "was killed by signal 200"
    assert exit_reason(None) == "has not ended"
    log = tmp_path / "log"
    assert log_tail(log) == ""
    assert log_ending(None) == ""
    log.write_bytes(b"a\xff\n" + b"b" * 50_000 + b"\nc\r\n")
    assert log_tail(log, 1) == "c"
    assert log_tail(log, 5, size=10) == "bbbbbb\nc"


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(ours, limit=1000), theirs


def test_messages_over_a_connection(pair: tuple[Connection, socket.socket]) -> None:
    ours, theirs = pair
    other = Connection(theirs)
    other.send({"a": [1, "é\ud800"]}, b"bytes")
    other.send({"b": None})
    assert ours.receive() == ({"a": [1, "é\ud800"]}, b"bytes")
    assert ours.received() == ({"b": None}, b"")
    assert ours.received() is None


def test_a_wait_for_a_message_has_an_end(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    assert connection.wait_for(0.0) is None
    both = b"".join(struct.pack("<IQ", 7, 0) + b'{"a":%d}' % number for number in (1, 2))
    other.sendall(both[:10])
    assert connection.wait_for(0.05) is None
    other.sendall(both[10:])
    # The second is read with the first, after which no poll of the socket sees it.
    assert [connection.wait_for(SOON_S), connection.wait_for(0.0)] == [({"a": 1}, b""), ({"a": 2}, b"")]
    other.close()
    with pytest.raises(ConnectionLost, match="the connection was closed"):
        connection.wait_for(SOON_S)


def test_a_wait_for_a_message_of_a_process_with_many_open_files(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        # `select.select` takes no descriptor from 1024 on.
        high = socket.socket(fileno=fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 1024))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    other.sendall(struct.pack("<IQ", 2, 0) + b"{}")
    many = Connection(high)
    assert many.wait_for(SOON_S) == ({}, b"")
    many.close()


def test_open_files_over_a_connection(pair: tuple[Connection, socket.socket]) -> None:
    ours, theirs = pair
    other = Connection(theirs)
    reading, writing = os.pipe()
    ours.send_descriptors([reading, writing])
    ours.send({"n": 1})
    got = other.receive_descriptors(2)
    assert other.wait() == ({"n": 1}, b"")
    assert not {reading, writing} & set(got)
    assert not any(os.get_inheritable(file) for file in got)
    os.write(got[1], b"x")
    assert os.read(reading, 2) == b"x"
    ours.send_descriptors(got[:1])
    with pytest.raises(ConnectionLost, match="expected 2 open files, found 1"):
        other.receive_descriptors(2)
    ours.close()
    with pytest.raises(ConnectionLost, match="was closed"):
        other.receive_descriptors(1)
    for file in (reading, writing, *got):
        os.close(file)


def test_a_message_that_is_cut_in_the_middle(pair: tuple[Connection, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(struct.pack("<IQ", 10, 0) + b"{}")
    assert ours.receive() is None
    theirs.close()
    with pytest.raises(ConnectionLost, match="in the middle of a message"):
        ours.receive()


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (struct.pack("<IQ", 2, 1999) + b"{}", r"a message of 2001 bytes, at most 1000"),
        (struct.pack("<IQ", 2, 0) + b"{!", r"a message that is no JSON"),
        (struct.pack("<IQ", 1, 0) + b"3", r"a message that is no JSON object"),
    ],
)
def test_what_is_no_message(pair: tuple[Connection, socket.socket], sent: bytes, problem: str) -> None:
    ours, theirs = pair
    theirs.sendall(sent)
    with pytest.raises(ConnectionLost, match=problem):
        ours.receive()


ECHO = """
import sys
from rlinf.core.process import Connection, ConnectionLost, SharedMemory
connection = Connection.to_parent()
print("what it prints does not disturb")
assert sys.stdin.read() == ""
memory = SharedMemory(int(sys.argv[1])).map(10)
while True:
    try:
        fields, payload = connection.wait()
    except ConnectionLost:
        break
    memory[0:3] = b"abc"
    connection.send({**fields, "heard": len(payload)}, payload)
"""


def test_what_nobody_takes_is_lost_in_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ConnectionLost):
        Connection(ours, send_s=0.2).send({}, bytes(1 << 24))


def test_a_child_answers_and_shares_memory_and_ends_when_the_connection_does(tmp_path: Path) -> None:
    memory = SharedMemory()
    child = python(ECHO, str(memory.fd), connect=True, pass_fds=(memory.fd,), log=tmp_path / "log")
    child.connection.send({"n": 1}, b"x" * 1_000_000)
    fields, payload = child.connection.wait()
    assert (fields, len(payload)) == ({"n": 1, "heard": 1_000_000}, 1_000_000)
    seen = memory.map(10)
    memory.close()
    assert seen[:4] == b"abc\0", "a mapping outlives the descriptor"
    child.connection.close()
    assert child.wait(SOON_S) == 0, log_tail(tmp_path / "log")
    with pytest.raises(ConnectionLost):
        child.connection.send({})


def test_a_free_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port("127.0.0.1")))
    assert 1024 <= free_port(max_port_num=2000) <= 2000
    with socket.socket() as taken:
        taken.bind(("", 0))
        assert free_port() != taken.getsockname()[1]
    with pytest.raises(ConfigError, match=r"no port from 1024 to 1000 is free\. Raise max_port_num"):
        free_port(max_port_num=1000)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process can't be kept from cores")
def test_cores_that_are_forbidden_do_not_count() -> None:
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{one}}}); from rlinf.core.process import own_cores; print(own_cores())"
    assert own_cores() == len(os.sched_getaffinity(0))
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "1\n"


def test_the_core_does_not_load_it() -> None:
    code = "import sys, rlinf.core; sys.exit('rlinf.core.process' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
