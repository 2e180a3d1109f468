"""Device locks: first come, first served, one queue of holders for each device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol

from rlinf.scheduler.messages.waiting import Monitor, Wait


class Locks:
    """The locks of all devices of a cluster."""

    def __init__(self, monitor: Callable[[], Monitor]) -> None:
        self._monitor = monitor()
        self._lines: dict[int, deque[str]] = {}
        self._closed = ""

    def acquire(self, owner: str, devices: Sequence[int], wait: Wait) -> None:
        """Takes the devices one after the other in ascending order, so that two owners never wait for each other."""
        with self._monitor:
            try:
                for device in sorted(devices):
                    line = self._lines.setdefault(device, deque())
                    line.append(owner)
                    self._monitor.wait_until(lambda line=line: bool(self._closed) or owner not in line or line[0] == owner, wait)
                    if self._closed or owner not in line:
                        raise wait.closed(self._closed or f"{owner} is gone")
            except Exception:
                self._leave(owner)
                raise

    def release(self, owner: str) -> None:
        """Gives back all that an owner holds or waits for."""
        with self._monitor:
            self._leave(owner)

    def close(self, reason: str) -> None:
        """Ends every wait with `ChannelClosed`."""
        with self._monitor:
            self._closed = self._closed or reason
            self._monitor.changed()

    def _leave(self, owner: str) -> None:
        for line in self._lines.values():
            if owner in line:
                line.remove(owner)
        self._monitor.changed()


class LockService(Protocol):
    """Where a worker asks for its devices."""

    def acquire(self, owner: str, devices: Sequence[int], wait: Wait) -> None:
        """Blocks until the owner has the devices."""
        ...

    def release(self, owner: str) -> None:
        """Gives them back."""
        ...


class DeviceLock:
    """`with lock:` gives a worker its devices for itself; it may enter again while inside. Without devices it does nothing."""

    def __init__(self, service: LockService, owner: str, devices: Sequence[int]) -> None:
        self._service = service
        self._owner = owner
        self._devices = tuple(devices)
        self._depth = 0
        self._mutex = threading.Lock()

    def __enter__(self) -> None:
        with self._mutex:
            if self._devices and self._depth == 0:
                names = ", ".join(str(device) for device in self._devices)
                self._service.acquire(self._owner, self._devices, Wait(self._owner, f"device {names}", "the lock"))
            self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with self._mutex:
            self._depth -= 1
            if self._devices and self._depth == 0:
                self._service.release(self._owner)
