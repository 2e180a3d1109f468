"""Which initial state each episode of training starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlinf.core.envs.reset_states import ResetStates
from rlinf.core.errors import ConfigError
from rlinf.core.evaluation import initial_state_seed
from rlinf.runners.embodied.schema import TrainEnvConfig

PURE: Final = ("seeds", "place", "pure_reset")
"""What of the contract of environments lets an episode start twice from the same state."""


class InitialStates:
    """A function of the seed, the environment group and the number of the episode alone, so that the members of a group agree.

    With `use_fixed_reset_state_ids` all episodes that a group begins in one rollout epoch start from the same state, another one in
    each epoch. With `use_ordered_reset_state_ids` the first episodes of rollout epochs take the numbered states in order, those of
    all groups of epoch e from id e·G on; a further episode in the same epoch starts as the first one of the next epoch will.

    Args:
        train: `env.train`.
        seed: of the run.
        metadata: of the environments.

    Raises:
        ConfigError: states are to be taken in order, and the environment numbers none.
    """

    def __init__(self, train: TrainEnvConfig, seed: int, metadata: Mapping[str, Any]) -> None:
        self._train, self._seed = train, seed
        self._states = ResetStates.of(metadata) if train.use_ordered_reset_state_ids else None
        if train.use_ordered_reset_state_ids and self._states is None:
            problem = f"'{train.env_type}' has no numbered initial states"
            raise ConfigError("env.train.use_ordered_reset_state_ids", problem, "Leave it out: states are drawn by runner.seed.")

    def seeds(self, groups: Sequence[int], numbers: Sequence[int]) -> list[int]:
        """The seed of each environment's reset.

        Args:
            groups: the environment group of each.
            numbers: that of the episode that it begins.
        """
        starts = [self._start(number) if self._train.use_fixed_reset_state_ids else number for number in numbers]
        return [initial_state_seed(self._seed, "env", *key) for key in zip(groups, starts, strict=True)]

    def options(self, groups: Sequence[int], numbers: Sequence[int]) -> dict[str, Any]:
        """What else the reset is given; see `seeds`."""
        if self._states is None:
            return {}
        starts = map(self._start, numbers)
        ids = [self._states.ordered(start, group, self._train.groups) for start, group in zip(starts, groups, strict=True)]
        return self._states.options(ids)

    def _start(self, number: int) -> int:
        # A rollout epoch begins at a multiple of its decisions, and no more episodes than those; see `EnvWorker._begin_epoch`.
        epoch, further = divmod(number, self._train.max_steps_per_rollout_epoch)
        return epoch if self._train.use_fixed_reset_state_ids else epoch + further


def unlike_members(group_size: int, waived: Mapping[str, str]) -> str:
    """What is to be told where the simulator can't start the members of a group from the same state; "" where it can."""
    broken = ", ".join(f"{key} ({waived[key]})" for key in PURE if key in waived)
    if group_size == 1 or not broken:
        return ""
    return (
        f"env.train.group_size: {group_size} environments are to start from the same state, but this simulator does not keep "
        f"{broken}: advantages that compare the rows of a group compare different states"
    )
