"""Processes that play `b[0]` and die at moments of a transfer: a parent forks one for each role that it is told."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from waiting import all_dead

from rlinf.scheduler.transport import _process_groups
from rlinf.scheduler.transport.p2p import PeerMessenger
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport

MANY = 1 << 20


class Peers:
    """Forks processes that play b[0]; the one before is killed."""

    def __init__(self, office: Any) -> None:
        self.office = office
        what = pickle.dumps((office.run_info, office.folder)).hex()
        command = [sys.executable, __file__, what]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = 0

    def line(self) -> int:
        while (line := self.process.stdout.readline()).startswith("[Gloo]"):
            pass  # older torch says there who is connected
        return int(line)

    def play(self, role: str) -> None:
        self.process.stdin.write(f"{role}\n")
        self.process.stdin.flush()
        self.pid = self.line()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert all_dead([self.pid])  # before that, one of its connections may take a message still
        self.gone()

    def gone(self) -> None:
        """Waits until the driver knows that b[0] is gone."""
        deadline = time.monotonic() + 60.0
        while "b.0" in self.office.driver.directory._places and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "b.0" not in self.office.driver.directory._places

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


def main(run_info: RunInfo, folder: Path) -> None:
    import torch  # once for all

    assert torch.distributed.is_available()
    for line in sys.stdin:
        role = line.strip()
        pid = os.fork()
        if pid == 0:
            live(run_info, folder, role)
            sys.exit(0)
        print(pid, flush=True)
        if role.startswith("leaves"):
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def live(run_info: RunInfo, folder: Path, role: str) -> None:
    import torch

    transport = SocketTransport(run_info, "b.0", Location("near", str(folder / "b.0"), ("127.0.0.1", 0)))
    transport.server.start()
    transport.connect_control(lambda: os._exit(2))
    b = PeerMessenger(transport, "b.0", lambda: {"a": 1, "b": 1}, 60.0)
    pair: Any = _process_groups._Pair
    if role == "dies":
        pair.send = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    elif role == "stops":
        pair.send = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    elif role == "dies half way":
        finish = pair._finish

        def then_die(*work: Any) -> None:
            finish(*work)
            os.kill(os.getpid(), signal.SIGKILL)

        pair._finish = then_die
    if role != "takes nothing":
        b.send([torch.ones(MANY), torch.ones(MANY)], "a", 0)
    if role.startswith("leaves"):
        assert b.recv("a", 0, tag="answer").sum() == MANY
        if role != "leaves":
            finish, amid = pair._finish, threading.Event()
            pair._finish = lambda *work: (amid.set(), finish(*work))
            b.send("so far", "a", 0)
            threading.Thread(target=lambda: b.recv("a", 0), daemon=True).start()
            assert amid.wait(60.0)
            time.sleep(0.2)
        return
    time.sleep(600.0)


if __name__ == "__main__":
    main(*pickle.loads(bytes.fromhex(sys.argv[1])))
