"""What the steps of recorded episodes are worth: how soon the task was solved, or that it was not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.offline import OfflineEpisode


def is_solved(episode: OfflineEpisode) -> bool:
    """Whether the task was solved: in any step, or, where that is not recorded, whether the task itself ended the episode."""
    return bool(np.any(episode.terminated if episode.success is None else episode.success))


def solved_of(episodes: Iterable[OfflineEpisode]) -> Iterator[OfflineEpisode]:
    """Those of which critics of progress learn: how far a task got is known where it was solved in the end."""
    return filter(is_solved, episodes)


def longest_of_tasks(episodes: Sequence[OfflineEpisode]) -> dict[str, int]:
    """The steps of the longest episode of each task, by its words."""
    found: dict[str, int] = {}
    for episode in episodes:
        found[episode.task] = max(len(episode), found.get(episode.task, 0))
    return found


def step_rewards(steps: int, *, solved: bool, longest: int, failure_penalty: float) -> NDArray[np.float32]:
    """The reward of each step of an episode, so that returns lie in [−1, 0].

    r_t = −1 / (L (1 + C)) before the last step;   r_T = 0 if the task was solved, and −C / (1 + C) if it was not

    Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025), eq. 5 and what follows it, arXiv:2511.14759: minus the
    steps that remain, over the longest episode of the task, and a penalty for failure, here in units of that episode.

    Args:
        steps: T, at least 1.
        solved: whether the task was solved.
        longest: L ≥ T.
        failure_penalty: C ≥ 0.

    Returns:
        `[T]`.
    """
    rewards = np.full(steps, -1.0 / longest)
    rewards[-1] = 0.0 if solved else -failure_penalty
    return (rewards / (1.0 + failure_penalty)).astype(np.float32)


def rewards_of(episodes: Sequence[OfflineEpisode], *, failure_penalty: float) -> list[NDArray[np.float32]]:
    """The reward of each step, `[T]` of each episode, by the longest of its task among them; see `step_rewards`."""
    longest = longest_of_tasks(episodes)
    return [
        step_rewards(len(each), solved=is_solved(each), longest=longest[each.task], failure_penalty=failure_penalty)
        for each in episodes
    ]


def returns_of(episodes: Sequence[OfflineEpisode], *, failure_penalty: float) -> list[NDArray[np.float32]]:
    """The undiscounted sum of rewards from each step on, `[T]` of each episode; see `rewards_of`."""
    return [reward[::-1].cumsum()[::-1].copy() for reward in rewards_of(episodes, failure_penalty=failure_penalty)]
