"""The process in which one program runs: it gives up what it does not need, then becomes the program.

Loaded by path in the sandbox's own processes, so it imports the standard library only.
"""

from __future__ import annotations

import atexit
import gc
import linecache
import math
import mmap
import os
import resource
import signal
import sys
import threading
import traceback
import types
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from rlinf.envs.sandbox import _kernel, _seccomp
else:
    import _kernel
    import _seccomp

THREADS: Final = 64
"""Threads that a program may have, where they can be counted."""
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
MEMORY, PROCESSES = b"M", b"P"
"""What the program's end was about, for the process that waits for it; a program could write them itself."""
_OPEN_FILES: Final = 256
_SOURCE: Final = "program.py"
_REFUSALS: Final = 3
_FAILED: Final = 1
MiB: Final = 1 << 20


def become_program(
    request: dict[str, Any], setting: dict[str, Any], folder: str, files: list[int], refusals: int, note: mmap.mmap
) -> NoReturn:
    """Gives up rights, then runs the program; never returns.

    Args:
        request: its limits.
        setting: what holds for all programs of this server.
        folder: the scratch folder.
        files: open files: the program, its standard input, output and error.
        refusals: the descriptor to which it is written why the program could not be confined; closed before it begins.
        note: shared with the process that waits.
    """
    try:
        source = _take_over(files, refusals)
        refusals = _REFUSALS
        _confine(request, setting, folder)
    except BaseException as error:  # noqa: BLE001 - nothing that was meant to be confined may go on
        os.write(refusals, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.close(refusals)
    # Of its own, as a program may put another function in its place.
    end, status = os._exit, _FAILED
    try:
        status = _finished(_run(source, note))
    finally:
        # What a program left may raise whenever it is touched, and nothing of the server may run on in here.
        end(status)


def _take_over(files: list[int], refusals: int) -> bytes:
    """Reads the program, and keeps no descriptor but the three standard ones and that for refusals."""
    os.setsid()
    with os.fdopen(files[0], "rb") as program:
        source = program.read()
    # The server has its own standard streams open, so that none of these is one of them.
    for number, file in enumerate([*files[1:], refusals]):
        os.dup2(file, number)
    _kernel.close_from(_REFUSALS + 1)
    return source


def _confine(request: dict[str, Any], setting: dict[str, Any], folder: str) -> None:
    level = setting["level"]
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    if level != "namespaces" and setting["user"]:
        os.setgroups([])
        os.setresgid(*[setting["user"]] * 3)
        os.setresuid(*[setting["user"]] * 3)
    _limit(request, setting)
    _kernel.set_dumpable(False)
    _kernel.drop_capabilities()
    if level == "landlock":
        _kernel.landlock(setting["readable"], folder, list(DEVICES))
    # Last, as the filter refuses most of the calls above.
    if level != "rlimits":
        own = None if level == "namespaces" else os.getpid()
        _kernel.seccomp(_seccomp.program(os.uname().machine, forks=request["processes"] > 1, own_pid=own))


def _limit(request: dict[str, Any], setting: dict[str, Any]) -> None:
    """The limits that a process can't raise again."""
    cpu = max(1, math.ceil(request["cpu_s"]))
    sizes = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: setting["held"] + request["memory_mb"] * MiB,
        resource.RLIMIT_FSIZE: setting["scratch_mb"] * MiB,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if setting["level"] == "rlimits":
        # Threads are processes to this limit.
        sizes[resource.RLIMIT_NPROC] = 0
    for kind, size in sizes.items():
        _lower(kind, size)
    # At the first of the two the kernel asks, which can be ignored, at the second it ends the process.
    _lower(resource.RLIMIT_CPU, cpu, cpu + 1)


def _lower(kind: int, soft: int, hard: int | None = None) -> None:
    _, most = resource.getrlimit(kind)
    wanted = [soft, soft if hard is None else hard]
    limits = [size if most == resource.RLIM_INFINITY else min(size, most) for size in wanted]
    resource.setrlimit(kind, (limits[0], limits[1]))


def _run(source: bytes, note: mmap.mmap) -> int:
    """The program's exit status, as the interpreter would have it."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv = main, [_SOURCE]
    sys.path.insert(0, os.getcwd())
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    # For tracebacks, which look up lines in a file that does not exist here.
    linecache.cache[_SOURCE] = (len(source), None, lines, _SOURCE)
    # The server has turned it off.
    gc.enable()
    try:
        exec(compile(source, _SOURCE, "exec"), main.__dict__)  # noqa: S102 - what all of this is for
    except SystemExit as end:
        return _status(end.code)
    except BaseException as error:  # noqa: BLE001 - as the interpreter
        _explain(error, note)
        return 1
    return 0


def _status(code: object) -> int:
    if code is None or isinstance(code, int):
        return int.__and__(0 if code is None else code, 0xFF)  # a program may have numbers of its own
    print(code, file=sys.stderr)
    return 1


def _explain(error: BaseException, note: mmap.mmap) -> None:
    if isinstance(error, MemoryError):
        note[0:1] = MEMORY
    elif isinstance(error, BlockingIOError) or "can't start new thread" in str(error):
        note[0:1] = PROCESSES
    # Without the frame of this file.
    traceback.print_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)


def _finished(status: int) -> int:
    """Waits for threads and flushes, as the interpreter does at its end."""
    try:
        for finish in (getattr(threading, "_shutdown"), getattr(atexit, "_run_exitfuncs")):  # noqa: B009 - what the interpreter calls
            finish()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - such as standard output being closed
        status = status or 120
    return status
