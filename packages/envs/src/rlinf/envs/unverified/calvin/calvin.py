"""CALVIN: chains of language goals on a play table. Importing this imports no simulator.

Mees et al., "CALVIN: A Benchmark for Language-Conditioned Policy Learning for Long-Horizon Robot Manipulation Tasks" (2022),
arXiv:2112.03227.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.envs.adapters import require_folder, require_packages
from rlinf.envs.simulator_config import SimulatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Calvin(SimulatorConfig):
    """CALVIN's evaluation: an episode is a chain of subtasks. Written to the published source; never run against it here.

    The reward is 1 for each subtask solved, so that the return is the length of the chain that CALVIN reports ("1/5 … 5/5"), and
    success is the whole chain. `task_descriptions` changes when a subtask is solved; a subtask not solved within `subtask_steps`
    ends the episode. `init_id` is the number of a sequence of CALVIN's own list; without it the seed draws one.

    Actions `[7]` in [−1, 1]: CALVIN's relative motions; more than 0 opens the gripper, anything else closes it. `states` `[15]` as
    CALVIN's `robot_obs`. Cameras: static (`main_images`) and gripper (`wrist_images`).
    """

    dataset: str
    """The folder of a CALVIN dataset, such as task_ABCD_D; its validation/.hydra/merged_config.yaml describes the table."""
    conf: str
    """The folder calvin_models/conf of CALVIN's source, which holds its tasks and annotations."""
    chain: int = 5
    """Subtasks of an episode, the first ones of CALVIN's five."""
    subtask_steps: int = 360
    sequences: int = 1000
    """How long CALVIN's list of sequences is; 1000 for its published numbers."""

    @property
    def episode_steps(self) -> int:
        return self.chain * self.subtask_steps

    def check(self, place: str) -> None:
        """Refuses a missing simulator or dataset.

        Raises:
            MissingExtra: CALVIN is not installed.
            ConfigError: a folder doesn't exist.
        """
        how = "Install github.com/mees/calvin from source (its install.sh), in its own interpreter (Python 3.8)."
        require_packages("calvin_env", "calvin_agent", "hydra", "omegaconf", place=place, how=how)
        fetch = "Fetch it with dataset/download_data.sh of CALVIN's source."
        require_folder(self.dataset, f"{place}.dataset", fetch, "validation/.hydra/merged_config.yaml")
        source = "Name the folder calvin_models/conf of CALVIN's source."
        require_folder(self.conf, f"{place}.conf", source, "callbacks", "annotations")
