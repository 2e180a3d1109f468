"""Ray's own processes: who they are, and the news that one has ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

from rlinf.core.process import exit_reason

AGENTS = {"ray::RuntimeEnvAgent": "runtime_env_agent", "ray::DashboardAgent": "dashboard_agent"}
"""By the beginning of what the kernel calls them, which is cut to 15 characters."""
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37
SERVERS = ("gcs_server", "raylet")
_REASON = re.compile(r'reason_message: "(.*)"')
_FATAL = re.compile(r"^\[[^\]]* [CEF] \d+ \d+\] \(raylet\) \S+ (.*)$", re.MULTILINE)
_FAILED = re.compile(r"(\w+) failed and raylet fate-shares")
LOOK_S = 0.1
FOLLOW_S = 5.0
"""How long the raylet may take to follow its agents, which it ends first when it gives up."""
PATIENCE_S = 2.0
"""How long Ray's processes may take to end after a shutdown."""


def own_services() -> dict[int, str]:
    """Ray's processes that this one has started and can't do without, by process id.

    An agent that is a child of this process has lost its raylet, in an attempt to start Ray that failed: it ends soon.
    """
    found: dict[int, str] = {}
    for child in children(os.getpid()):
        name = _name(child)
        if name in SERVERS:
            found[child] = name
        if name == "raylet":
            found |= {agent: _agent(_name(agent)) for agent in children(child)}
    return found


class Shutdown:
    """The end of processes that should end by themselves, and may not.

    Args:
        pids: theirs.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._open: list[int] = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                # Unlike its number, it never comes to mean another process.
                self._open.append(os.pidfd_open(pid))

    def broken(self) -> bool:
        """Kills all if one has ended before its time, as the others would wait for it; whether one has."""
        ended = _readable(self._open, 0.0)
        if ended:
            self._kill()
        return bool(ended)

    def end(self, seconds: float = PATIENCE_S) -> None:
        """Kills those that still run after some seconds."""
        deadline = time.monotonic() + seconds
        while self._open and (left := deadline - time.monotonic()) > 0:
            for descriptor in _readable(self._open, left):
                self._open.remove(descriptor)
                os.close(descriptor)
        self._kill()
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def _kill(self) -> None:
        for descriptor in self._open:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)


class Services:
    """Watches processes.

    Args:
        names: by process id.
        on_end: called with the name, the id and the ending, in words, of the first that ends by itself.
        logs: the folder with Ray's logs; None if nobody knows.
    """

    def __init__(self, names: dict[int, str], on_end: Callable[[str, int, str], None], logs: Path | None = None) -> None:
        self._on_end = on_end
        self._logs = logs
        self._ends, self._wake = os.pipe()
        self._watched: dict[int, tuple[str, int]] = {}
        for pid, name in names.items():
            try:
                self._watched[os.pidfd_open(pid)] = (name, pid)
            except ProcessLookupError:
                continue
        self._lock = threading.RLock()
        self._told = False
        self._thread = threading.Thread(target=self._watch, name="rlinf-services", daemon=True)
        self._thread.start()

    def check(self) -> bool:
        """Whether one has ended; tells so at once if it has."""
        with self._lock:  # who tells may still be looking for the cause
            if self._told or self._wake < 0:
                return self._told
            return self._tell(_readable(self._watched, 0.0))

    def end(self) -> None:
        """Watches no more."""
        wake, self._wake = self._wake, -1
        if wake >= 0:
            # The thread polls the other end.
            os.close(wake)
            if threading.current_thread() is not self._thread:
                self._thread.join(1.0)

    def _watch(self) -> None:
        ended = _readable([*self._watched, self._ends], None)
        if self._ends not in ended:
            self._tell(ended)
            # `check` may still poll the descriptors: they are closed at the end only.
            _readable([self._ends], None)
        for descriptor in [*self._watched, self._ends]:
            os.close(descriptor)

    def _tell(self, ended: list[int]) -> bool:
        with self._lock:
            if ended and not self._told:
                self._told = True
                cause, why = self._cause(ended)
                self._on_end(*self._watched[cause], f"{_how(cause)}{why and f' ({why})'}")
        return self._told

    def _cause(self, ended: list[int]) -> tuple[int, str]:
        """Who ended first, and why if it says so.

        When the raylet gives up, it ends its agents first, which are then seen to end; when an agent fails, the raylet ends itself.
        """
        servers = [descriptor for descriptor, (name, _) in self._watched.items() if name in SERVERS]
        gone = [descriptor for descriptor in ended if descriptor in servers]
        gone = gone or (_readable(servers, FOLLOW_S) if servers else [])
        why = "" if self._logs is None else raylet_reason(self._logs)
        failed = _FAILED.match(why)
        agents = [descriptor for descriptor, (name, _) in self._watched.items() if failed and name == failed[1]]
        first = (agents or gone or ended)[0]
        return first, why if self._watched[first][0] == "raylet" else ""


def raylet_reason(logs: Path) -> str:
    """Why the raylet has ended, as its log says; "" if it does not."""
    text = ""
    for name in ("raylet.err", "raylet.out"):
        with contextlib.suppress(OSError):
            text += (logs / name).read_text(encoding="utf-8", errors="replace")
    reasons = _REASON.findall(text) or _FATAL.findall(text)
    return reasons[-1].strip().rstrip(".") if reasons else ""


class Startup:
    """Watches the servers of a Ray that is being started here. If one dies, Ray may wait for it in C++ and then end this process.

    Args:
        on_end: called, instead of that, with its name, process id and ending, in words; does not return.
    """

    def __init__(self, on_end: Callable[[str, int, str], None]) -> None:
        self._on_end = on_end
        self._before = set(children(os.getpid()))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rlinf-startup", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        # It looks at `_done` this often; what it follows beyond that ends with this process.
        self._thread.join(timeout=10 * LOOK_S)

    def _watch(self) -> None:
        watched: dict[int, tuple[str, int]] = {}
        with contextlib.ExitStack() as descriptors:
            while not self._done.wait(LOOK_S):
                for descriptor, server in self._started_since({pid for _, pid in watched.values()}):
                    descriptors.callback(os.close, descriptor)
                    watched[descriptor] = server
                for ended in _readable(watched, 0.0):
                    if not self._done.wait(PATIENCE_S):  # Ray may say so itself
                        self._on_end(*watched[ended], _how(ended))
                    return

    def _started_since(self, known: set[int]) -> Generator[tuple[int, tuple[str, int]]]:
        """Servers that are not known yet: a new descriptor of each, its name and process id."""
        for pid in set(children(os.getpid())) - self._before - known:
            with contextlib.suppress(ProcessLookupError):
                if (name := _name(pid)) in SERVERS:
                    yield os.pidfd_open(pid), (name, pid)


@contextlib.contextmanager
def adopting() -> Generator[None]:
    """Orphans of this process's children become its own children inside, so that agents without a raylet can be found."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def children(pid: int) -> list[int]:
    """The processes that a process started, in any of its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended since hides none of the others' children
                found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _readable(descriptors: Iterable[int], seconds: float | None) -> list[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)]


def _how(descriptor: int) -> str:
    """How a process ended, if it is a child of this one, which alone can know."""
    try:
        # WNOWAIT leaves the status to whoever started the process.
        status = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return "it ended"
    if status is None:
        return "it ended"
    return f"it {exit_reason(status.si_status if status.si_code == os.CLD_EXITED else -status.si_status)}"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "(ended)"


def _agent(name: str) -> str:
    return next((known for full, known in AGENTS.items() if full.startswith(name)), name)
