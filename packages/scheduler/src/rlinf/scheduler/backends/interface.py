"""What a cluster asks of its back-end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlinf.core.protocols import GroupSpec
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.placement import ProcessPlan
from rlinf.scheduler.trace.recording import Recording
from rlinf.scheduler.transport.channel_registry import ChannelRegistry
from rlinf.scheduler.transport.transport import Transport
from rlinf.scheduler.watch.graph import WaitGraph
from rlinf.scheduler.watch.stacks import Stack
from rlinf.scheduler.workers.calls import Process
from rlinf.scheduler.workers.launching import LaunchOptions
from rlinf.scheduler.workers.supervisor import Supervisor


class Backend(Protocol):
    """Starts workers and carries their messages."""

    @property
    def transport(self) -> Transport:
        """The driver's access to all queues."""
        ...

    @property
    def channels(self) -> ChannelRegistry:
        """The channels of the run."""
        ...

    @property
    def cooperative(self) -> bool:
        """Workers run only while the driver waits in its own thread."""
        ...

    @property
    def recording(self) -> Recording | None:
        """The trace of the run; None if nothing is recorded."""
        ...

    @property
    def failures(self) -> Failures:
        """What went wrong."""
        ...

    @property
    def replaceable(self) -> bool:
        """Nobody but launches uses it, so that a launch may be repeated on another one if this one breaks under it."""
        ...

    def prepare(
        self, spec: GroupSpec[Any], group: str, plans: Sequence[ProcessPlan], supervisor: Supervisor, options: LaunchOptions
    ) -> None:
        """Starts the processes of a group that is launched later, and lets them import its class; what fails is told then."""
        ...

    def launch(
        self, spec: GroupSpec[Any], group: str, plans: Sequence[ProcessPlan], supervisor: Supervisor, options: LaunchOptions
    ) -> list[Process]:
        """Starts one worker for each plan and constructs it; on failure, ends those it started.

        Raises:
            WorkerError: a constructor failed; its method is `__init__`.
        """
        ...

    def end(self, group: str) -> None:
        """Ends all workers of a group, and the calls that it has not ended.

        Raises:
            DeadlineExceeded: a worker did not end.
        """
        ...

    def wait_graph(self) -> WaitGraph:
        """Who waits for whom at this moment."""
        ...

    def stacks(self) -> Mapping[str, Sequence[Stack]]:
        """The Python stacks of the driver and of each worker."""
        ...

    def stop(self) -> None:
        """Ends everything that it started."""
        ...
