"""What runs in the process of one worker: its message server, its log, and the worker itself. Runs without Ray, too."""

from __future__ import annotations

import logging
import os
import resource
import secrets
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from rlinf.core.lazy import import_held
from rlinf.core.process import free_port
from rlinf.core.worker import Worker, WorkerContext, injected
from rlinf.core.worker.context import CurrentWorker
from rlinf.scheduler.placement import ProcessPlan
from rlinf.scheduler.trace.reading import RESIDENT
from rlinf.scheduler.trace.recorder import Recorder, recorded, recorded_async
from rlinf.scheduler.trace.transfers import traced_locks, traced_transport
from rlinf.scheduler.transport.p2p import PeerMessenger
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport
from rlinf.scheduler.transport.transport import address, label
from rlinf.scheduler.transport.waits import calling
from rlinf.scheduler.watch.answers import answer
from rlinf.scheduler.workers.calls import Outcome, perform, perform_async
from rlinf.scheduler.workers.children import Origin, WorkerServices
from rlinf.scheduler.workers.device_lock import DeviceLock
from rlinf.scheduler.workers.identity import plan_fields, rank_variables
from rlinf.scheduler.workers.launching import LaunchOptions, is_async
from rlinf.scheduler.workers.logs import WorkerLog
from rlinf.scheduler.workers.loops import LIMIT, Coroutines, ThreadTurn

_LOG = logging.getLogger("rlinf.scheduler")
ASYNC = "async"
"""The concurrency group of those Ray threads that wait for async calls."""
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of what `getrusage` counts in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All that a new worker process is told."""

    run_info: RunInfo
    place: Location
    """Where it is to listen."""
    meeting_ip: str
    """The address of its node at which the other ranks of its group find it."""
    group: str
    plan: ProcessPlan
    plans: tuple[ProcessPlan, ...]
    """Those of the whole group."""
    log_dir: str | None
    trace_dir: Path | None
    options: LaunchOptions
    sys_path: tuple[str, ...] = field(default_factory=lambda: tuple(entry or os.getcwd() for entry in sys.path))
    """The driver's, so that a class of any module that it has imported is found here, too."""


def search_path(driver: Sequence[str], own: Sequence[str]) -> list[str]:
    """The `sys.path` of a worker: what the driver has before its standard library, the worker's own, the rest of the driver's.

    The first are the folder of a script and the current one; the worker's own may be that of another interpreter.
    """
    standard = f"python{sys.version_info.major}{sys.version_info.minor}.zip"  # what Python itself begins with, there or not
    names = [os.path.basename(entry) for entry in driver]
    first = driver[: names.index(standard)] if standard in names else ()
    return list(dict.fromkeys([*first, *own, *driver]))


def actor_options(worker: type[Any], options: LaunchOptions) -> dict[str, Any]:
    """How many threads Ray gives the process of a worker. With more than one, none of them is the main thread."""
    threads, awaited = options.threads(worker), options.awaited(worker)
    chosen: dict[str, Any] = {"max_concurrency": threads} if threads > 1 else {}
    return {**chosen, "concurrency_groups": {ASYNC: min(awaited, LIMIT)}} if awaited else chosen


class WorkerProcess:
    """One process of a group."""

    def __init__(self, spec: WorkerSpec) -> None:
        # Ctrl-C reaches the whole process group; the driver decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.path[:] = search_path(spec.sys_path, sys.path)
        self._spec = spec
        self._worker: Worker | None = None
        rank = spec.plan.rank
        me = address(spec.group, rank)
        self._who = label(me)
        self._untraced = SocketTransport(spec.run_info, me, spec.place)
        self._untraced.server.start()
        self._log = WorkerLog("rlinf", spec.log_dir, spec.group, rank, forward=self._untraced.log)
        self._trace_dir = _shared(spec.trace_dir)
        self._recorder = None if self._trace_dir is None else Recorder(self._trace_dir, me)
        self._resident = 0
        self._transport = traced_transport(self._untraced, self._recorder)
        self._messenger = PeerMessenger(self._transport, me, self._untraced.groups, spec.run_info.timeout_s)
        self._coroutines = Coroutines(ThreadTurn(), f"{self._who} async", spec.options.max_concurrency or LIMIT)
        self._several = False
        self._outcomes: dict[str, tuple[Event, list[Outcome]]] = {}
        answer(self._who, self._untraced.server)
        # Last: from now on the driver asks, and each answer must be set.
        self._untraced.connect_control(_end)

    def meet(self) -> tuple[int, str]:
        """The process id, and an address on which the group's ranks may meet if this is rank 0."""
        if self._spec.plan.rank != 0 or len(self._spec.plans) == 1:
            return os.getpid(), ""
        return os.getpid(), f"tcp://{self._spec.meeting_ip}:{free_port(self._spec.meeting_ip)}"

    def import_class(self, cls: type[Worker]) -> None:
        """Imports the worker's class, which Ray does before it calls this, and what its module imports at first use only."""
        import_held(cls.__module__)

    def construct(self, cls: type[Worker], args: tuple[Any, ...], kwargs: Mapping[str, Any], rendezvous: str) -> Outcome:
        """Builds the worker."""
        self._several = self._spec.options.threads(cls) > 1
        context = self._context(rendezvous)
        # Before the constructor: it may start torch's process groups, which read them.
        os.environ.update(context.variables)

        def build() -> None:
            with injected(context):
                self._worker = cls(*args, **kwargs)
            CurrentWorker.own_process(self._worker)

        return self._run("__init__", lambda: perform(build, (), {}, last_words=self._log.tail.text))

    def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Outcome:
        """Runs a method of the worker."""
        function = getattr(self._worker, method)
        with nullcontext() if self._several else self._coroutines.between():
            return self._run(method, lambda: perform(function, args, kwargs, last_words=self._log.tail.text))

    def begin(self, number: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Begins an async method of the worker; returns at its first await."""
        function = getattr(self._worker, method)
        ended, outcomes = self._outcomes[number] = (Event(), [])

        def run() -> Coroutine[Any, Any, Outcome]:
            return perform_async(function, args, kwargs, last_words=self._log.tail.text)

        async def call() -> None:
            with calling(self._who, method):
                outcomes.append(await recorded_async(self._recorder, self._who, method, run))
            self._log.failed(method, outcomes[0].failure)
            ended.set()

        self._coroutines.begin(call)

    def outcome(self, begun: None, number: str) -> Outcome:
        """How the async call of that number ended; waits for it."""
        ended, outcomes = self._outcomes[number]
        ended.wait()  # for as long as the method takes: the deadline is the caller's, whose wait has the label
        del self._outcomes[number]
        return outcomes[0]

    def _run(self, method: str, run: Callable[[], Outcome]) -> Outcome:
        with calling(self._who, method):
            outcome = recorded(self._recorder, self._who, method, run)
        self._record_resident()
        self._log.failed(method, outcome.failure)
        return outcome

    def _record_resident(self) -> None:
        """What the process takes of its host at the most, whenever that has grown: on virtual accelerators it is their memory."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
        if self._recorder is not None and peak > self._resident:
            self._resident = peak
            self._recorder.memory(self._who)(RESIDENT, peak)

    def _context(self, rendezvous: str) -> WorkerContext:
        spec, plan = self._spec, self._spec.plan
        master = rendezvous or f"tcp://{spec.meeting_ip}:{free_port(spec.meeting_ip)}"
        ip, _, port = master.removeprefix("tcp://").rpartition(":")
        ranks = rank_variables(spec.group, plan, spec.plans, isolated=spec.options.isolate_gpu)
        fields = plan_fields(spec.group, plan, spec.plans)
        origin = Origin(spec.run_info, spec.place, spec.log_dir, self._trace_dir, fields)
        return WorkerContext(
            **fields,
            environment={**ranks, "MASTER_ADDR": ip, "MASTER_PORT": port},
            messenger=self._messenger,
            services=WorkerServices(origin, self._fail),
            device_lock=DeviceLock(traced_locks(self._untraced, self._recorder), self._who, plan.devices),
            rendezvous=rendezvous,
            span=nullcontext if self._recorder is None else self._recorder.timers(self._who),
            memory=None if self._recorder is None else self._recorder.memory(self._who),
        )

    def _fail(self, problem: str) -> None:
        """A child process has failed, and so has this one."""
        assert self._worker is not None
        self._worker.log_error(problem)
        os._exit(1)


def send_call(actor: Any, worker: type[Any], method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Sends a call to the actor of a `WorkerProcess`; returns Ray's reference to its `Outcome`."""
    if not is_async(worker, method):
        return actor.call.remote(method, args, dict(kwargs))
    number = secrets.token_hex(8)
    begun = actor.begin.remote(number, method, args, dict(kwargs))
    # Ray keeps no order between concurrency groups; that `begun` is an argument makes it wait for `begin`.
    return actor.outcome.options(concurrency_group=ASYNC).remote(begun, number)


def _shared(trace_dir: Path | None) -> Path | None:
    """The driver's folder of the trace, if this node has it, too."""
    if trace_dir is not None and not trace_dir.is_dir():
        _LOG.warning("not traced: this node does not have %s; put cluster.tracer.path on a shared file system", trace_dir)
        return None
    return trace_dir


def _end() -> None:
    """The driver is gone: nobody needs this process, whatever it is doing."""
    os._exit(1)
