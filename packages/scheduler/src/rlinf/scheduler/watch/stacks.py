"""Python stacks of processes: their own if they answer, else by py-spy if it is installed, else by a signal that needs no GIL."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

SIGNAL = signal.SIGRTMIN + 9
"""Makes a process write its stacks; real-time signals have no other meaning to batch systems or libraries."""
_MEMORY_FILE = "rlinf-stacks"
_SIGNAL_S = 2.0
_SPY_S = 10.0
_FRAMES = 6
FRAMES_OF_THREAD = 60
_CALL = (("perform ", "perform_async "), "scheduler/workers/calls.py")
"""The frame below a worker's own: its function, of a method that may be async, and file."""
# `_short` leaves three parts of a path, so that files of the inner folder begin with another one.
_MESSAGES = ("(scheduler/transport/", "(transport/sockets/")
"""The frames above a worker's own when it waits, of which the last says enough."""

# `Thread 0x7f1c (most recent call first):` of faulthandler, and `Thread 12 (idle): "MainThread"` of py-spy.
_HEADING = re.compile(r'^(?:Current thread|Thread) (\S+)(?: \(([^)]*)\))?:?\s*(?:"(.*)")?')
_FAULTHANDLER = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_PY_SPY = re.compile(r"^    (\S.*) \((.+?)(?::(\d+))?\)$")


@dataclass(frozen=True, slots=True)
class Stack:
    """One thread."""

    thread: str
    """`MainThread`."""
    frames: tuple[str, ...]
    """`generate (rollout/worker.py:41)`, the most recent call first."""

    def describe(self) -> str:
        """A heading and a line for each frame."""
        return "\n".join([f"  thread {self.thread} (most recent call first):", *[f"    {frame}" for frame in self.frames]])


def own_stacks() -> list[Stack]:
    """The stacks of this process's threads, but for this one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    me = threading.get_ident()
    frames = _frames_of_threads()
    return [Stack(names.get(ident, str(ident)), _frames(frame)) for ident, frame in frames.items() if ident != me]


def _frames_of_threads() -> dict[int, FrameType]:
    """The frame in which each thread is.

    Without garbage collection: Python 3.11 holds the lock of its list of threads meanwhile, and what a collection frees may wait
    for that lock, for ever (https://github.com/python/cpython/issues/106883).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()  # pyright: ignore[reportPrivateUsage] - the only way to the stacks of other threads
    finally:
        if enabled:
            gc.enable()


def answer_signals() -> None:
    """From now on, other processes of this user on this node can get this one's stacks, even while native code holds the GIL."""
    memory = os.memfd_create(_MEMORY_FILE, os.MFD_CLOEXEC)
    # Opened anew for O_APPEND: after another process has truncated it, faulthandler writes at its new beginning.
    file = os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    os.close(memory)
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)


def foreign_stacks(pids: Sequence[int]) -> dict[int, list[Stack]]:
    """The stacks of other processes of this node, as far as they can be had."""
    spy = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    found: dict[int, list[Stack]] = {}
    if spy is not None:
        deadline = time.monotonic() + _SPY_S
        for pid in pids:
            with suppress(OSError, subprocess.SubprocessError):
                command = [spy, "dump", "--pid", str(pid)]
                left = max(0.1, deadline - time.monotonic())
                text = subprocess.run(command, capture_output=True, text=True, timeout=left, check=True).stdout  # noqa: S603
                found[pid] = parse(text)
    return {**by_signal([pid for pid in pids if not found.get(pid)]), **found}


def by_signal(pids: Iterable[int]) -> dict[int, list[Stack]]:
    """The stacks of processes that have called `answer_signals`."""
    asked: dict[int, str] = {}
    for pid in pids:
        file = _memory_file(pid)
        if file is not None:
            with suppress(OSError):
                os.truncate(file, 0)
                os.kill(pid, SIGNAL)
                asked[pid] = file
    found: dict[int, str] = dict.fromkeys(asked, "")
    deadline = time.monotonic() + _SIGNAL_S
    growing = bool(asked)
    while growing and time.monotonic() < deadline:
        time.sleep(0.05)
        before = dict(found)
        for pid, file in asked.items():
            with suppress(OSError):
                found[pid] = Path(file).read_text(errors="replace")
        # Stacks are written piece by piece: they are whole when nothing is added any more.
        growing = found != before or not all(found.values())
    return {pid: parse(text) for pid, text in found.items() if text}


def parse(text: str) -> list[Stack]:
    """Reads what faulthandler or py-spy wrote."""
    stacks: list[Stack] = []
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading:
            stacks.append(Stack(heading[3] or heading[1], ()))
        elif stacks and (match := _FAULTHANDLER.match(line)):
            stacks[-1] = Stack(stacks[-1].thread, (*stacks[-1].frames, f"{match[3]} ({_short(match[1])}:{match[2]})"))
        elif stacks and (match := _PY_SPY.match(line)):
            where = _short(match[2]) + (f":{match[3]}" if match[3] else "")
            stacks[-1] = Stack(stacks[-1].thread, (*stacks[-1].frames, f"{match[1]} ({where})"))
    return stacks


def in_calls(stacks: Iterable[Stack]) -> list[str]:
    """The innermost frames of a worker's call, without what the cluster has above and below them; [] if it runs none."""
    for stack in stacks:
        for depth, frame in enumerate(stack.frames):
            if frame.startswith(_CALL[0]) and _CALL[1] in frame:
                frames = list(stack.frames[:depth])
                while len(frames) > 1 and all(any(part in frame for part in _MESSAGES) for frame in frames[:2]):
                    del frames[0]
                return frames if len(frames) <= _FRAMES else [*frames[:_FRAMES], "…"]
    return []


def _memory_file(pid: int) -> str | None:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for number in os.listdir(folder):
            with suppress(OSError):
                if os.readlink(f"{folder}/{number}").startswith(f"/memfd:{_MEMORY_FILE}"):
                    return f"{folder}/{number}"
    return None


def _frames(frame: FrameType | None) -> tuple[str, ...]:
    found: list[str] = []
    while frame is not None and len(found) < FRAMES_OF_THREAD:
        code = frame.f_code
        found.append(f"{code.co_name} ({_short(code.co_filename)}:{frame.f_lineno})")
        frame = frame.f_back
    return tuple(found)


def _short(path: str) -> str:
    """The last three parts of a path."""
    return Path(*Path(path).parts[-3:]).as_posix()
