"""RoboTwin 2.0: tasks for two arms. Importing this imports no simulator.

Chen et al., "RoboTwin 2.0: A Scalable Data Generator and Benchmark with Strong Domain Randomization for Robust Bimanual Robotic
Manipulation" (2025), arXiv:2506.18088.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlinf.envs.adapters import require_folder, require_packages
from rlinf.envs.simulator_config import SimulatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RoboTwin(SimulatorConfig):
    """One task of RoboTwin with joint targets as actions. Written to the published source; never run against it here.

    Actions: left arm, left gripper, right arm, right gripper, as RoboTwin's `qpos` (radians; grippers 0 closed … 1 open), `[14]`
    for two arms of six joints, within ±π. An action is planned and carried out to its end: a step is many simulation steps.
    `states` are the same numbers as measured. Head camera (`main_images`), left and right wrists (`wrist_images` `[2, H, W, 3]`).
    RoboTwin takes no action after success: `ignore_terminations` is refused.

    RoboTwin works from its source folder: the process's working folder is changed to it during each call, so use the env server.
    Its own evaluation keeps only seeds that its expert solves; this doesn't, so numbers are not comparable with its leaderboard.
    """

    steps: ClassVar[int] = 400
    root: str
    """RoboTwin's source folder, with assets fetched."""
    task: str = "beat_block_hammer"
    task_config: str = "demo_clean"
    """A file of task_config, without .yml."""
    instruction: str | None = None
    """The task in words; its name if None."""

    def check(self, place: str) -> None:
        """Refuses a missing simulator or source folder.

        Raises:
            MissingExtra: what RoboTwin needs is not installed.
            ConfigError: the folder isn't RoboTwin's, or has no such task.
        """
        how = "Run script/_install.sh of RoboTwin's source, in its own interpreter."
        require_packages("sapien", "toppra", "curobo", "yaml", place=place, how=how)
        fetch = "Clone github.com/RoboTwin-Platform/RoboTwin and run script/_download_assets.sh."
        files = ("assets", f"envs/{self.task}.py", f"task_config/{self.task_config}.yml")
        require_folder(self.root, f"{place}.root", fetch, *files)
