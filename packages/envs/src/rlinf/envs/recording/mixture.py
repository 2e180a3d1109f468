"""An expert that acts in place of the policy now and then, and says at every step what it would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv

from rlinf.core.arrays import as_numpy
from rlinf.core.capabilities import HasExpert
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.offline import OfflineEpisode
from rlinf.core.random import keyed_generator
from rlinf.envs.recording.episode import Episode
from rlinf.envs.recording.wrapper import RecordEpisodes
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import Infos, MaskedActions, Step, episode_seeds, unmasked


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMixing:
    """See `ExpertMixture`; it stands nearest to the simulator, as the expert's actions are in its units."""

    training_only: ClassVar[bool] = True

    def wrap(self, env: VectorEnv[Any, Any, Any], name: str) -> ExpertMixture:
        """The environment, in which the expert can act."""
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
        self._mixed, self._kept = _Mixed(env), _Kept()
        super().__init__(RecordEpisodes(self._mixed, self._kept))

    def mix_expert(self, beta: float) -> None:
        expect_range("beta", beta, 0.0, 1.0)
        self._mixed.beta, self._kept.wanted = beta, True

    def take_episodes(self) -> list[OfflineEpisode]:
        taken, self._kept.episodes = self._kept.episodes, []
        return [_offline(episode) for episode in taken]


class _Mixed(Wrapper):
    """Executes the expert's actions in a share `beta` of the steps, and tells of them as `RecordEpisodes` wants to know."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        expert = env.unwrapped
        if not isinstance(expert, HasExpert):
            problem = f"{type(expert).__name__} has no scripted expert (expert_actions)"
            raise ConfigError("env", problem, "Choose an environment that has one.")
        self._expert = expert
        self._draws = [np.random.default_rng(0)] * env.num_envs
        self.beta = 0.0

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes, each with random numbers of its own."""
        mask = (options or {}).get("reset_mask")
        seeds = episode_seeds(seed, self.num_envs)
        for row in range(self.num_envs) if mask is None else np.flatnonzero(mask):
            self._draws[row] = keyed_generator(seeds[row], "expert acts")
        result: tuple[Any, Infos] = self.env.reset(seed=seeds, options=options)
        return result

    def step(self, actions: Any) -> Step:
        """One step of every environment, with the expert's action or the one that was given."""
        given, active = unmasked(actions, self.num_envs)
        values = as_numpy(given)
        expert = np.asarray(self._expert.expert_actions(), values.dtype)
        acts = np.array([of_row and draw.random() < self.beta for of_row, draw in zip(active, self._draws, strict=True)])
        executed = np.where(acts.reshape(-1, *[1] * (values.ndim - 1)), expert, values)
        seen, rewards, terminated, truncated, infos = self.env.step(executed if active.all() else MaskedActions(executed, active))
        return seen, rewards, terminated, truncated, {**infos, "intervene_flag": acts, "intervene_action": expert}


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


def _offline(episode: Episode) -> OfflineEpisode:
    return OfflineEpisode(
        number=-1 if episode.seed is None else episode.seed,
        observation=episode.observations,
        action=episode.actions,
        reward=episode.rewards,
        terminated=episode.terminated,
        truncated=episode.truncated,
        success=episode.success,
        task=episode.task,
        intervened=episode.intervened,
        policy_action=episode.policy_actions,
    )
