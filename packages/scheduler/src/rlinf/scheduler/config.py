"""`ClusterConfig`: the `cluster` section of a run's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rlinf.core.cluster.futures import MOST_S
from rlinf.core.config import expect_at_least, expect_range, read
from rlinf.core.errors import ConfigError, each_fault, refuse, with_remedies
from rlinf.scheduler.auto_scheduler import AutoSchedulerConfig
from rlinf.scheduler.memory_size import parse_memory
from rlinf.scheduler.node_groups import NodeGroupConfig
from rlinf.scheduler.transport.routes import RouteChoice
from rlinf.scheduler.virtual import VirtualAccelerators as VirtualAccelerators


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerConfig:
    """Whether the run records who called and fed whom, and how long each waited."""

    enabled: bool = False
    """Record every call and every transfer of an item."""
    path: str | None = None
    """The trace, for https://ui.perfetto.dev; None is `trace.json` in `log_dir`, or in the working directory without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """What `component_placement: auto` and `rlinf plan` go by; see `rlinf.scheduler.planner`."""

    profile: str | None = None
    """The measured costs of the components: a file that `rlinf plan --profile … --write` wrote, a trace, or the folder of a
    traced run."""
    pinned: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Components with a fixed placement, written as in `component_placement`; needed for those on nodes and robots, which `auto`
    never places."""
    memory: str | None = None
    """Memory of a device, such as `80GiB`; None takes what is known of the devices; where nothing is, any memory will do."""
    chunks: int = 1
    """Into how many parts the run divides the items of a step; each part is passed on as soon as it is ready."""
    stages: int = 1
    """Into how many parts the items of components that answer each other are divided, such as `rollout.pipeline_stage_num`."""
    max_lag: int = 0
    """By how many weight versions items may be older than the weights that they train."""

    def __post_init__(self) -> None:
        for name, least in (("chunks", 1), ("stages", 1), ("max_lag", 0)):
            expect_at_least(name, getattr(self, name), least)
        if self.memory is not None:
            parse_memory(self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Where the workers run, and how long anything may wait."""

    backend: Literal["ray", "local"] = "ray"
    """`ray`: one process for each worker. `local`: all workers in this process, in a deterministic order."""
    num_nodes: int = 1
    """How many machines: 1 is the driver's own; more are nodes of a running Ray; 0 is all its nodes."""
    address: str | None = None
    """A running Ray to join; None takes `RAY_ADDRESS`. Without either, one node starts a Ray of its own on the loopback interface,
    and several join the Ray that `ray start` has started on the driver's node."""
    join_timeout_s: float | None = None
    """How long to wait for `num_nodes` nodes; None is `timeout_s`."""
    component_placement: Mapping[str, Any] | Literal["auto"] = field(default_factory=dict[str, Any])
    """`"actor,rollout": 0-1`; see `rlinf.scheduler.placement.grammar`. `auto` lets the planner choose by `planner.profile`."""
    planner: PlannerConfig = PlannerConfig()
    """What `component_placement: auto` goes by."""
    auto_scheduler: AutoSchedulerConfig = field(default_factory=AutoSchedulerConfig)
    """Whether work moves between workers at run time; see `rlinf.scheduler.auto_scheduler`."""
    virtual_accelerators: VirtualAccelerators | None = None
    """Stand-ins for accelerators on each node; None takes the accelerators that the machine has."""
    node_groups: tuple[NodeGroupConfig, ...] = ()
    """Nodes under a label, with their environment and hardware; see `rlinf.scheduler.node_groups`."""
    timeout_s: float = 600.0
    """The default deadline of every wait: get, put, recv, device lock, handle, launch."""
    route: RouteChoice = "auto"
    """How items go between processes of one node: `auto` takes shared memory from a certain size on, `socket` never,
    `shared_memory` always. Between nodes they go over TCP. `gloo` and `nccl` force a process group of torch for large tensors of
    messages, on the CPU and on GPUs; `auto` takes NCCL between GPUs of two workers. See `rlinf.scheduler.transport.routes`."""
    heartbeat_s: float = 30.0
    """After each such time of waiting the driver's log says who waits for what; in the first 30 s of a run already after 3 s. 0:
    never."""
    stopped_grace_s: float = 60.0
    """How long the process of a worker may be stopped, as by SIGSTOP, before the run ends with a `WorkerError`, or its supervisor
    starts it again; the log names it within seconds. 0: any time, up to the `timeout_s` of the wait for it."""
    log_dir: str | None = None
    """Each worker's log goes to `<log_dir>/worker_logs/<group>/rank_<rank>.log`; None writes no files."""
    tracer: TracerConfig = TracerConfig()
    """The flow trace; see `rlinf.scheduler.trace`."""

    def __post_init__(self) -> None:
        expect_at_least("num_nodes", self.num_nodes, 0, "0 is all nodes of the Ray.")
        expect_range("join_timeout_s", self.join_timeout_s, 0.0, MOST_S, open_low=True)
        expect_range("timeout_s", self.timeout_s, 0.0, MOST_S, open_low=True)
        for name, seconds in (("heartbeat_s", self.heartbeat_s), ("stopped_grace_s", self.stopped_grace_s)):
            expect_range(name, seconds, 0.0, open_high=True, remedy="0 is never.")


_ELSEWHERE: Final[Mapping[str, str]] = {
    "cluster.profiling": (
        "Set cluster.tracer: {enabled: true}, which records who waited for whom (`rlinf trace summary RUN`); no profiler starts."
    ),
    "cluster.net_emulation": "Leave it out: no other network is imitated.",
    "cluster.num_gpus_per_node": "Leave it out: devices are found; cluster.virtual_accelerators: {count: 8} stands in for them.",
    "cluster.use_pre_process_policy": "Leave it out: cluster.auto_scheduler decides when work moves.",
    "cluster.use_wait_before_last_iter_policy": "Leave it out: cluster.auto_scheduler decides when work moves.",
}
"""Keys of RLinf that stand for something else here, or for nothing."""


def _no_switch(fault: ConfigError) -> ConfigError:
    """RLinf's `auto_scheduler: true` is a section here."""
    if fault.place != "cluster.auto_scheduler" or not fault.problem.startswith("expected a section"):
        return fault
    return ConfigError(
        fault.place, fault.problem, "Set {policy: forecast} for true; leave it out for false, as nothing moves then."
    )


def read_cluster(section: Mapping[str, Any]) -> ClusterConfig:
    """The `cluster` section, checked.

    Raises:
        ConfigError: with one line for each fault.
    """
    try:
        return read(ClusterConfig, section, place="cluster")
    except ConfigError as error:
        found = with_remedies(each_fault(error), _ELSEWHERE)
        refuse([_no_switch(fault) for fault in found], place=error.place)
        raise
