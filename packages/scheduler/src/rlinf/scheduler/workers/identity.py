"""What a worker is told of itself: its ranks, as the environment variables that libraries such as torch read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.core.worker.context import WorkerAddress
from rlinf.scheduler.placement import ProcessPlan


def plan_fields(group: str, plan: ProcessPlan, plans: Sequence[ProcessPlan]) -> dict[str, Any]:
    """The fields of a `WorkerContext` that follow from a placement."""
    return {
        "group": group,
        "rank": plan.rank,
        "world_size": len(plans),
        "devices": plan.devices,
        "threads": plan.threads,
        "node": plan.node,
        "accelerator_type": plan.accelerator_type,
        "hardware": plan.hardware,
    }


def rank_variables(group: str, plan: ProcessPlan, plans: Sequence[ProcessPlan], *, isolated: bool = True) -> dict[str, str]:
    """The environment variables of one rank.

    Args:
        group: the group's name.
        plan: where the rank is.
        plans: where all ranks are.
        isolated: a process sees its own accelerators only, so that each is its first.
    """
    nodes = sorted({other.node for other in plans})
    here = [other.rank for other in plans if other.node == plan.node]
    first = plan.local[0] if plan.devices else here.index(plan.rank)
    ranks = {
        "RANK": plan.rank,
        "WORLD_SIZE": len(plans),
        # Libraries take the device of this number, and an isolated process sees its own as 0.
        "LOCAL_RANK": 0 if isolated else first,
        "LOCAL_WORLD_SIZE": 1 if isolated else len(here),
        "NODE_RANK": nodes.index(plan.node),
        "CLUSTER_NODE_RANK": plan.node,
        "NODE_LOCAL_RANK": here.index(plan.rank),
        "NODE_LOCAL_WORLD_SIZE": len(here),
        "LOCAL_ACCELERATOR_RANK": plan.local[0] if plan.devices else -1,
        "ISOLATE_ACCELERATOR": int(isolated),
    }
    return {
        "GROUP_NAME": group,
        "WORKER_NAME": WorkerAddress(group, plan.rank).get_name(),
        "NODE_GROUP_LABEL": plan.node_group,
        "ACCELERATOR_TYPE": plan.accelerator_type or "NO_ACCEL",
        "LOCAL_HARDWARE_RANKS": ",".join(map(str, plan.local)),
        **{name: str(value) for name, value in ranks.items()},
    }
