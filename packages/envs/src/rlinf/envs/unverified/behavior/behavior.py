"""BEHAVIOR-1K: household activities in OmniGibson. Importing this imports no simulator.

Li et al., "BEHAVIOR-1K: A Human-Centered, Embodied AI Benchmark with 1,000 Everyday Activities and Realistic Simulation" (2024),
arXiv:2403.09227.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlinf.envs.adapters import require_packages
from rlinf.envs.simulator_config import SimulatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior(SimulatorConfig):
    """One activity through `omnigibson.Environment`. Written to its documented API; never run against the real package here.

    OmniGibson is one simulator per process (Isaac Sim, an NVIDIA GPU), so `num_envs` is 1: run several in env servers. Its reset
    goes back to the activity's cached scene and takes no seed; another scene is another `instance`. Actions are the robot's own,
    flattened; `states` is its `proprio`. The first camera becomes `main_images`, the others `extra_view_images`.
    """

    steps: ClassVar[int] = 2000
    activity: str = "turning_on_radio"
    instance: int = 0
    """Which cached scene of the activity (`activity_instance_id`)."""
    scene: str = "house_single_floor"
    robot: str = "R1Pro"
    cameras: tuple[str, ...] = ("robot_r1:zed_link:Camera:0", "robot_r1:left_realsense_link:Camera:0")
    """Names of the robot's cameras in its observation."""
    name: str = "robot_r1"
    """The name of the robot in the observation."""
    description: str | None = None
    """The task in words; the activity's name if None."""
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sections of OmniGibson's configuration that replace ours, such as `robots`."""

    def check(self, place: str) -> None:
        how = "Install github.com/StanfordVL/BEHAVIOR-1K in its own interpreter: setup.sh --omnigibson --bddl --dataset."
        require_packages("omnigibson", place=place, how=how)
