"""`component_placement: auto`, as a cluster meets it."""

from __future__ import annotations

from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware.inventory import Inventory


def chosen_placement(config: ClusterConfig, inventory: Inventory) -> tuple[ClusterConfig, str]:
    """The configuration with what the planner chooses in place of `auto`, and why; any other as it is, and "".

    Raises:
        ConfigError: there is no profile, or nothing fits.
    """
    if config.component_placement != "auto":
        return config, ""
    # Only here, as it is of no use to a cluster whose placement is written.
    from rlinf.scheduler.planner.recipes import plan_placement
    from rlinf.scheduler.planner.report import told

    planned, plan = plan_placement(config, inventory)
    return planned, told(plan, config.planner.profile or "")
