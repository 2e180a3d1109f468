"""What runs in a worker process: it loads verifiers, then answers one pair at a time, until its connection closes.

    python -P _verifier_process.py CONNECTION        # the file of `rlinf.core.process.connection`

Run by path, and loading that one file by path, so that starting it imports the standard library alone. It bounds itself as well as
it can (an alarm, limits of CPU time and memory); its parent kills it where that does not help.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import math
import numbers
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from typing import Any, cast

if sys.platform != "win32":
    import resource

Verify = Callable[[str, str], object]
CPU_MARGIN_S = 2
MAX_PROBLEM = 500


class TimeLimit(BaseException):
    """No `Exception`, so that a verifier that catches everything doesn't catch this."""


def main() -> None:
    """Answers requests until there are no more."""
    connection = _module(sys.argv[1]).Connection.to_parent()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    logging.disable(logging.CRITICAL)
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    verifiers: dict[int, Verify] = {}
    with contextlib.suppress(ConnectionError):  # the parent is gone
        while True:
            request, payload = connection.wait()
            try:
                reply = _load(request, payload, verifiers) if "load" in request else _score(request, verifiers)
            except BaseException as error:  # noqa: BLE001 - whatever a verifier throws, SystemExit included, is an answer
                reply = {"error": _error_text(error)}
            if "ready" in reply:
                os.dup2(null, 2)  # why a process doesn't start is worth reading; what verifiers print is not
            connection.send(reply)


def _load(request: dict[str, Any], pickled: bytes, verifiers: dict[int, Verify]) -> dict[str, Any]:
    # A user's function is imported from where the parent finds it.
    sys.path[:] = request["path"]
    # Only our parent holds the other end of the socket: this is its own object, not data of anybody else.
    prepare, verify, batched = pickle.loads(pickled)  # noqa: S301
    prepare, verify = _found(prepare), _found(verify)
    if prepare is not None:
        prepare()
    verifiers[request["load"]] = _one_by_one(verify) if batched else verify
    return {"ready": request["load"]}


def _found(function: Any) -> Any:
    """The function itself; of a file, if it comes as (file, name, options)."""
    if not isinstance(function, tuple):
        return function
    file, name, options = cast("tuple[str, str, dict[str, Any]]", function)
    return functools.partial(getattr(_module(file), name), **options)


def _module(file: str) -> Any:
    """The module in a file, without the packages above it."""
    if file not in sys.modules:
        spec = importlib.util.spec_from_file_location(file, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"no Python file: {file}")
        sys.modules[file] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[file])
    return sys.modules[file]


def _one_by_one(reward: Callable[[list[str], list[str]], Any]) -> Verify:
    def only(completion: str, answer: str) -> object:
        found = reward([completion], [answer])
        if len(found) != 1:
            raise ValueError(f"expected one score for one completion, the reward returned {len(found)}")
        return found[0]

    return only


def _score(request: dict[str, Any], verifiers: dict[int, Verify]) -> dict[str, Any]:
    verify = verifiers[request["verifier"]]
    with _memory(request["memory_mb"]):
        try:
            with _time(request["timeout_s"]):
                value = verify(request["completion"], request["answer"])
        except TimeLimit:
            return {"timeout": True}
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        return {"error": f"expected a finite number, the verifier returned {value!r:.100}"}
    return {"score": float(value)}


def _error_text(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(error)).strip()[:MAX_PROBLEM]
    except BaseException:  # noqa: BLE001 - an error whose text can't be made
        return type(error).__name__


@contextlib.contextmanager
def _time(seconds: float) -> Generator[None]:
    """Raises `TimeLimit` when the time is over; the kernel ends the process a little later, whoever is still alive to see it."""
    if sys.platform == "win32":
        yield
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # RLIMIT_CPU counts from the start of the process, so that what it has used is added.
    cpu = math.ceil(used.ru_utime + used.ru_stime + seconds) + CPU_MARGIN_S
    resource.setrlimit(resource.RLIMIT_CPU, (cpu if soft == resource.RLIM_INFINITY else min(cpu, soft), hard))
    signal.signal(signal.SIGALRM, _raise_time_limit)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _raise_time_limit(_signal: int, _frame: object) -> None:
    raise TimeLimit


@contextlib.contextmanager
def _memory(megabytes: int) -> Generator[None]:
    """Bounds what a verifier may add to the memory of the process, where the platform can."""
    if sys.platform != "linux":
        yield
        return
    with open("/proc/self/statm", encoding="ascii") as statm:
        # The first number is the size of the address space in pages, which is what RLIMIT_AS bounds.
        held = int(statm.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = held + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    main()
