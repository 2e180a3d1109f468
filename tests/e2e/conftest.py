"""Runs the apps as a user would: in a process of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

# A background job ignores Ctrl-C, and the programs that it starts do, too; here some are interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads that wait for each other sleep at once: here, tests share their cores. torch is imported after this.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
sys.path.append(str(HERE))


@dataclass
class App:
    """One of the apps with a log folder of its own."""

    logs: Path

    def command(self, script: str, *args: str) -> list[str]:
        return [sys.executable, str(ROOT / "apps/embodied" / script), *args]

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "200"}

    def train(self, *overrides: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        command = self.command("train.py", f"runner.logger.log_path={self.logs}", *overrides)
        return self._run(command, timeout)

    def train_on_other_device(self, *overrides: str, timeout: float = 500) -> subprocess.CompletedProcess[str]:
        """Training with tensors on a device other than the CPU; see `other_device`."""
        python, *command = self.command("train.py", f"runner.logger.log_path={self.logs}", *overrides)
        return self._run([python, str(HERE / "other_device.py"), *command], timeout)

    def train_here(self, *overrides: str) -> tuple[int, str]:
        """The app in this process, for what starts no other: its exit code and what it says."""
        return self.here("train.py", f"runner.logger.log_path={self.logs}", *overrides)

    def run(self, recipe: str, *overrides: str) -> dict[str, Any]:
        """A whole run of a recipe in this process; its summary."""
        code, said = self.train_here("--config-name", recipe, *overrides)
        assert code == 0, said
        return json.loads((self.logs / recipe / "summary.json").read_text())

    def evaluate_here(self, *args: str) -> tuple[int, str]:
        """An evaluation in this process, which starts no other: its exit code and what it says."""
        return self.here("eval.py", *args)

    def here(self, script: str, *args: str) -> tuple[int, str]:
        """A script of the app in this process: its exit code and what it says."""
        argv = self.command(script, *args)[1:]
        said = io.StringIO()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with (
                contextlib.redirect_stderr(said),
                contextlib.redirect_stdout(said),
                mock.patch.object(sys, "argv", argv),
                pytest.raises(SystemExit) as ended,
            ):
                runpy.run_path(argv[0], run_name="__main__")
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return int(ended.value.code or 0), said.getvalue()

    def evaluate(self, *args: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return self._run(self.command("eval.py", *args), timeout)

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        command = self.command("train.py", f"runner.logger.log_path={self.logs}", *overrides)
        return subprocess.Popen(
            command, env=self.environment(), cwd=self.logs, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def metrics(self, experiment: str) -> list[dict[str, Any]]:
        path = self.logs / experiment / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def grad_norm(self, experiment: str) -> float:
        """The largest of a run, of whichever part of it."""
        return max(value for row in self.metrics(experiment) for key, value in row.items() if key.endswith("grad_norm"))

    def _run(self, command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment(),
            cwd=self.logs,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small networks are an order of magnitude slower when threads compete for the cores of a busy machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path)


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[None]:
    """A Ray that this process has started: the runs in it join it, and pay for no start of their own."""
    from rlinf.scheduler.backends.ray._ray import Session

    session = Session(None, "tests")
    yield
    session.end()


@contextlib.contextmanager
def once(condition: Callable[[], bool], action: Callable[[], None]) -> Generator[None]:
    """Does something to the run inside as soon as a condition holds, in another thread; not if the run ends before.

    An error of either interrupts the run, which would go on for ever, and is raised.
    """
    over = threading.Event()

    def watch() -> None:
        try:
            while not condition():
                if over.wait(0.1):
                    return
            action()
        except BaseException:
            if not over.is_set():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            raise

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(watch)
        try:
            yield
        except KeyboardInterrupt:
            if not future.done():
                raise
        finally:
            over.set()
        future.result()


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Selects the recipe `tiny`."""
    return ["--config-dir", str(HERE / "config"), "--config-name", "tiny"]


@pytest.fixture(scope="session")
def faulty() -> list[str]:
    """Selects the recipe `faulty`, which runs until something ends it."""
    return ["--config-dir", str(HERE / "config"), "--config-name", "faulty"]


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not after {timeout} s")
        time.sleep(0.1)


def descendants(pid: int) -> set[int]:
    """All processes below `pid`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def alive(pids: set[int]) -> set[int]:
    """Those of the processes that still run (a zombie does not)."""
    running: set[int] = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.add(pid)
    return running


def works(pid: int) -> bool:
    """Whether a process is a worker's, and not one of those that Ray keeps for others."""
    try:
        return b"ray::WorkerProcess" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture
def processes() -> Any:
    """`descendants`, `alive`, `works`, `wait_until` and `once`, for tests that end processes."""

    class Processes:
        pass

    tools: Any = Processes()
    tools.descendants, tools.alive, tools.works = descendants, alive, works
    tools.wait_until, tools.once = wait_until, once
    return tools
