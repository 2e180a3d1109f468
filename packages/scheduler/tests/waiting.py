"""What tests of several threads and processes wait for; every wait has a deadline."""

import contextlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PAUSE_S = 0.005


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    return bool(condition())


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Waits until something is true, or fails."""
    assert eventually(condition, seconds), f"not after {seconds:g} s"


def becomes(look: Callable[[], Any], expected: Any, seconds: float = 60.0) -> None:
    """Looks until something is as expected, or fails with how it was last: a process that did not run for a while answers late."""
    deadline = time.monotonic() + seconds
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    assert found == expected


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def descendants(pid: int) -> list[int]:
    """The processes below one, as far as they can be seen: the kernel may leave one out while another ends."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in (thread / "children").read_text().split():
                    found += [int(child), *descendants(int(child))]
    return found


def all_dead(pids: Iterable[int], seconds: float = 60.0) -> bool:
    """Whether all of the processes end in time."""
    left = list(pids)
    return eventually(lambda: not any(alive(pid) for pid in left), seconds)


def together(*functions: Callable[[], Any]) -> list[Any]:
    """What functions return that run at the same time, each in a thread."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(120.0) for future in [pool.submit(function) for function in functions]]
