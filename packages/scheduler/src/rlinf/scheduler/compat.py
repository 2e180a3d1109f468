"""Names that RLinf's scheduler has, and what stands for them here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import EnumMeta
from typing import Any, Final

from rlinf.core.worker.compat import AbsentAttribute, answers

_ACCELERATOR: Final = (
    "A kind of accelerator is a class that register_accelerator knows; Worker.accelerator_type and NodeInfo.hardware say which one "
    "there is, as a text such as NV_GPU."
)
_ROBOT: Final = (
    "Worker.hardware_infos has what a worker was placed on; the `config` of a robot there has the fields that "
    "cluster.node_groups[i].hardware says."
)
_KIND: Final = "Decorate a dataclass with register_hardware(type): cluster.node_groups[i].hardware.configs is read into it."
_PARTS: Final = (
    "Put each part into a channel under its receiver's key: channel.put(part, key=rank), channel.get(key=rank). Trajectory.split "
    "and Trajectory.concat of rlinf.core part and join rows."
)
_OWN: Final = "Leave it out: what it manages belongs to the Cluster, which no other process is asked for."
_WORK: Final = "Leave it out: with async_op=True a call returns a handle with wait, async_wait, then and done."
_PLACED: Final = (
    "ModelParallelComponentPlacement(cfg, cluster, required=…, optional=…) takes the components that a program launches."
)
_VARIABLES: Final = "Read os.environ: workers inherit the variables of their node, and env_vars of cluster.node_groups."
_ROUTES: Final = "Leave it out: cluster.route says how large tensors travel."
_TRACER: Final = "Set cluster.tracer: {enabled: true}; Cluster.write_trace writes the trace of a run that goes on."

SCHEDULER: Final[Mapping[str, str]] = {
    **dict.fromkeys(("AcceleratorType", "AcceleratorUtil"), _ACCELERATOR),
    **dict.fromkeys(("AsyncChannelCommWork", "AsyncChannelWork", "AsyncCollWork", "AsyncFuncWork", "AsyncRayWork"), _WORK),
    **dict.fromkeys(("AsyncRouteWork", "AsyncWork"), _WORK),
    "ChannelWorker": "Leave it out: Channel.create(…, near=group) says which process has a channel's items; none is made for them.",
    "CollectiveGroupOptions": _ROUTES,
    **dict.fromkeys(("CollectiveManager", "DeviceLockManager", "NetEmulationManager", "NodeManager", "WorkerManager"), _OWN),
    **dict.fromkeys(("PortLock", "PortLockManager"), "Worker.acquire_free_port() and Cluster.find_free_port() give a port."),
    "DeviceLock": "`with worker.device_lock:` gives a worker its devices for itself.",
    **dict.fromkeys(("DOSW1HWInfo", "DualFrankaHWInfo", "FrankaHWInfo", "GimArmHWInfo", "HardwareInfo", "Turtle2HWInfo"), _ROBOT),
    **dict.fromkeys(("Hardware", "NodeHardwareConfig"), _KIND),
    "MultiChannelProcessGroup": _ROUTES,
    **dict.fromkeys(("ModelParallelEvalComponentPlacement", "MultiAgentModelParallelComponentPlacement"), _PLACED),
    "MultiAgentModelParallelEvalComponentPlacement": _PLACED,
    "NodeGroupConfig": "Write cluster.node_groups as lists and mappings; Cluster.get_node_group(label) gives one as it was read.",
    "RobotAutoConfig": _KIND,
    "RolloutSyncMode": "ComponentPlacement.placement_mode says how actor and rollout share devices.",
    "SchedulerWorker": "Set cluster.auto_scheduler: {policy: forecast}; a run's own loop moves the work.",
    "Tracer": _TRACER,
    "WeightedItem": "channel.put(item, weight=…) says what an item counts for in get_batch.",
    "WorkerGroupFuncResult": "It is Handle: wait, async_wait, done, consume_duration and consume_durations are the same.",
    "WorkerMeta": "Leave it out: whatever a method of a Worker raises, SystemExit too, is raised where the group is called.",
    **dict.fromkeys(("CommMapper", "build_recv_plan", "build_route_channel_key", "build_send_key", "build_send_plan"), _PARTS),
    **dict.fromkeys(("decoupled_build_recv_plan", "get_batch_size", "infer_batch_size", "merge_batches", "split_batch"), _PARTS),
    "split_channel_message": _PARTS,
    "get_group_world_size": "WorkerGroup.from_group_name(cls, name).world_size says how many workers a group has.",
}
"""What to say of a name that `rlinf.scheduler` lacks."""

CLUSTER: Final[Mapping[str, str]] = {
    "allocate": "Launch: SomeWorker.create_group(…).launch(cluster, name=…, placement_strategy=…).",
    "get_full_env_var_name": _VARIABLES,
    "get_sys_env_var": _VARIABLES,
    "has_initialized": (
        "Keep the Cluster that you made; Channel.connect(name) and WorkerGroup.from_group_name(cls, name) need none."
    ),
}
"""What to say of an attribute that a `Cluster` lacks."""
answers_of_cluster = answers(CLUSTER)

NODE_INFO: Final[Mapping[str, str]] = {
    "env_vars": "Cluster.get_node_group(label).env_vars has what a node group adds to default_env_vars, by node.",
    "hardware_resources": "NodeInfo.hardware has the node's accelerators and robots.",
    "node_labels": "Cluster.inventory.groups has the node groups by label, each with its nodes.",
    "profiler_backends": "Leave it out: no profiler starts; cluster.tracer records who waited for whom.",
}
"""What to say of an attribute that a `NodeInfo` lacks."""

MODES: Final[Mapping[str, str]] = {
    "AUTO": (
        "No mode stands for cluster.auto_scheduler: placement_mode says how components are placed, such as HYBRID, whether or not "
        "cluster.auto_scheduler: {policy: forecast} moves work at run time; `rlinf plan` chooses a placement before the run."
    ),
}
"""What to say of a mode that `PlacementMode` lacks."""


class Modes(EnumMeta):
    """The class of an enumeration that answers the names of `MODES`: it looks names up by itself, so that `answers` can't."""

    def __getattr__(cls, name: str) -> Any:
        if name in MODES:
            raise AbsentAttribute(f"{cls.__name__}.{name}", "there is no such name here", MODES[name])
        # Python 3.11 finds members only here.
        if name in cls.__members__:
            return cls.__members__[name]
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
