"""RoboCasa: household tasks in generated kitchens. Importing this imports no simulator.

Nasiriany et al., "RoboCasa: Large-Scale Simulation of Everyday Tasks for Generalist Robots" (2024), arXiv:2406.02523.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlinf.envs.adapters import require_packages
from rlinf.envs.simulator_config import SimulatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RoboCasa(SimulatorConfig):
    """One of RoboCasa's tasks with the PandaOmron robot, through its own Gymnasium ids. Never run against the real package here.

    Actions `[12]` in [−1, 1], in the order of its datasets: base motion (4), control mode (arm below 0.5, base above), change of
    the hand's position (3) and rotation (3), gripper (open below 0.5, closed above). `states` `[16]`: base position and rotation,
    hand relative to the base, gripper. Two side cameras (`main_images` left, `extra_view_images` right) and `wrist_images`.
    """

    steps: ClassVar[int] = 500
    task: str = "PickPlaceCounterToCabinet"
    """A task's class name; 24 GB of kitchens and objects must have been fetched."""
    split: str = "target"
    """Kitchens and objects: `pretrain` or `target`."""
    image_size: int = 256
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of the environment's constructor."""

    def check(self, place: str) -> None:
        how = "Install github.com/robocasa/robocasa from source, then: python -m robocasa.scripts.download_kitchen_assets."
        require_packages("robocasa", "robosuite", place=place, how=how)
