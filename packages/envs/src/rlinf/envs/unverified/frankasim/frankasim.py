"""FrankaSim: the MuJoCo Franka tasks of SERL. Importing this imports no simulator.

Luo et al., "SERL: A Software Suite for Sample-Efficient Robotic Reinforcement Learning" (2024), arXiv:2401.16013.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlinf.envs.adapters import require_packages
from rlinf.envs.simulator_config import SimulatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FrankaSim(SimulatorConfig):
    """Lift a cube with a Franka arm. Written to the published source; never run against the real package here.

    A lifted cube ends an episode. Actions `[4]` in [−1, 1]: a motion (x, y, z) and a change of the gripper, positive closes.
    The package needs its own interpreter (mujoco 2.3.7, the old `gym`): run it in the env server.
    """

    steps: ClassVar[int] = 100
    images: bool = False
    """`main_images` and `wrist_images` `[128, 128, 3]`; without them, `states` has the block's position."""

    def check(self, place: str) -> None:
        how = "Install it in its own interpreter: pip install git+https://github.com/rail-berkeley/serl#subdirectory=franka_sim."
        require_packages("franka_sim", "gym", place=place, how=how)
