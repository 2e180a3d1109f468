"""The episodes of a work-list, played in a vector environment: which environment plays which, and where each ended.

reset ──► observations, turns ──► somebody decides ──► step ──► results; the environments that are through start their next episodes
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import EnvSpec
from rlinf.core.data.arrays import as_numpy
from rlinf.core.envs.chunks import ChunkExecution, ChunkStep
from rlinf.core.envs.failures import EnvPlace, env_place, locate
from rlinf.core.errors import ConfigError, ContractError, ShapeError
from rlinf.core.evaluation.protocol import EpisodeProtocol
from rlinf.core.evaluation.results import EpisodeKey, EpisodeResult
from rlinf.core.random import keyed_generator


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


class EpisodePlayer:
    """Plays episodes of a protocol, each exactly once, in environments that are stepped together.

    An environment that ends an episode starts the next one with the next decision of all, so that a policy always sees one batch.
    What an environment does when no episode is left for it isn't counted.

    Args:
        env: a vector environment without autoreset; all of it is reset.
        spec: what is known of it.
        protocol: says how episodes start and what may be.
        episodes: of the protocol's work-list.
        options: for the first reset beside those of the protocol.

    Raises:
        ConfigError: the environment has another limit of steps than the protocol.
    """

    def __init__(
        self,
        env: Any,
        spec: EnvSpec,
        protocol: EpisodeProtocol,
        episodes: Sequence[EpisodeKey],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        limit, wanted = spec.max_episode_steps, protocol.max_episode_steps
        if wanted is not None and wanted != limit:
            problem = f"the protocol has max_episode_steps {wanted}, the environment has {limit}"
            raise ConfigError("env", problem, f"Make it with max_episode_steps={wanted}.")
        self._env, self._spec, self._protocol, self._limit = env, spec, protocol, limit
        shape, n = spec.action.shape, int(env.num_envs)
        # `pop` takes from the end.
        self._waiting = list(reversed(episodes))
        # An environment without an episode of its own plays another's: it can't stand still before its episode has ended.
        self._episodes = [self._waiting.pop() if self._waiting else episodes[0] for _ in range(n if episodes else 0)]
        self._playing: NDArray[np.bool_] = np.asarray(np.arange(n) < len(episodes))
        self._steps = np.zeros(n, np.int64)
        # For environments that play for nobody: 0, or what is nearest to it within the bounds.
        self._rest = self._clipped(np.zeros(shape, np.float32))
        self._observation: Mapping[str, Any] = {}
        self._begun: ChunkExecution | None = None
        if episodes:
            self._reset(np.ones(n, np.bool_), options or {})

    @property
    def done(self) -> bool:
        """Whether everything was played."""
        return not self._playing.any()

    @property
    def turns(self) -> list[Turn]:
        """Those that must be decided for."""
        return [Turn(episode=self._episodes[i], step=int(self._steps[i]), slot=i) for i in np.flatnonzero(self._playing).tolist()]

    @property
    def observations(self) -> dict[str, Any]:
        """By key `[M, *]`, those of the M turns."""
        if self._playing.all():
            return dict(self._observation)
        rows = np.flatnonzero(self._playing).tolist()
        return {key: value[rows] for key, value in self._observation.items()}

    def begin(self, actions: Any) -> None:
        """Carries out the first actions of a step while somebody decides on the rest, which `step` goes on with.

        Until then `turns` and `observations` are those that the decision is asked for.

        Args:
            actions: as for `step`.
        """
        execution = self._begun or ChunkExecution(self._env)
        whole = self._whole(actions)
        with self._located():
            execution.advance(whole)
        self._begun = execution

    def step(self, actions: Any) -> list[EpisodeResult]:
        """Carries out the actions of all turns, clipped to the environment's bounds, and starts the next episodes.

        Args:
            actions: `[M, K, *]`, or `[M, *]` for one control step; an episode that ends inside drops the rest. K may be 0 behind
                what was begun.

        Returns:
            The episodes that ended.

        Raises:
            ShapeError: actions of another shape.
            ContractError: an episode goes on beyond the limit, or terminates although the protocol ignores terminations.
        """
        if self._begun is None or as_numpy(actions).size:
            self.begin(actions)
        step, self._begun = cast("ChunkExecution", self._begun).finish(), None
        playing = self._playing
        self._observation = step.observations
        self._steps += step.executed.sum(axis=1)
        self._check(step)
        statistics, knows = step.infos["episode"], self._spec.knows_success
        ended = np.flatnonzero(step.done & playing).tolist()
        results = [EpisodeResult.of(statistics, i, knows_success=knows, episode=self._episodes[i]) for i in ended]
        for i in ended:
            self._playing[i] = bool(self._waiting)
            self._episodes[i] = self._waiting.pop() if self._waiting else self._episodes[i]
        # When everything was played nobody looks at what a reset shows, which may take seconds.
        if step.done.any() and self._playing.any():
            self._reset(step.done, {})
        return results

    def _whole(self, actions: Any) -> NDArray[Any]:
        """Those of all environments, from those of the turns."""
        chunk, playing = self._chunk(as_numpy(actions)), self._playing
        if playing.all():
            return chunk
        # What `broadcast_to` gives can't be written to; `astype` makes a copy.
        whole = np.broadcast_to(self._rest, (len(playing), *chunk.shape[1:])).astype(chunk.dtype)
        whole[playing] = chunk
        return whole

    def _chunk(self, actions: NDArray[Any]) -> NDArray[Any]:
        shape, turns = self._spec.action.shape, int(self._playing.sum())
        chunk = actions[:, None] if actions.shape == (turns, *shape) else actions
        if chunk.ndim != len(shape) + 2 or chunk.shape[0] != turns or chunk.shape[2:] != shape or not chunk.shape[1]:
            wanted = ", ".join(map(str, (turns, "K", *shape)))
            raise ShapeError("actions", f"expected [M, K, *] = [{wanted}] with K at least 1, found {list(actions.shape)}")
        return self._clipped(chunk)

    def _clipped(self, actions: NDArray[Any]) -> NDArray[Any]:
        low, high = self._spec.action.low, self._spec.action.high
        return actions if low is None or high is None else np.clip(actions, as_numpy(low), as_numpy(high))

    def _reset(self, mask: NDArray[np.bool_], more: Mapping[str, Any]) -> None:
        options: dict[str, Any] = {"reset_mask": mask, **more}
        if self._protocol.tasks:
            options["task"] = [episode.task for episode in self._episodes]
        if self._protocol.initial_states == "id":
            options["init_id"] = [episode.init_id for episode in self._episodes]
        # Who keeps what is played must know which episodes are nobody's.
        if "playing" in self._env.metadata.get("wrapper_options", ()):
            options["playing"] = self._playing.copy()
        with self._located():
            self._observation, _ = self._env.reset(seed=[episode.env_seed for episode in self._episodes], options=options)
        self._steps[mask] = 0

    @contextmanager
    def _located(self) -> Generator[None]:
        """What an environment raises inside says which episode it played."""
        try:
            yield
        except Exception as error:
            env = env_place(error).env
            if env is not None and self._playing[env]:
                episode = self._episodes[env]
                locate(error, EnvPlace(episode=episode.number))
                error.add_note(f"in episode {episode.number} of the protocol, with seed {episode.env_seed}")
            raise

    def _check(self, step: ChunkStep) -> None:
        late = np.flatnonzero(~step.done & (self._steps >= self._limit)).tolist()
        if late:
            raise ContractError("env.step", f"environments {late} go on after {self._limit} steps, the limit of an episode")
        if self._protocol.ignore_terminations and step.terminated.any():
            where = np.flatnonzero(step.terminated.any(axis=1)).tolist()
            problem = f"environments {where} terminated, which the protocol ignores"
            raise ContractError("env.step", problem, "Make the environment with ignore_terminations=True.")
