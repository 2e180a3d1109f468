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

from rlinf.scheduler.ray_cluster._ray import ray  # isort: skip - sets what Ray reads when it is imported
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware import ACCELERATORS, Inventory
from rlinf.scheduler.launching import LaunchOptions
from rlinf.scheduler.logs import LEVEL_VARIABLE
from rlinf.scheduler.machine import LOOPBACK
from rlinf.scheduler.messages.places import Meeting, Place
from rlinf.scheduler.messages.post import address
from rlinf.scheduler.placement import ProcessPlan
from rlinf.scheduler.placement.environment import network_variables, process_environment, process_interpreter
from rlinf.scheduler.ray_cluster._nodes import Nodes
from rlinf.scheduler.ray_cluster._process import RayProcess
from rlinf.scheduler.ray_cluster.endings import adopted, ending, runs, standing
from rlinf.scheduler.ray_cluster.process import Birth, WorkerProcess, actor_options

ENDING_S = 1.0
"""How long the parent of a dead process may take to say how it ended."""
OUT_OF_MEMORY = "the node running low on memory"
"""In what Ray says of a process that its own monitor killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nursery:
    """What the processes of a run have in common."""

    config: ClusterConfig
    inventory: Inventory
    nodes: Nodes
    meeting: Meeting
    folder: Path
    """Of the sockets, and of the notes on how processes ended; on the driver's node."""
    trace_dir: Path | None
    remark: Callable[[], bool]
    """Looks whether one of Ray's own processes has ended, which is the cause then."""


class GroupCradle:
    """Implements `Cradle` for one group."""

    def __init__(
        self,
        nursery: Nursery,
        worker: type[Any],
        group: str,
        plans: Sequence[ProcessPlan],
        options: LaunchOptions,
        before: int,
    ) -> None:
        self._nursery = nursery
        self._worker = worker
        self._group = group
        self._plans = tuple(plans)
        self._options = options
        self._before = f"~{before}" if before else ""
        """Tells its processes from those of groups that had its name before."""
        self._launch = secrets.token_hex(4)
        """Tells the notes of this group from those of one that had its name before."""

    def start(self, plan: ProcessPlan, life: int) -> Any:
        """See `Cradle`."""
        birth = self._birth(plan, life)
        remote: Any = ray.remote(max_restarts=0, **actor_options(self._worker, self._options))(WorkerProcess)
        options = remote.options(
            num_cpus=0,
            num_gpus=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(birth.place.node, soft=False),
            runtime_env=self._runtime(plan, life),
        )
        return options.remote(birth)

    def inquest(self, process: RayProcess, said: str) -> str:
        """See `Cradle`."""
        nursery, plan = self._nursery, self._plans[process.info.rank]
        info = nursery.nodes.infos[plan.node]
        nursery.remark()
        on = f" on {info.label}" if nursery.meeting.networked else ""
        if not self._is_here(plan):
            fate = nursery.nodes.fate(plan.node)
            if fate:
                return f"the process died: {fate}, and with it the process; pid {process.info.pid}"
        how = ending(self._note(plan, process.life), ENDING_S) if self._is_here(plan) else ""
        if not how and self._is_here(plan) and runs(process.info.pid):
            return f"its connection to the driver broke{on}, although the process runs; pid {process.info.pid}"
        if OUT_OF_MEMORY in (said or _what_ray_says(process.actor)):
            how = f"{how or 'killed'}: Ray found its node short of memory"
        return f"the process died{on} ({how or 'killed by a signal, or it exited by itself'}), pid {process.info.pid}"

    def stillborn(self, process: RayProcess) -> str:
        """See `Cradle`."""
        plan = self._plans[process.info.rank]
        how = ending(self._note(plan, process.life), 0.0) if self._is_here(plan) else ""
        if how:
            self._nursery.remark()
        return how

    def kill(self, process: RayProcess) -> None:
        """See `Cradle`. Ray asks a process to end, which one that is stopped does not hear."""
        known = process.lives.get(process.info.pid) == process.life
        if known and self._is_here(self._plans[process.info.rank]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.info.pid, signal.SIGKILL)
        else:
            ray.kill(process.actor)

    def condition(self, process: RayProcess) -> str:
        """See `Cradle`."""
        return standing(process.info.pid) if self._is_here(self._plans[process.info.rank]) else ""

    def _is_here(self, plan: ProcessPlan) -> bool:
        nodes = self._nursery.nodes
        return nodes.infos[plan.node].ray_id == nodes.here

    def _note(self, plan: ProcessPlan, life: int) -> Path:
        return self._nursery.folder / f"{address(self._group, plan.rank)}~{life}-{self._launch}.end"

    def _birth(self, plan: ProcessPlan, life: int) -> Birth:
        nursery = self._nursery
        ip = nursery.nodes.infos[plan.node].node_ip
        return Birth(
            meeting=nursery.meeting,
            place=self._place(address(self._group, plan.rank) + self._before + (f"~{life}" if life else ""), plan.node),
            meeting_ip=ip if _spans_nodes(self._plans) else LOOPBACK,
            group=self._group,
            plan=plan,
            plans=self._plans,
            log_dir=_absolute(nursery.config.log_dir),
            trace_dir=nursery.trace_dir,
            options=self._options,
        )

    def _place(self, me: str, rank: int) -> Place:
        """Where a process of a node listens: beside the driver, or else on a socket without a file, which nobody need remove."""
        meeting, nodes = self._nursery.meeting, self._nursery.nodes
        info = nodes.infos[rank]
        beside = info.ray_id == nodes.here
        path = str(self._nursery.folder / me) if beside else f"\0rlinf-{meeting.run}-{info.ray_id[:8]}-{me}"
        return Place(info.ray_id, path, (info.node_ip, 0) if meeting.networked else None)

    def _runtime(self, plan: ProcessPlan, life: int) -> dict[str, Any]:
        interpreter = process_interpreter(self._nursery.inventory, plan)
        if self._is_here(plan):
            interpreter = adopted(interpreter, self._note(plan, life), os.getpid())
        chosen = {} if interpreter is None else {"py_executable": interpreter}
        return {"env_vars": self._environment(plan), **chosen}

    def _environment(self, plan: ProcessPlan) -> dict[str, str]:
        """What must be set before the process starts: libraries read it when they are loaded."""
        threads, nodes = str(plan.threads), self._nursery.nodes
        variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        for name in ACCELERATORS.names():
            variables[f"RAY_EXPERIMENTAL_NOSET_{ACCELERATORS.get(name).visible_devices}"] = "1"
        if LEVEL_VARIABLE in os.environ:
            variables[LEVEL_VARIABLE] = os.environ[LEVEL_VARIABLE]
        inherited = nodes.inherited(plan.node)
        interface = nodes.infos[plan.node].interface
        variables |= network_variables(inherited, interface, spans_nodes=_spans_nodes(self._plans))
        seen = plan if self._options.isolate_gpu else replace(plan, devices=())
        own = process_environment(self._nursery.inventory, seen, inherited=inherited)
        return {**variables, **nodes.changes(plan.node), **own}


def _what_ray_says(actor: Any) -> str:
    """Of an actor whose process has died."""
    try:
        actor.meet.remote().future().result(ENDING_S)
    except (RayError, TimeoutError) as error:
        return str(error)
    return ""


def _spans_nodes(plans: Sequence[ProcessPlan]) -> bool:
    return len({plan.node for plan in plans}) > 1


def _absolute(folder: str | None) -> str | None:
    return None if folder is None else str(Path(folder).absolute())
