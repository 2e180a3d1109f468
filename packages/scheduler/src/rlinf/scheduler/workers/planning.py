"""What a launch asks for, checked before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlinf.core.errors import ConfigError, DuplicateName
from rlinf.scheduler.hardware import Inventory
from rlinf.scheduler.placement import PlacementStrategy, ProcessPlan
from rlinf.scheduler.placement.strategies import everywhere
from rlinf.scheduler.workers.group import check_methods
from rlinf.scheduler.workers.launching import LaunchOptions, check_name
from rlinf.scheduler.workers.supervisor import Supervisor

LaunchPlan = tuple[Sequence[ProcessPlan], Supervisor, LaunchOptions]
"""Where the processes of a group go, what happens when one fails, and how they run."""


def plan_launch(
    worker: type[Any],
    name: str,
    inventory: Inventory,
    taken: Collection[str],
    *,
    placement_strategy: PlacementStrategy | None = None,
    supervisor: Supervisor | Mapping[str, Any] | None = None,
    **options: Any,
) -> LaunchPlan:
    """Reads the arguments of `Cluster.launch`.

    Raises:
        ConfigError: the name, the class or an option can't be used.
        DuplicateName: there is a group of that name.
        PlacementError: the cluster lacks what the strategy names.
    """
    check_name(name)
    if name in taken:
        remedy = "End it with its shutdown(), or name another."
        raise DuplicateName(f"group '{name}'", "this cluster has a group of that name", remedy)
    check_methods(worker, f"group '{name}'")
    chosen = LaunchOptions.read(options, f"group '{name}'")
    if placement_strategy is not None and not isinstance(placement_strategy, PlacementStrategy):
        found = f"expected a placement strategy, found {placement_strategy!r:.80}"
        raise ConfigError(
            f"group '{name}'", found, 'Pass one, such as PackedPlacementStrategy(0, 1) or placement.get_strategy("actor").'
        )
    plans = (placement_strategy or everywhere(inventory)).plan(inventory, place=f"group '{name}'")
    policy = Supervisor(**supervisor) if isinstance(supervisor, Mapping) else supervisor or Supervisor()
    policy.check(worker, f"group '{name}'")
    return plans, policy, chosen
