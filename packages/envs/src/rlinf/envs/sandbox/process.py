"""`ProcessSandbox`: programs in Python, in processes of this machine that are confined as far as it allows."""

from __future__ import annotations

import os
import queue
import shutil
import site
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Self

from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError, RLinfError, below
from rlinf.core.process import connection, own_cores
from rlinf.core.sandbox import Execution, ExecutionResult
from rlinf.envs.sandbox.levels import LEVELS, SandboxLevel
from rlinf.envs.sandbox.worker import Launch, Refused, SandboxWorker, own_user

_SERVER: Final = str(Path(__file__).with_name("_server.py"))
_LIBRARIES: Final = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
"""Where the modules of an interpreter find shared libraries."""


@dataclass(frozen=True, slots=True)
class ProcessSandbox:
    """Programs in Python, in processes of this machine, by name: `process`. It needs Linux.

    The interpreter is started once for each worker and forked for each program, which gets a scratch folder of its own. Of the
    machine it has what its level leaves it.
    """

    level: SandboxLevel = "namespaces"
    """The least that programs must be confined; a machine that does not allow it is refused. See `rlinf sandbox`."""
    workers: int | None = None
    """Programs at one time; null for one for each processor, eight at most."""
    scratch_mb: int = 16
    """MiB of a program's scratch folder, where the level is `namespaces`; of each file in it, below."""
    site_packages: bool = False
    """Whether programs can import what is installed for this interpreter, and so read it."""
    preload: tuple[str, ...] = ()
    """Modules that are imported before programs start, such as `numpy`, with `site_packages`."""
    namespaces_by: Literal["auto", "unshare", "bubblewrap"] = "auto"
    """Who makes namespaces: these processes themselves, or the program bubblewrap, which starts an interpreter for each program;
    `auto` tries them in this order."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ConfigError("level", f"expected one of {', '.join(LEVELS)}, found {self.level!r}")
        expect_range("workers", self.workers, 1, 4096)
        expect_range("scratch_mb", self.scratch_mb, 1, 2**20)
        if self.preload and not self.site_packages:
            raise ConfigError("preload", f"{', '.join(self.preload)}: without installed packages", "Set site_packages to true.")

    @property
    def languages(self) -> tuple[str, ...]:
        """Python alone."""
        return ("python",)

    def check(self, place: str) -> None:
        """Refuses a machine that does not allow the level, by trying it.

        Raises:
            ConfigError: what is not allowed, and which level is.
        """
        try:
            self.build().close()
        except ConfigError as error:
            raise below(place, error) from error

    def build(self) -> RunningSandbox:
        """Starts the first worker, and runs nothing in it to see that it can; the others start when there is work for them.

        Raises:
            ConfigError: this machine does not allow the level; the message says why, and which one it allows.
        """
        try:
            launch, worker = self._first_worker()
        except Refused as error:
            # From the strongest down, and lazily, as each that is tried starts a process.
            lower = (level for level in reversed(LEVELS[: LEVELS.index(self.level)]) if not replace(self, level=level).refusal())
            best = next(lower, None)
            remedy = f"It allows '{best}', which keeps less from a program." if best else "It allows no lower level either."
            problem = f"this machine does not allow '{self.level}': {error}"
            raise ConfigError("level", problem, f"{remedy} See `rlinf sandbox`.") from error
        return RunningSandbox(self, launch, worker)

    def refusal(self) -> str:
        """Why this machine does not allow the level; "" if it does."""
        try:
            self._first_worker()[1].close()
        except Refused as error:
            return str(error)
        return ""

    def _first_worker(self) -> tuple[Launch, SandboxWorker]:
        """How workers are started, and the first of them.

        Raises:
            Refused: the machine does not allow it.
        """
        if sys.platform != "linux":
            raise Refused("it needs Linux")
        if os.uname().machine not in ("x86_64", "aarch64"):
            raise Refused(f"there is no filter of system calls for {os.uname().machine}")
        refusals: list[str] = []
        for bubblewrap in self._makers():
            try:
                launch = self._launch(bubblewrap=bubblewrap)
                return launch, _proven(launch)
            except Refused as error:
                refusals.append(f"bubblewrap: {error}" if bubblewrap else str(error))
        raise Refused("; ".join(refusals))

    def _makers(self) -> list[bool]:
        """Whether by bubblewrap, in the order in which it is tried."""
        if self.level != "namespaces" or self.namespaces_by == "unshare":
            return [False]
        return [True] if self.namespaces_by == "bubblewrap" else [False, True]

    def _launch(self, *, bubblewrap: bool) -> Launch:
        packages = [*site.getsitepackages()] if self.site_packages else []
        standard = sorted({f"{prefix}/lib" for prefix in (sys.base_prefix, sys.base_exec_prefix)})
        readable = [path for path in (*_LIBRARIES, *standard, *packages) if Path(path).is_dir()]
        # `-I` hides PYTHONPATH and the user's own packages, `-S` also those that are installed for this interpreter.
        flags = ("-I",) if self.site_packages else ("-I", "-S")
        command = (_interpreter(self.site_packages), *flags, _SERVER)
        if bubblewrap:
            command = (*_bubblewrap([*readable, *_environment(self.site_packages)], self.scratch_mb), *command)
        setting = {
            "level": self.level,
            "bubblewrap": bubblewrap,
            "readable": readable,
            "scratch_mb": self.scratch_mb,
            "preload": list(self.preload),
        }
        # Only root can run programs as somebody else, and only where its namespace knows other users.
        return Launch(command=command, setting=setting, own_users=os.geteuid() == 0 and own_user(0) != 0)


class RunningSandbox:
    """Workers that run programs; a context manager that ends them, and they end with this process at the latest.

    Args:
        config: what it was built from.
        launch: how workers are started.
        first: the first of them.
    """

    def __init__(self, config: ProcessSandbox, launch: Launch, first: SandboxWorker) -> None:
        self.level: Final = config.level
        """How far its programs are confined."""
        self._launch = launch
        self._workers = [first]
        self._idle: queue.SimpleQueue[SandboxWorker | int] = queue.SimpleQueue()
        self._idle.put(first)
        count = config.workers or min(own_cores(), 8)
        # A number stands for a worker that nobody has needed yet.
        for number in range(1, count):
            self._idle.put(number)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="sandbox")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, executions: Sequence[Execution]) -> list[ExecutionResult]:
        """What became of each program, in order.

        Raises:
            ConfigError: a program asks for several processes where only `namespaces` could bound them.
            RLinfError: a worker failed.
        """
        if self.level != "namespaces" and any(execution.limits.processes > 1 for execution in executions):
            found = f"expected 1 with level '{self.level}', found {max(execution.limits.processes for execution in executions)}"
            raise ConfigError("limits.processes", found, "Ask for level 'namespaces', which can end them all.")
        return list(self._threads.map(self._execute, executions))

    def close(self) -> None:
        """Waits for programs that run, and ends the workers; more than once is fine."""
        self._threads.shutdown(cancel_futures=True)
        while self._workers:
            self._workers.pop().close()

    def _execute(self, execution: Execution) -> ExecutionResult:
        worker = self._idle.get()  # at once: there are as many threads as workers
        try:
            if isinstance(worker, int):
                worker = self._new(worker)
            return worker.execute(execution)
        finally:
            # Where a worker could not be started this is still its number, with which the next program tries again.
            self._idle.put(worker)

    def _new(self, number: int) -> SandboxWorker:
        try:
            worker = SandboxWorker(self._launch, number)
        except Refused as error:
            raise RLinfError("sandbox", f"worker {number} could not be started: {error}") from error
        self._workers.append(worker)
        return worker


def _proven(launch: Launch) -> SandboxWorker:
    """A worker that has run a program, so that every step of confining one has been tried.

    Raises:
        Refused: a step is not allowed.
    """
    worker = SandboxWorker(launch, 0)
    try:
        result = worker.execute(Execution(program="import os"))
    except RLinfError as error:
        worker.close()
        raise Refused(error.problem) from error
    if not result.ok:
        worker.close()
        raise Refused(f"a program that does nothing ended with '{result.reason}': {result.stderr[-500:].strip()}")
    return worker


def _interpreter(site_packages: bool) -> str:
    """This one; without its packages, the one that its virtual environment was made from."""
    return sys.executable if site_packages else getattr(sys, "_base_executable", sys.executable)


def _environment(site_packages: bool) -> list[str]:
    """What makes the interpreter that of its virtual environment, beside the packages: itself, and the file by which it knows."""
    known = Path(sys.prefix) / "pyvenv.cfg"
    return [_interpreter(True), str(known)] if site_packages and known.is_file() else []


def _bubblewrap(readable: Sequence[str], scratch_mb: int) -> tuple[str, ...]:
    """The command line that runs another command where there is nothing but what an interpreter needs.

    Raises:
        Refused: it is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise Refused("the program 'bwrap' is not installed")
    words = [program, "--unshare-all", "--die-with-parent", "--new-session"]
    own = [_interpreter(False), str(Path(_SERVER).parent), str(Path(connection.__file__).parent)]
    for path in (*readable, *own):
        words += ["--ro-bind", path, path]
    for device in ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"):
        words += ["--dev-bind", device, device]
    words += ["--perms", "0700", "--size", str(scratch_mb << 20), "--tmpfs", "/scratch"]
    # Where something below /tmp is shown, bubblewrap makes /tmp a folder, which can't be a link as well.
    if not any(path.startswith("/tmp/") for path in (*readable, *own)):  # noqa: S108
        words += ["--symlink", "/scratch", "/tmp"]  # noqa: S108
    # In this order: only when everything has its place can the root be closed to writing.
    return (*words, "--remount-ro", "/", "--chdir", "/scratch", "--")
