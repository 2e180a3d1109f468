"""Device locks over processes: what of theirs is released when a connection or a process ends."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import until

from rlinf.core.errors import DeadlineExceeded
from rlinf.scheduler.transport.encoding import encode
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo, connect
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport, SocketTransport
from rlinf.scheduler.transport.sockets.wire import FrameReader, send_frame
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.transport.waits import Wait, calling
from rlinf.scheduler.workers.device_lock import Claim, DeviceLock

LONG_S = 60.0


def wait(owner: str, timeout: float | None = None) -> Wait:
    return Wait(owner, "device", "the lock", timeout)


@contextmanager
def transports(tmp_path: Path, *names: str) -> Iterator[tuple[DriverTransport, list[SocketTransport]]]:
    """A driver and some processes, all in this one."""
    place = Location("here", str(tmp_path / DRIVER))
    run_info = RunInfo(run=secrets.token_hex(4), driver=place, authkey=b"k", timeout_s=LONG_S)
    driver = DriverTransport(run_info, on_lost=lambda *_: None, on_log=lambda *_: None)
    others = [SocketTransport(run_info, name, Location("here", str(tmp_path / name))) for name in names]
    try:
        yield driver, others
    finally:
        for transport in (driver, *others):
            transport.stop()


def test_a_claim_whose_answer_does_not_arrive_is_released(tmp_path: Path) -> None:
    with transports(tmp_path, "w.0") as (driver, (worker,)):
        first, second = Claim("w[0]", (0,)), Claim("w[1]", (0,))
        worker.acquire(first, wait("w[0]"))
        run_info = worker.connections._run_info
        sock = connect(run_info.driver, "here", run_info.authkey, ("requests", "w.1", os.getpid(), None), LONG_S)
        send_frame(sock, ("ask", 1, "lock"), encode((second, None)))
        until(lambda: second in driver.locks._tickets)
        sock.close()  # while it waits in line
        third = Claim("w[0]", (0,))
        worker.release(first)
        worker.acquire(third, wait("w[0]", LONG_S))
        worker.release(third)
        sock = connect(run_info.driver, "here", run_info.authkey, ("requests", "w.1", os.getpid(), None), LONG_S)
        fourth = Claim("w[1]", (0,))
        send_frame(sock, ("ask", 1, "lock"), encode((fourth, None)))
        assert FrameReader(sock).read()[0] == (1, None, True)
        assert fourth in driver.locks._tickets
        sock.close()  # between the grant and the receipt
        until(lambda: not driver.locks._tickets)


def test_a_deadline_across_processes_says_who_holds(tmp_path: Path) -> None:
    with transports(tmp_path, "w.0", "w.1") as (_, (one, two)):
        held = DeviceLock(one, "w[0]", [0])
        with calling("w[0]", "train"):
            held.acquire()
        with DeviceLock(two, "w[1]", [1]):
            pass  # connects, which may take longer than the wait below
        message = r"device 0: w\[1\] waited 0.2 s .* is held by w\[0\] \(for \d+ s, in train\(\)\)\. Pass a longer timeout"
        with pytest.raises(DeadlineExceeded, match=message):
            DeviceLock(two, "w[1]", [0]).acquire(timeout=0.2)
        held.release()
        with DeviceLock(two, "w[1]", [0]):
            pass


PROCESS = """
import sys, time
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport
from rlinf.scheduler.workers.device_lock import DeviceLock
from rlinf.scheduler.transport.sockets.locations import RunInfo, Location

path, run, name, devices = sys.argv[1:]
meeting = RunInfo(run=run, driver=Location("here", path + "/driver"), authkey=b"k", timeout_s=60.0)
endpoint = SocketTransport(meeting, name + ".0", Location("here", path + "/" + name))
endpoint.connect_control(lambda: None)
with DeviceLock(endpoint, name + "[0]", [int(device) for device in devices.split(",")]):
    print("in", flush=True)
    time.sleep(60.0)
"""


def test_a_killed_process_holds_nothing_and_stands_in_no_line(tmp_path: Path) -> None:
    def start(driver: DriverTransport, name: str, devices: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROCESS, str(tmp_path), driver.run, name, devices]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def owners() -> list[str]:
        return [ticket.claim.owner for ticket in list(driver.locks._tickets.values())]

    with transports(tmp_path) as (driver, _):
        processes = [start(driver, "a", "0,1")]
        assert processes[0].stdout is not None
        assert processes[0].stdout.readline() == "in\n"
        for name in ("b", "c"):
            processes.append(start(driver, name, "1"))
            until(lambda name=name: f"{name}[0]" in owners())
        processes[1].kill()  # while it waits in line
        until(lambda: owners() == ["a[0]", "c[0]"])
        processes[0].kill()  # while it holds, and another waits
        assert processes[2].stdout is not None
        assert processes[2].stdout.readline() == "in\n"
        assert owners() == ["c[0]"]
        processes[2].send_signal(signal.SIGKILL)
        until(lambda: owners() == [])
        for process in processes:
            process.wait(LONG_S)
