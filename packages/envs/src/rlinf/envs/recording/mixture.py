"""An expert that acts in place of the policy now and then, and says at every step what it would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.capabilities import HasExpert
from rlinf.core.config import expect_range
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.core.random import keyed_generator
from rlinf.envs.recording.episode import Episode
from rlinf.envs.recording.wrapper import RecordEpisodes
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.interventions import Interventions


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMixing:
    """See `ExpertMixture`; it stands nearest to the simulator, as the expert's actions are in its units."""

    training_only: ClassVar[bool] = True

    def wrap(self, env: VectorEnv[Any, Any, Any], name: str) -> ExpertMixture:
        return ExpertMixture(env)


class ExpertMixture(Wrapper):
    """Mixes the actions of a policy with those of the environment's own expert, and keeps the episodes for whoever takes them.

        πᵢ = βᵢ π* + (1 − βᵢ) π̂ᵢ

    Whose action is executed is drawn for each control step, from the seed of the episode; what the expert would do is kept of each
    step. Ross, Gordon & Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online Learning" (2011),
    algorithm 3.1, arXiv:1011.0686.

    Args:
        env: an environment of this package, whose `unwrapped` has `expert_actions`.

    Raises:
        ConfigError: it has no expert.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._share, self._kept = _ExpertShare(env), _Kept()
        # The recording is outside of the interventions, whose infos say who acted.
        super().__init__(RecordEpisodes(Interventions(env, self._share), self._kept))

    def mix_expert(self, beta: float) -> None:
        expect_range("beta", beta, 0.0, 1.0)
        # Kept only from here on: in a run that never asks they would fill the memory.
        self._share.beta, self._kept.wanted = beta, True

    def take_episodes(self) -> list[OfflineEpisode]:
        taken, self._kept.episodes = self._kept.episodes, []
        return [episode.recorded(-1 if episode.seed is None else episode.seed) for episode in taken]


class _ExpertShare:
    """An `InterventionSource`: the expert acts in a share `beta` of the steps, and what it would do is known of each."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        expert = env.unwrapped
        if not isinstance(expert, HasExpert):
            problem = f"{type(expert).__name__} has no scripted expert (expert_actions)"
            raise ConfigError("env", problem, "Choose an environment that has one.")
        self._expert = expert
        # One stands for all until `begin`, before which no step is taken.
        self._draws = [np.random.default_rng(0)] * env.num_envs
        self.beta = 0.0

    def begin(self, seeds: Sequence[int], fresh: NDArray[np.bool_]) -> None:
        """Random numbers of their own for the episodes that begin."""
        for row in np.flatnonzero(fresh).tolist():
            self._draws[row] = keyed_generator(seeds[row], "expert acts")

    def decide(self, actions: NDArray[Any], active: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """What the expert would do, and where it does it."""
        # Drawn whatever β is, so that with another β the later steps of an episode have the same numbers.
        acts = [of_row and draw.random() < self.beta for of_row, draw in zip(active, self._draws, strict=True)]
        return np.asarray(self._expert.expert_actions(), actions.dtype), np.array(acts)


class _Kept:
    """A writer that keeps episodes in memory, from when on somebody wants them."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.wanted = False

    @property
    def count(self) -> int:
        return len(self.episodes)

    def write(self, episode: Episode) -> None:
        if self.wanted:
            self.episodes.append(episode)

    def close(self) -> None:
        self.episodes = []
