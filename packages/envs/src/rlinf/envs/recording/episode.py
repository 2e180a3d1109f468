"""One episode, and what can write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.offline import OfflineEpisode


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A complete episode of T steps."""

    observations: Mapping[str, NDArray[Any]]
    """By embodied key, `[T + 1, *]`: what was seen before each action, and the final observation. Without the texts."""
    actions: NDArray[Any]
    """`[T, *]`, as they were given to the environment; those of an expert where there was one."""
    rewards: NDArray[np.float32]
    """`[T]`."""
    terminated: NDArray[np.bool_]
    """`[T]`; true in the last step or nowhere."""
    truncated: NDArray[np.bool_]
    """`[T]`."""
    success: NDArray[np.bool_]
    """`[T]`, whether the task was solved in the state that the action led to."""
    task: str
    """The task in words."""
    seed: int | None
    """The seed of its reset; None if the caller gave none."""
    intervened: NDArray[np.bool_] | None = None
    """`[T]`, whether an expert acted in place of the policy; None where there was no expert."""
    policy_actions: NDArray[Any] | None = None
    """`[T, *]`, what the policy decided, which was executed where `intervened` is false. None where there was no expert."""

    def __len__(self) -> int:
        return len(self.rewards)

    @classmethod
    def of(cls, episode: OfflineEpisode) -> Episode:
        """A recorded episode, to be written again; a final observation that no source kept is the one before it."""
        steps = len(episode)
        seen = episode.observation
        return cls(
            observations={key: of if len(of) > steps else np.concatenate([of, of[-1:]]) for key, of in seen.items()},
            actions=episode.action,
            rewards=episode.reward,
            terminated=episode.terminated,
            truncated=episode.truncated,
            success=np.zeros(steps, np.bool_) if episode.success is None else episode.success,
            task=episode.task,
            seed=None,
            intervened=episode.intervened,
            policy_actions=episode.policy_action,
        )

    def recorded(self, number: int) -> OfflineEpisode:
        """The same as a reader gives it."""
        return OfflineEpisode(
            number=number,
            observation=self.observations,
            action=self.actions,
            reward=self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            success=self.success,
            task=self.task,
            intervened=self.intervened,
            policy_action=self.policy_actions,
        )


class Writer(Protocol):
    """Keeps episodes on disk. What `write` has finished survives the death of the process, as far as its class says."""

    @property
    def count(self) -> int:
        """How many episodes there are, those of earlier writers too."""
        ...

    def write(self, episode: Episode) -> None:
        """Adds an episode."""
        ...

    def close(self) -> None:
        """Completes what was written; a second call does nothing."""
        ...
