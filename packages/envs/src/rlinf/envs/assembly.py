"""From single environments to the vector environment that the contract asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from rlinf.core.config import expect_at_least
from rlinf.core.envs.chunks import MaskedActions
from rlinf.core.envs.failures import EnvPlace, locate
from rlinf.envs.rendering.on_demand import DrawsOnDemand, ImagesOnDemand
from rlinf.envs.wrappers.contract import ROW_OPTIONS, EnforceContract
from rlinf.envs.wrappers.episodes import EpisodeStatistics, Infos, reset_rows
from rlinf.envs.wrappers.video import Camera, Frame, RecordVideo, Shot

logger = logging.getLogger("rlinf.envs")

Task = gymnasium.Env[Any, Any]
"""A single environment whose observations are a dict by embodied key and whose `info` holds nothing but `success`.

Its `reset` gets a seed always, and in `options` its own `task` and `init_id`, each only if it was asked for and only if the
environment's `metadata["reset_options"]` names it; otherwise `options` is None.
"""

T = TypeVar("T", bound=Task)


def assemble(
    tasks: Sequence[Callable[[], Task]],
    *,
    max_episode_steps: int,
    camera: Camera | None,
    vector: type[SequentialVectorEnv] | None = None,
) -> VectorEnv[Any, Any, Any]:
    """Steps single environments one after the other, in this process.

        SequentialVectorEnv  →  EpisodeStatistics  →  EnforceContract  →  RecordVideo (only with a camera)

    Args:
        tasks: one factory for each environment.
        max_episode_steps: steps after which an episode is truncated.
        camera: what `render` and videos show; None costs nothing.
        vector: what steps them, such as one with an expert; None for `SequentialVectorEnv`.

    Raises:
        ConfigError: there is no environment, or no step.
    """
    # Gymnasium asks the first one what they are like.
    expect_at_least("num_envs", len(tasks), 1)
    env = EnforceContract(EpisodeStatistics((vector or SequentialVectorEnv)(tasks), max_episode_steps))
    return env if camera is None else RecordVideo(env, camera)


def assemble_filmed(
    build: Callable[[], T],
    num_envs: int,
    *,
    max_episode_steps: int,
    frame: Callable[[T], Frame] | None,
    schematic: str | None,
    vector: type[SequentialVectorEnv] | None = None,
) -> VectorEnv[Any, Any, Any]:
    """`assemble` of environments of one kind, which are filmed by what they draw themselves, or else as schematics.

    Args:
        build: makes one of them.
        num_envs: at least 1.
        max_episode_steps: steps after which an episode is truncated.
        frame: what one of them sees, `[H, W, 3]`; None where nothing is filmed, or nothing can be drawn.
        schematic: the task that is drawn where there is no `frame`; None where nothing is filmed.
        vector: as in `assemble`.
    """
    tasks: list[T] = []

    def task() -> Task:
        tasks.append(build())
        return tasks[-1]

    camera: Camera | None = None
    if frame is not None:

        def filmed(shot: Shot) -> Frame:
            return frame(tasks[shot.index])

        camera = filmed
    elif schematic is not None:
        from rlinf.envs.rendering._schematic import schematic_camera

        camera = schematic_camera(schematic)
    return assemble([task] * num_envs, max_episode_steps=max_episode_steps, camera=camera, vector=vector)


class SequentialVectorEnv(SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv` without autoreset, with row options and masked actions.

    - Gymnasium hands the whole reset options to every environment; here environment `i` gets
      `{"task": task[i], "init_id": init_id[i]}`, without what is None.
    - `MaskedActions` step only the environments that they name; the others keep their observation, and their reward is 0.
    - Environments that can (`DrawsOnDemand`) draw no images in a step that isn't `seen`. One that stands still afterwards is drawn
      in the next step that is.
    - What an environment raises says which one it was (`rlinf.core.envs.failures`).

    Args:
        tasks: one factory for each environment.
    """

    # Gymnasium types these for one space and keeps the last three private; both are what this class is about.
    envs: Any
    _env_obs: Any
    _autoreset_envs: Any

    def __init__(self, tasks: Sequence[Callable[[], Task]]) -> None:
        super().__init__(tasks, autoreset_mode=AutoresetMode.DISABLED)  # pyright: ignore[reportUnknownMemberType]
        self._numbered = [_Numbered(env, number, _images_of(env)) for number, env in enumerate(self.envs)]
        draws = any(env.images is not None for env in self._numbered)
        self.metadata = {**self.metadata, "masked_actions": True, "unseen_steps": draws}

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes; see `EnforceContract.reset`, which has made lists of all options."""
        given = dict(options or {})
        for i in np.flatnonzero(~reset_rows(options, self.num_envs)):
            self._env_obs[i] = self._numbered[i].refreshed(self._env_obs[i])
        columns: dict[str, Sequence[Any]] = {key: given.pop(key) for key in ROW_OPTIONS if key in given}
        # Gymnasium's loops go over `self.envs`, so a stand-in for each environment changes what one call does to it.
        envs = self.envs
        self.envs = [
            _WithRowOptions(env, {key: column[i] for key, column in columns.items()}) for i, env in enumerate(self._numbered)
        ]
        try:
            return super().reset(seed=seed, options=given)
        finally:
            self.envs = envs

    def step(self, actions: Any) -> Any:
        """One step of every environment, or of those that are named."""
        envs, numbered = self.envs, self._numbered
        try:
            if isinstance(actions, MaskedActions):
                actions, active, seen = actions.actions, actions.active, actions.seen
                self._look(np.ones(self.num_envs, np.bool_) if seen is None else seen)
                rows = zip(numbered, self._env_obs, active, strict=True)
                self.envs = [env if on else _StandingStill(env.refreshed(last)) for env, last, on in rows]
                # Gymnasium refuses to step an environment that has ended; those that have are not stepped.
                self._autoreset_envs = self._autoreset_envs & active
            else:
                self.envs = numbered
            return super().step(actions)
        finally:
            self.envs = envs
            self._look(np.ones(self.num_envs, np.bool_))

    def _look(self, seen: NDArray[np.bool_]) -> None:
        """Says of each environment `[N]` whether somebody looks at its images from now on."""
        for env, wanted in zip(self._numbered, seen, strict=True):
            if env.images is not None:
                env.images.wanted = bool(wanted)


def _images_of(task: Task) -> ImagesOnDemand | None:
    return task.images_on_demand if isinstance(task, DrawsOnDemand) else None


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Stands for an environment in a call, and says which one it is where it raises."""

    env: Task
    number: int
    images: ImagesOnDemand | None
    """None if it can't leave them out of a step."""

    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Infos]:
        try:
            return self.env.reset(seed=seed, options=options)
        except Exception as error:
            locate(error, EnvPlace(env=self.number))
            raise

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Infos]:
        try:
            return self.env.step(action)
        except Exception as error:
            locate(error, EnvPlace(env=self.number))
            raise

    def refreshed(self, observation: Any) -> Any:
        """The observation that it made last, with the images of its state if somebody looks."""
        try:
            return observation if self.images is None else self.images.refresh(observation)
        except Exception as error:
            locate(error, EnvPlace(env=self.number))
            raise


@dataclass(frozen=True, slots=True)
class _WithRowOptions:
    """Stands for an environment while all are reset, and knows the options that are its own."""

    env: _Numbered
    given: Mapping[str, Any]

    def reset(self, *, seed: int | None, options: object) -> tuple[Any, Infos]:
        wanted = {key: value for key, value in self.given.items() if value is not None}
        return self.env.reset(seed=seed, options=wanted or None)


@dataclass(frozen=True, slots=True)
class _StandingStill:
    """Stands for an environment that takes no step."""

    observation: Any

    def step(self, action: object) -> tuple[Any, float, bool, bool, Infos]:
        return self.observation, 0.0, False, False, {}


class ExpertVectorEnv(SequentialVectorEnv):
    """The same for tasks that know what an expert would do: each has `expert_action() -> [A]`."""

    def expert_actions(self) -> NDArray[np.float32]:
        """`[N, A]`, what the expert does now."""
        return np.stack([env.expert_action() for env in self.envs])
