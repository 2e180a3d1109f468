"""Evaluation: a protocol's work-list, played on any number of environments with the same result for each episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.arrays import as_numpy
from rlinf.core.errors import ConfigError, ContractError, ShapeError
from rlinf.core.evaluation import EpisodeKey, EpisodeResult, EvalProtocol, EvalReport
from rlinf.core.random import keyed_generator
from rlinf.envs.spaces import bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whose decision is asked for, and when."""

    episode: EpisodeKey
    """A policy with a memory keeps it by `episode.number`."""
    step: int
    """Control steps since the episode began; 0 is the first decision."""
    slot: int
    """Which environment plays it. Only for looking into a simulator: noise keyed by it makes results depend on `num_envs`."""

    def generator(self, component: str = "policy") -> np.random.Generator:
        """Random numbers of this episode and step, whichever environment plays it."""
        return keyed_generator(self.episode.seed, component, *self.episode.words, self.step)


Decide = Callable[[Mapping[str, Any], Sequence[Turn]], Any]
"""A policy: from observations by key `[M, *]` (arrays, or tensors where the environment gives them) and M turns to actions
`[M, K, A]`, K being the protocol's chunk; for K = 1 also `[M, A]`. M is at most `num_envs`: only environments that play an episode
and have no action left are asked."""


def evaluate(
    env: VectorEnv[Any, Any, Any],
    decide: Decide,
    protocol: EvalProtocol,
    *,
    report: Callable[[EpisodeResult], None] | None = None,
) -> EvalReport:
    """Plays every episode of the protocol exactly once.

    An environment that ends an episode is reset to the next one at once. What an environment does when the work-list has run out
    isn't counted.

    Args:
        env: an environment of this package with the protocol's horizon; it stays open.
        decide: the policy; see `Decide`.
        protocol: what is measured.
        report: called with each result as soon as it is there.

    Raises:
        ConfigError: the environment has another horizon, or statistics that are not ours.
        ShapeError: the policy gives actions of another shape.
        ContractError: an episode goes on beyond the horizon, or terminates although the protocol ignores terminations.
    """
    results = play(env, decide, protocol, protocol.work_list(), report=report)
    return EvalReport(protocol=protocol, results=tuple(results))


def play(
    env: VectorEnv[Any, Any, Any],
    decide: Decide,
    protocol: EvalProtocol,
    episodes: Sequence[EpisodeKey],
    *,
    report: Callable[[EpisodeResult], None] | None = None,
) -> list[EpisodeResult]:
    """Plays a share of a protocol's work-list, such as `protocol.work_list()[rank::workers]`; see `evaluate`.

    The results come in the order in which the episodes end; `EvalReport` puts those of all workers together.
    """
    limit = env.metadata.get("max_episode_steps")
    if limit != protocol.horizon:
        remedy = f"Make it with max_episode_steps={protocol.horizon}."
        raise ConfigError("env", f"the protocol's horizon is {protocol.horizon}, the environment's is {limit}", remedy)
    if not episodes:
        return []
    results: list[EpisodeResult] = []
    hall = _Hall(env, protocol, episodes)
    while hall.playing.any():
        hall.decide(decide)
        for result in hall.step():
            results.append(result)
            if report is not None:
                report(result)
    return results


class _Hall:
    """Environments and the episodes that they play now.

    Args:
        env: the environments; all of them are reset.
        protocol: says how episodes start and what may be.
        episodes: at least one.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], protocol: EvalProtocol, episodes: Sequence[EpisodeKey]) -> None:
        self._env = env
        self._protocol = protocol
        self._waiting = list(reversed(episodes))
        n = env.num_envs
        # An environment without an episode of its own plays another's again, which isn't counted.
        self._episodes = [self._waiting.pop() if self._waiting else episodes[0] for _ in range(n)]
        self.playing = np.arange(n) < len(episodes)
        self._steps = np.zeros(n, np.int64)
        self._plans: list[list[NDArray[Any]]] = [[] for _ in range(n)]
        space = cast("Any", env).single_action_space
        low, high = bounds(space, "env.action")
        self._rest = np.clip(np.zeros_like(low), low, high)
        self._observation = self._reset(np.ones(n, np.bool_))

    def decide(self, decide: Decide) -> None:
        """Asks the policy for those that play and have no action left."""
        rows = [i for i in np.flatnonzero(self.playing).tolist() if not self._plans[i]]
        if not rows:
            return
        turns = [Turn(episode=self._episodes[i], step=int(self._steps[i]), slot=i) for i in rows]
        seen = {key: value[rows] for key, value in self._observation.items()}
        actions = as_numpy(decide(seen, turns))
        chunk = self._protocol.chunk
        if chunk == 1 and actions.shape == (len(rows), *self._rest.shape):
            actions = actions[:, None]
        wanted = (len(rows), chunk, *self._rest.shape)
        if actions.shape != wanted:
            raise ShapeError("decide", f"expected actions [M, K, A] = {list(wanted)}, found {list(actions.shape)}")
        for i, plan in zip(rows, actions, strict=True):
            self._plans[i] = list(plan)

    def step(self) -> list[EpisodeResult]:
        """One control step of all; those whose episode ended start the next one, and the results are returned."""
        actions = np.stack([plan.pop(0) if plan else self._rest for plan in self._plans])
        self._observation, _, terminated, truncated, infos = self._env.step(actions)
        self._steps += 1
        ended = as_numpy(terminated) | as_numpy(truncated)
        self._check(as_numpy(terminated), ended, infos)
        results = [self._result(i, infos["episode"]) for i in np.flatnonzero(ended & self.playing).tolist()]
        if ended.any():
            self._start(ended)
        return results

    def _start(self, ended: NDArray[np.bool_]) -> None:
        """The next episodes where one ended; an environment for which none is left plays its last one again, uncounted."""
        for i in np.flatnonzero(ended).tolist():
            self._plans[i] = []
            if not self._waiting:
                self.playing[i] = False
            elif self.playing[i]:
                self._episodes[i] = self._waiting.pop()
        if self.playing.any():
            self._observation = self._reset(ended)

    def _reset(self, mask: NDArray[np.bool_]) -> Any:
        options: dict[str, Any] = {} if mask.all() else {"reset_mask": mask}
        if self._protocol.tasks:
            options["task"] = [episode.task for episode in self._episodes]
        if self._protocol.initial_states == "id":
            options["init_id"] = [episode.init_id for episode in self._episodes]
        # Gymnasium's base class is typed for one seed; its vector environments take one for each.
        observation, _ = cast("Any", self._env).reset(seed=[episode.env_seed for episode in self._episodes], options=options)
        self._steps[mask] = 0
        return observation

    def _check(self, terminated: NDArray[np.bool_], ended: NDArray[np.bool_], infos: Mapping[str, Any]) -> None:
        if infos.get("episode") is None or infos.get("_episode") is None:
            raise ConfigError("env", "infos holds no statistics of episodes", "Wrap it in EpisodeStatistics and Guard.")
        late = np.flatnonzero(~ended & (self._steps >= self._protocol.horizon)).tolist()
        if late:
            raise ContractError("env.step", f"environments {late} go on after {self._protocol.horizon} steps, the horizon")
        if self._protocol.termination == "horizon" and terminated.any():
            where = np.flatnonzero(terminated).tolist()
            problem = f"environments {where} terminated, which the protocol ignores"
            raise ContractError("env.step", problem, "Make the environment with ignore_terminations=True.")

    def _result(self, slot: int, episode: Mapping[str, NDArray[Any]]) -> EpisodeResult:
        return EpisodeResult(
            episode=self._episodes[slot],
            success_once=bool(episode["success_once"][slot]),
            success_at_end=bool(episode["success_at_end"][slot]),
            episode_return=float(episode["return"][slot]),
            episode_len=int(episode["episode_len"][slot]),
        )
