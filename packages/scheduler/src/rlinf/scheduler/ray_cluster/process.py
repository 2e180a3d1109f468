"""What runs in the process of one worker: its message server, its log, and the worker itself. Runs without Ray, too."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf.core.worker import Worker, WorkerContext, injected
from rlinf.scheduler.calls import Outcome, perform
from rlinf.scheduler.logs import write_log
from rlinf.scheduler.messages.endpoint import Endpoint, Meeting
from rlinf.scheduler.messages.locks import DeviceLock
from rlinf.scheduler.messages.post import PostMessenger, address
from rlinf.scheduler.placement import ProcessPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """All that a new worker process is told."""

    meeting: Meeting
    group: str
    world_size: int
    plan: ProcessPlan
    log_dir: str | None


class WorkerProcess:
    """One process of a group."""

    def __init__(self, birth: Birth) -> None:
        # Ctrl-C reaches the whole process group; the driver decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._birth = birth
        self._worker: Worker | None = None
        rank = birth.plan.rank
        write_log("rlinf", birth.log_dir, birth.group, rank)
        self._endpoint = Endpoint(birth.meeting, address(birth.group, rank))
        self._endpoint.hold_lifeline(self._endpoint.close, _end)

    def meet(self) -> tuple[int, str]:
        """The process id, and an address on which the group's ranks may meet if this is rank 0."""
        if self._birth.plan.rank != 0 or self._birth.world_size == 1:
            return os.getpid(), ""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return os.getpid(), f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    def construct(self, cls: type[Worker], args: tuple[Any, ...], kwargs: Mapping[str, Any], rendezvous: str) -> Outcome:
        """Builds the worker."""
        birth, rank = self._birth, self._birth.plan.rank
        context = WorkerContext(
            group=birth.group,
            rank=rank,
            world_size=birth.world_size,
            devices=birth.plan.devices,
            threads=birth.plan.threads,
            messenger=PostMessenger(self._endpoint, birth.group, rank),
            device_lock=DeviceLock(self._endpoint, f"{birth.group}[{rank}]", birth.plan.devices),
            rendezvous=rendezvous,
        )

        def build() -> None:
            with injected(context):
                self._worker = cls(*args, **kwargs)

        return perform(build, (), {})

    def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Outcome:
        """Runs a method of the worker."""
        return perform(getattr(self._worker, method), args, kwargs)


def _end() -> None:
    """The driver is gone: nobody needs this process, whatever it is doing."""
    os._exit(1)
