"""What became of one entry of a work-list: an episode, or a problem with its responses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from rlinf.core.errors import RLinfError
from rlinf.core.random import keyed_seed

TaskId: TypeAlias = int | str
_SEED_RANGE: Final = 2**31
"""Simulators take seeds of 31 bits."""


def initial_state_seed(seed: int, component: str, *key: int) -> int:
    """The seed of a `reset`, in [0, 2**31), the same in every process."""
    return keyed_seed(seed, component, *key) % _SEED_RANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKey:
    """One line of a work-list: which episode is to be played."""

    number: int
    """Its place in the work-list, from 0."""
    task: TaskId | None
    """What `reset(options={"task": …})` is given; None where there is only one task."""
    init_id: int
    """The initial state, from 0."""
    seed: int
    """That of the protocol, under which the episode is played."""

    @property
    def words(self) -> tuple[int, ...]:
        """Task and initial state as numbers, to key random numbers with; the place in the work-list has no part in it."""
        if self.task is None:
            return (self.init_id,)
        return (self.task if isinstance(self.task, int) else keyed_seed(0, self.task), self.init_id)

    @property
    def env_seed(self) -> int:
        """The seed of `reset`."""
        return initial_state_seed(self.seed, "eval", *self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """How one episode ended."""

    counted: ClassVar[str] = "episodes"

    episode: EpisodeKey | None = None
    """Which one of a work-list it is; None for an episode of training, which is on none."""
    task: TaskId | None = None
    """Which task was played; None where there is only one."""
    success_once: bool | None
    """Whether the task was solved at any step; None where the task knows no success."""
    success_at_end: bool | None
    """Whether it was solved at the last step; None where the task knows no success."""
    episode_return: float
    """The sum of rewards."""
    episode_len: int
    """Control steps."""

    @classmethod
    def of(
        cls, statistics: Mapping[str, Any], env: int, *, knows_success: bool, episode: EpisodeKey | None = None
    ) -> EpisodeResult:
        """The result of the episode that ended in one environment of a vector.

        Args:
            statistics: `infos["episode"]` of the step, by key `[num_envs]`.
            env: which environment.
            knows_success: whether the task says when it is solved.
            episode: which one of a work-list it is.
        """
        numbered = None if "task" not in statistics else int(statistics["task"][env])
        return cls(
            episode=episode,
            task=numbered if episode is None or episode.task is None else episode.task,
            success_once=bool(statistics["success_once"][env]) if knows_success else None,
            success_at_end=bool(statistics["success_at_end"][env]) if knows_success else None,
            episode_return=float(statistics["return"][env]),
            episode_len=int(statistics["episode_len"][env]),
        )

    @property
    def key(self) -> EpisodeKey | None:
        """Which entry of the work-list it is."""
        return self.episode

    def values(self) -> dict[str, float | None]:
        """Its numbers, named as metrics are."""
        return {
            "success_once": self.success_once,
            "success_at_end": self.success_at_end,
            "return": self.episode_return,
            "episode_len": self.episode_len,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemResult:
    """How one problem was answered; each field has an entry for each response."""

    counted: ClassVar[str] = "problems"

    problem: int
    """Its place in its split."""
    success: tuple[bool, ...]
    """Whether it is right."""
    reward: tuple[float, ...]
    """What the reward says."""
    tokens: tuple[int, ...]
    """How long it is."""
    finish: tuple[str, ...]
    """As `Completion.finish`."""

    task: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not self.success or len({len(self.success), len(self.reward), len(self.tokens), len(self.finish)}) > 1:
            raise RLinfError(f"problem {self.problem}", "expected one entry for each response in every field, and a response")

    @property
    def key(self) -> int:
        """Which entry of the work-list it is."""
        return self.problem


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that one of k responses, drawn of `samples` without putting back, is right.

    1 − C(n − c, k) / C(n, k)

    Chen et al., "Evaluating Large Language Models Trained on Code" (2021), eq. 1, arXiv:2107.03374.

    Args:
        samples: n, how many responses there are.
        right: c, how many of them are right.
        k: at most n.
    """
    # Python's whole numbers have no limit, so that only the division rounds.
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)
