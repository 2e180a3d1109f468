"""The process of an environment of verifiers, as the process that trains sees it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.process import ChildProcess, ConnectionLost, connection
from rlinf.core.process.shared import Shared
from rlinf.envs.remote.launch import variables_for

_PROGRAM: Final = str(Path(__file__).with_name("_program.py"))


@dataclass(frozen=True, slots=True)
class Launch:
    """What a process is started with."""

    env: str
    """The environment's configuration in JSON."""
    tasks: int
    """So many of its tasks are known."""
    python: str | None
    """An interpreter that has verifiers; None for this one."""
    paths: tuple[str, ...]
    """Folders to import from."""
    start_s: float
    """Seconds within which it has to be ready."""

    def started(self, log: Path) -> ChildProcess:
        """A new process.

        Raises:
            ConfigError: the interpreter can't be started.
        """
        # This interpreter may find verifiers by PYTHONPATH; another one would find our packages by it.
        inherited = [] if self.python or "PYTHONPATH" not in os.environ else [os.environ["PYTHONPATH"]]
        try:
            command = [self.python or sys.executable, "-P", _PROGRAM, connection.__file__]
            return ChildProcess(command, env=variables_for([*self.paths, *inherited]), log=log, connect=True)
        except OSError as error:
            raise ConfigError("python", f"'{self.python}' can't be started ({error})", "Give the path of its `python`.") from error


@lru_cache(maxsize=8)
def listed(launch: Launch) -> Sequence[Mapping[str, Any]]:
    """The tasks, each with `key` and `data`, as a process that ends thereafter gives them.

    Raises:
        ConfigError: there is no such environment, or it refuses its configuration.
    """
    with _Process(launch) as process:
        return process.first({"tasks": launch.tasks})["tasks"]


class _Process:
    """One process and its log."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._folder = Path(tempfile.mkdtemp(prefix="rlinf-verifiers-"))
        # Unlike `__del__` this also runs when the interpreter ends.
        self._clear = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.child = launch.started(self._folder / "log")

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def first(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to the first request, with which it says that it is ready.

        Raises:
            ConfigError: it refuses, ends, or is not ready in time.
        """
        link = self.child.connection
        try:
            link.send({**request, "env": json.loads(self._launch.env)})
            message = link.wait_for(self._launch.start_s)
        except ConnectionLost:
            self.child.wait(1.0)
            cause = self.child.cause("its start")
            raise ConfigError("env", f"the process of verifiers {cause}", "Is verifiers installed in data.python?") from None
        if message is None:
            found = f"the process of verifiers is not ready after {self._launch.start_s:g} s"
            raise ConfigError("env", found, "Raise data.start_s.")
        answer, _ = message
        if "error" in answer:
            raise ConfigError("env", f"verifiers refuses it: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends it, and all that it has started."""
        self.child.kill()
        self._clear()


class Service:
    """A process that plays, begun anew where it has ended; any number of episodes at a time, of any event loop.

    Args:
        launch: with what.
        max_turns: that an agent without a limit of its own may take.
    """

    def __init__(self, launch: Launch, max_turns: int) -> None:
        self._launch, self._max_turns = launch, max_turns
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[_Process, asyncio.AbstractEventLoop, asyncio.Future[dict[str, Any]]]] = {}

    async def play(self, task: int, key: str, *, base_url: str, api_key: str, model: str) -> tuple[str, float]:
        """One episode: the last reply, and the reward.

        Args:
            task: its number.
            key: as `listed` gave it.
            base_url: of the session that answers its requests.
            api_key: of the session.
            model: the name that is asked for.

        Raises:
            RLinfError: the environment failed, or its process did.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        number = next(self._numbers)
        # Starting takes seconds, in which other episodes go on.
        process = await asyncio.to_thread(self._running)
        with self._lock:
            # Before it is asked, as the thread that reads may have the answer before this one goes on.
            self._waiting[number] = (process, loop, answer)
        where = {"base_url": base_url, "api_key": api_key, "model": model}
        try:
            self._send(process, {"id": number, "play": task, "key": key, **where})
            found = await answer
        finally:
            with self._lock:
                # Nobody waits for it any more, as after a cancellation: then the process must not play on.
                unanswered = self._waiting.pop(number, None) is not None
            if unanswered:
                with contextlib.suppress(RLinfError):
                    self._send(process, {"id": number, "cancel": True})
        if "error" in found:
            raise RLinfError("verifiers", found["error"])
        return str(found["answer"]), float(found["reward"])

    def close(self) -> None:
        """Ends the process; the next episode begins another."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _send(self, process: _Process, message: Mapping[str, Any]) -> None:
        with self._lock:
            try:
                process.child.connection.send(message)
            except ConnectionLost as error:
                raise RLinfError("verifiers", f"its process {process.child.cause()}") from error

    def _running(self) -> _Process:
        with self._lock:
            if self._process is None or self._process.child.has_ended():
                process = _Process(self._launch)
                try:
                    process.first({"serve": self._launch.tasks, "max_turns": self._max_turns})
                except BaseException:
                    process.close()
                    raise
                self._process = process
                threading.Thread(target=self._read, args=(process,), daemon=True, name="verifiers").start()
            return self._process

    def _read(self, process: _Process) -> None:
        try:
            while True:
                message, _ = process.child.connection.wait()
                with self._lock:
                    waiting = self._waiting.pop(message["id"], None)
                if waiting is not None:
                    _settle(*waiting[1:], message)
        except (ConnectionLost, OSError):
            process.child.wait(1.0)
            cause = f"its process {process.child.cause()}"
            with self._lock:
                # Not those of the process that was begun in its place.
                left = [number for number, (player, *_) in self._waiting.items() if player is process]
                lost = [self._waiting.pop(number) for number in left]
            for waiting in lost:
                _settle(*waiting[1:], {"error": cause})


def _settle(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[dict[str, Any]], message: dict[str, Any]) -> None:
    def settle() -> None:
        # On its own loop it may have been cancelled meanwhile.
        if not answer.done():
            answer.set_result(message)

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


_open: Final[Shared[tuple[Launch, int], Service]] = Shared()


def service(launch: Launch, max_turns: int) -> Service:
    """This process's, made by the first who asks; it ends with the process."""
    return _open.get((launch, max_turns), lambda: Service(launch, max_turns))


def close_services() -> None:
    """Ends the processes that this one has started; the next episode begins others."""
    _open.close()
