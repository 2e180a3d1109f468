"""Groups of environments that start from the same states, for advantages that compare episodes with one another.

Names as in RLinf's configuration: `group_size`, `use_fixed_reset_state_ids`, `use_ordered_reset_state_ids`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.envs.reset_states import ResetStates
from rlinf.core.errors import ConfigError
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import Infos


class GroupReset(Wrapper):
    """Lets `group_size` consecutive environments share one initial state: the k-th episode of each starts from the same.

    An initial state has a number, the *reset-state id*. Which one an episode gets is a function of the seed, the group and the
    number of the episode alone; how long other episodes took changes nothing. A reset that gives a seed starts to count episodes
    at 0. One with a `reset_mask` begins the next episode of those environments; one without begins an episode in all, and brings
    the members of each group to the same number again, the next that none of them had.

        env = GroupReset(env, group_size=8)
        env.reset(seed=0)                                # episode 0
        env.reset(options={"reset_mask": done})          # the next of those that ended
        env.reset()                                      # a new start for all groups

    Where the environment takes a `task`, ids go round the tasks: id `r` of `T` tasks is initial state `r // T` of task `r % T`.

    Args:
        env: inside it an `EnforceContract`; its `metadata["reset_options"]` name `init_id`.
        group_size: environments in a group; it divides their number.
        use_fixed_reset_state_ids: every episode of a group starts from the same state, until `update_reset_state_ids`.
        use_ordered_reset_state_ids: states in order, each once before any comes again, instead of drawn by the seed: with `G`
            groups, the n-th start of group `g` is from id `n G + g`.
        num_init_ids: initial states of a task; as `metadata["init_ids"]` says if None, and without limit if it says nothing.
        first_group: the number of the first group here, where the groups of a run are spread over processes.
        num_groups: groups of the whole run; those here if None.

    Raises:
        ConfigError: the environment has no numbered initial states, or the groups don't come out even.
    """

    passes_unseen_steps: ClassVar[bool] = True

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        group_size: int,
        use_fixed_reset_state_ids: bool = False,
        use_ordered_reset_state_ids: bool = False,
        num_init_ids: int | None = None,
        first_group: int = 0,
        num_groups: int | None = None,
    ) -> None:
        super().__init__(env)
        states = ResetStates.of(env.metadata, num_init_ids)
        if states is None:
            raise ConfigError(
                "env.group_size",
                "this environment has no numbered initial states to share",
                "Use group_size=1 without this wrapper.",
            )
        if group_size < 1 or env.num_envs % group_size:
            problem = f"{env.num_envs} environments can't be split into groups of {group_size}"
            raise ConfigError("env.group_size", problem, f"Take a divisor of {env.num_envs}.")
        own = env.num_envs // group_size
        self._group = first_group + np.arange(env.num_envs) // group_size
        self._groups = first_group + own if num_groups is None else num_groups
        if self._groups < first_group + own:
            problem = f"groups {first_group} to {first_group + own - 1} are here, but there are {self._groups} in all"
            raise ConfigError("env.num_groups", problem, "Count the groups of all processes.")
        self._fixed, self._ordered = use_fixed_reset_state_ids, use_ordered_reset_state_ids
        self._states = states
        self._seed = 0
        self._updates = 0
        self._episode = np.full(env.num_envs, -1)
        self._current = np.full(env.num_envs, -1)

    @property
    def reset_state_ids(self) -> NDArray[np.int64]:
        """`[N]`, the reset-state id of the episode that each environment is in; −1 before the first."""
        return self._current.copy()

    def update_reset_state_ids(self) -> None:
        """Gives every group another state from its next reset on; only fixed ids need it, others change by themselves."""
        self._updates += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Starts episodes; see the class.

        Args:
            seed: one for all groups; from here on episodes are counted from 0.
            options: `reset_mask`, and what the environment knows beside `task` and `init_id`.

        Raises:
            ConfigError: a list of seeds, a seed for a part of the environments, or an option that is set here.
        """
        given = dict(options or {})
        mask: NDArray[np.bool_] | None = given.get("reset_mask")
        self._refuse(seed, given)
        if seed is not None:
            self._seed, self._updates = int(seed), 0
            self._episode = np.full(self.num_envs, -1)
        self._episode = self._next(mask)
        starts = np.full(self.num_envs, self._updates) if self._fixed else self._episode
        ids = np.array([self._id(int(group), int(start)) for group, start in zip(self._group, starts, strict=True)])
        # The others are still in the episodes that they had.
        self._current = ids if mask is None else np.where(mask, ids, self._current)
        given |= self._states.options(ids.tolist())
        # Without a seed: the number of an initial state sets it (`EnforceContract`).
        return self.env.reset(options=given)

    def _next(self, mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """The number of the episode that each environment is in after this reset."""
        if mask is not None:
            return self._episode + mask
        first = self._group[0]
        latest = np.full(self._group[-1] - first + 1, -1)
        np.maximum.at(latest, self._group - first, self._episode)
        return latest[self._group - first] + 1

    def _id(self, group: int, start: int) -> int:
        if self._ordered:
            return self._states.ordered(start, group, self._groups)
        return self._states.drawn(self._seed, group, start)

    def _refuse(self, seed: Any, options: dict[str, Any]) -> None:
        if seed is not None and (not isinstance(seed, (int, np.integer)) or options.get("reset_mask") is not None):
            remedy = "Give a number to a reset of all environments, and no seed to a partial one."
            raise ConfigError("env.reset", f"a group reset has one seed, for all groups, found {seed!r}", remedy)
        for key in ("task", "init_id", "seed"):
            if options.get(key) is not None:
                raise ConfigError("env.reset", f"option '{key}' is set by the group reset", "Leave it out.")
