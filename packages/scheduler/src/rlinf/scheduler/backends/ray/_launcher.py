"""Where the processes of one group come from: each is a Ray actor in its place, with its environment; and how one ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlinf.core.process import is_running

from rlinf.scheduler.backends.ray._ray import ray  # isort: skip - sets what Ray reads when it is imported
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlinf.scheduler.backends.ray._nodes import Nodes
from rlinf.scheduler.backends.ray._process import RayProcess
from rlinf.scheduler.backends.ray.exits import exit_of, obstacle, supervised
from rlinf.scheduler.backends.ray.process import WorkerProcess, WorkerSpec, actor_options
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware import ACCELERATORS, Inventory
from rlinf.scheduler.machine import LOOPBACK
from rlinf.scheduler.placement import ProcessPlan
from rlinf.scheduler.placement.environment import network_variables, process_environment, process_interpreter
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.transport import address
from rlinf.scheduler.workers.launching import LaunchOptions
from rlinf.scheduler.workers.logs import LEVEL_VARIABLE

ENDING_S = 1.0
"""How long the parent of a dead process may take to say how it ended."""
OUT_OF_MEMORY = "the node running low on memory"
"""In what Ray says of a process that its own monitor killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What the processes of a run have in common."""

    config: ClusterConfig
    inventory: Inventory
    nodes: Nodes
    run_info: RunInfo
    folder: Path
    """Of the sockets, and of the notes on how processes ended; on the driver's node."""
    trace_dir: Path | None
    remark: Callable[[], bool]
    """Looks whether one of Ray's own processes has ended, which is the cause then."""


class GroupLauncher:
    """Implements `ActorLauncher` for one group."""

    def __init__(
        self,
        context: LaunchContext,
        worker: type[Any],
        group: str,
        plans: Sequence[ProcessPlan],
        options: LaunchOptions,
        before: int,
    ) -> None:
        self._context = context
        self._worker = worker
        self._group = group
        self._plans = tuple(plans)
        self._options = options
        self._before = f"~{before}" if before else ""
        """Tells its processes from those of groups that had its name before."""
        self._nonce = secrets.token_hex(4)
        """Tells the notes of this group from those of one that had its name before."""

    def start(self, plan: ProcessPlan, incarnation: int) -> Any:
        spec = self._spec(plan, incarnation)
        remote: Any = ray.remote(max_restarts=0, **actor_options(self._worker, self._options))(WorkerProcess)
        options = remote.options(
            # The placement has been decided: Ray has nothing to count, or to refuse.
            num_cpus=0,
            num_gpus=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(spec.place.node, soft=False),
            runtime_env=self._runtime(plan, incarnation),
        )
        return options.remote(spec)

    def exit_reason(self, process: RayProcess, said: str) -> str:
        context, plan = self._context, self._plans[process.info.rank]
        info = context.nodes.infos[plan.node]
        # If one of Ray's own processes has ended, that is told first.
        context.remark()
        on = f" on {info.label}" if context.run_info.networked else ""
        if not self._is_here(plan):
            failure = context.nodes.failure(plan.node)
            if failure:
                return f"the process died: {failure}; pid {process.info.pid}"
        how = exit_of(self._note(plan, process.incarnation), ENDING_S) if self._is_here(plan) else ""
        if not how and self._is_here(plan) and is_running(process.info.pid):
            return f"its connection to the driver broke{on}, although the process runs; pid {process.info.pid}"
        if OUT_OF_MEMORY in (said or _what_ray_says(process.actor)):
            how = f"{how or 'it was killed'}: Ray found its node short of memory"
        return f"the process died{on} ({how or 'it was killed by a signal, or exited by itself'}), pid {process.info.pid}"

    def failed_start(self, process: RayProcess) -> str:
        plan = self._plans[process.info.rank]
        how = exit_of(self._note(plan, process.incarnation), 0.0) if self._is_here(plan) else ""
        if how:
            self._context.remark()
        return how

    def kill(self, process: RayProcess) -> None:
        """See `ActorLauncher`. Ray asks a process to end, which one that is stopped does not hear."""
        # Until a start has told its id, the one that is known may be that of the start before.
        known = process.incarnations.get(process.info.pid) == process.incarnation
        if known and self._is_here(self._plans[process.info.rank]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.info.pid, signal.SIGKILL)
        else:
            ray.kill(process.actor)

    def condition(self, process: RayProcess) -> str:
        return obstacle(process.info.pid) if self._is_here(self._plans[process.info.rank]) else ""

    def _is_here(self, plan: ProcessPlan) -> bool:
        nodes = self._context.nodes
        return nodes.infos[plan.node].ray_id == nodes.here

    def _note(self, plan: ProcessPlan, incarnation: int) -> Path:
        return self._context.folder / f"{address(self._group, plan.rank)}~{incarnation}-{self._nonce}.end"

    def _spec(self, plan: ProcessPlan, incarnation: int) -> WorkerSpec:
        context = self._context
        ip = context.nodes.infos[plan.node].node_ip
        return WorkerSpec(
            run_info=context.run_info,
            place=self._place(
                address(self._group, plan.rank) + self._before + (f"~{incarnation}" if incarnation else ""), plan.node
            ),
            meeting_ip=ip if _spans_nodes(self._plans) else LOOPBACK,
            group=self._group,
            plan=plan,
            plans=self._plans,
            log_dir=_absolute(context.config.log_dir),
            trace_dir=context.trace_dir,
            options=self._options,
        )

    def _place(self, me: str, rank: int) -> Location:
        """Where a process of a node listens: beside the driver, or else on a socket without a file, which nobody need remove."""
        run_info, nodes = self._context.run_info, self._context.nodes
        info = nodes.infos[rank]
        beside = info.ray_id == nodes.here
        path = str(self._context.folder / me) if beside else f"\0rlinf-{run_info.run}-{info.ray_id[:8]}-{me}"
        return Location(info.ray_id, path, (info.node_ip, 0) if run_info.networked else None)

    def _runtime(self, plan: ProcessPlan, incarnation: int) -> dict[str, Any]:
        interpreter = process_interpreter(self._context.inventory, plan)
        if self._is_here(plan):
            interpreter = supervised(interpreter, self._note(plan, incarnation), os.getpid())
        chosen = {} if interpreter is None else {"py_executable": interpreter}
        return {"env_vars": self._environment(plan), **chosen}

    def _environment(self, plan: ProcessPlan) -> dict[str, str]:
        """What must be set before the process starts: libraries read it when they are loaded."""
        threads, nodes = str(plan.threads), self._context.nodes
        variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        for name in ACCELERATORS.names():
            # Ray would set it to what it has given the actor, which is no accelerator.
            variables[f"RAY_EXPERIMENTAL_NOSET_{ACCELERATORS.get(name).visible_devices}"] = "1"
        if LEVEL_VARIABLE in os.environ:
            variables[LEVEL_VARIABLE] = os.environ[LEVEL_VARIABLE]
        inherited = nodes.inherited(plan.node)
        interface = nodes.infos[plan.node].interface
        variables |= network_variables(inherited, interface, spans_nodes=_spans_nodes(self._plans))
        seen = plan if self._options.isolate_gpu else replace(plan, devices=())
        own = process_environment(self._context.inventory, seen, inherited=inherited)
        # The last one counts: what a node group says stands above what the driver has in its environment.
        return {**variables, **nodes.changes(plan.node), **own}


def _what_ray_says(actor: Any) -> str:
    """Of an actor whose process has died."""
    try:
        # Ray tells what it knows of an actor's end to those who call it only.
        actor.meet.remote().future().result(ENDING_S)
    except (RayError, TimeoutError) as error:
        return str(error)
    return ""


def _spans_nodes(plans: Sequence[ProcessPlan]) -> bool:
    return len({plan.node for plan in plans}) > 1


def _absolute(folder: str | None) -> str | None:
    return None if folder is None else str(Path(folder).absolute())
