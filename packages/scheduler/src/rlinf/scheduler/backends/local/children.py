"""Children of the workers of the `local` back-end: tasks of this process, too."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlinf.core.protocols import Child
from rlinf.core.worker import Worker, WorkerContext, injected
from rlinf.core.worker.context import CurrentWorker, WorkerAddress
from rlinf.scheduler.backends.local.cooperative import CooperativeScheduler
from rlinf.scheduler.transport.p2p import Groups, PeerMessenger
from rlinf.scheduler.transport.transport import Transport, address, label
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.workers.calls import Failure, perform
from rlinf.scheduler.workers.children import AddressedChild, ChannelServices


class LocalServices(ChannelServices):
    """What a worker of the process asks of its cluster.

    Args:
        scheduler: of the cluster.
        transport: of the cluster.
        groups: asks which groups there are.
        fields: those of the worker's context that its children have, too.
        fail: called with what a child has raised.
    """

    def __init__(
        self,
        scheduler: CooperativeScheduler,
        transport: Transport,
        groups: Groups,
        fields: dict[str, Any],
        fail: Callable[[Failure], None],
    ) -> None:
        self.scheduler = scheduler
        self.transport = transport
        self.groups = groups
        self.fields = fields
        self.fail = fail
        self._numbers = itertools.count()

    def start_child(self, function: Callable[..., Any], args: tuple[Any, ...], name: str) -> Child:
        path = (*self.fields.get("children", ()), next(self._numbers))
        fields = {**self.fields, "children": path, "devices": (), "threads": 1}
        services = LocalServices(self.scheduler, self.transport, self.groups, fields, self.fail)
        return LocalChild(services, lambda: function(*args), name)


class LocalChild(AddressedChild):
    """Implements `Child` with a task. Its function and arguments are those of the worker, not copies."""

    def __init__(self, services: LocalServices, run: Callable[[], Any], name: str) -> None:
        group, ranks = services.fields["group"], (services.fields["rank"], *services.fields["children"])
        super().__init__(WorkerAddress(group, ranks), name)
        self._host = address(group, ranks)
        self._services = services
        self._run = run
        self._ended = False
        self._task = services.scheduler.start(label(self._host), self._live)

    @property
    def pid(self) -> int:
        return os.getpid()

    def wait(self, timeout: float | None = None) -> None:
        scheduler = self._services.scheduler
        scheduler.wait_until(lambda: self._ended, Wait(scheduler.me().name, self._label, "it to end", timeout))

    def done(self) -> bool:
        """See `Child`; lets another task run first."""
        if not self._ended:
            self._services.scheduler.give_way()
        return self._ended

    def stop(self) -> None:
        """See `Child`. It ends where it waits, as it runs only while others do."""
        # Before its wait ends with `ChannelClosed`, which `_live` must not take for a failure.
        self._stopped = True
        self._services.scheduler.end(self._task, f"{self._label} was stopped")
        self.wait()

    def _live(self) -> None:
        around = self._services
        messenger = PeerMessenger(around.transport, self._host, around.groups)
        with injected(WorkerContext(**around.fields, messenger=messenger, services=around)):
            worker = Worker()
        # It may have been stopped before its first turn.
        if not self._stopped:
            with CurrentWorker.running(worker):
                failure = perform(self._run, (), {}).failure
            if failure is not None and not self._stopped:
                problem = f"{self._label} failed: {failure.problem}"
                around.fail(replace(failure, problem=problem))
        self._ended = True
