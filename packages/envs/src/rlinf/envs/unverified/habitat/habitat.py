"""Habitat: navigation in scanned buildings. Importing this imports no simulator.

Savva et al., "Habitat: A Platform for Embodied AI Research" (2019), arXiv:1904.01201.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlinf.envs.adapters import require_packages
from rlinf.envs.simulator_config import SimulatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Habitat(SimulatorConfig):
    """A navigation task of Habitat-Lab through `habitat.Env`. Written to its documented API; never run against the package here.

    Actions are numbers, in the order of the task's own action space (`stop`, `move_forward`, `turn_left`, `turn_right` as a rule).
    An episode ends with `stop`, which nothing can follow (`ignore_terminations` is refused), and is a success if Habitat's measure
    `success` says so. `init_id` is the number of an episode of the dataset; without it the seed draws one. Scenes and episodes must
    have been fetched: `habitat_sim.utils.datasets_download`.
    """

    steps: ClassVar[int] = 500
    config: str = "benchmark/nav/objectnav/objectnav_hm3d.yaml"
    """A configuration that `habitat.get_config` finds, or a path."""
    overrides: tuple[str, ...] = ()
    """Hydra's, such as "habitat.dataset.split=val_mini"."""
    states: tuple[str, ...] = ("gps", "compass")
    """Sensors whose numbers become `states`, in order."""
    goal: Literal["object_category", "instruction", "none"] = "object_category"
    """What of the episode becomes `task_descriptions`: its category, its instruction (VLN), or nothing."""
    reward: Literal["sparse", "progress"] = "sparse"
    """`sparse`: 1 for a success. `progress`: in addition by how many metres the step came nearer (measure `distance_to_goal`)."""

    def check(self, place: str) -> None:
        how = "Install it: conda install habitat-sim -c conda-forge -c aihabitat, then pip install habitat-lab."
        require_packages("habitat", "habitat_sim", place=place, how=how)
