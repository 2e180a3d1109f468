"""Our environments in the hands of other libraries: Gymnasium's autoreset, and a single `gymnasium.Env`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.core.protocols import EnvConfig
from rlinf.core.random import keyed_seed
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import EpisodeInfos, Infos, Step, episode_seeds, reset_rows

_MAX_SEED = 2**31


def with_autoreset(env: VectorEnv[Any, Any, Any], mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> VectorEnv[Any, Any, Any]:
    """One of our vector environments as other libraries expect it: an episode that ended is reset inside `step`.

    The conventions are Gymnasium's:

    - SAME_STEP: the observation is the next episode's; `infos["final_obs"]` and `infos["final_info"]` hold what the episode ended
      with, where `infos["_final_obs"]`.
    - NEXT_STEP: the step after the end ignores the action and answers with the next episode's first observation, reward 0.

    `infos["episode"]` has `r` (return) and `l` (steps), too, as `RecordEpisodeStatistics` would. Each reset's seed follows from the
    seeds of the last `reset`, the environment and how many episodes it has had since, so that a run can be repeated.

    In NEXT_STEP an environment that is being reset stands still while the others move. Ours all move in a step, so it takes a
    step, too, and is reset once more, with the same seed: an episode costs two resets and a step, in SAME_STEP one reset.

    Args:
        env: without autoreset, with resets that depend on their seed alone.
        mode: NEXT_STEP or SAME_STEP.

    Raises:
        ConfigError: another mode, or an environment that has an autoreset already.
    """
    if env.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED:
        raise ConfigError("env", "expected an environment without autoreset", "Give one that rlinf.envs made.")
    if mode is AutoresetMode.SAME_STEP:
        return _SameStep(env, mode)
    if mode is AutoresetMode.NEXT_STEP:
        return _NextStep(env, mode)
    raise ConfigError("mode", f"expected NEXT_STEP or SAME_STEP, found {mode}", "Without autoreset, use the environment as it is.")


def as_single_env(
    env: VectorEnv[Any, Any, Any] | EnvConfig,
    *,
    max_episode_steps: int | None = None,
    ignore_terminations: bool = False,
    render: bool = False,
) -> gymnasium.Env[Any, Any]:
    """One of our environments as a `gymnasium.Env`.

    Args:
        env: a vector environment of one, or the configuration of a registered environment.
        max_episode_steps: for a configuration: steps after which an episode is truncated; its own limit if None.
        ignore_terminations: for a configuration: an episode goes on after it terminated, until it is truncated.
        render: for a configuration: `render()` gives frames.

    Raises:
        ConfigError: a vector environment of several.
    """
    settings: dict[str, Any] = {"ignore_terminations": ignore_terminations, "render": render}
    vector: Any = env if isinstance(env, VectorEnv) else env.make(1, max_episode_steps=max_episode_steps, **settings)
    if vector.num_envs != 1:
        raise ConfigError("env", f"expected a vector environment of one, found {vector.num_envs}", "Make it with num_envs=1.")
    return _Single(vector)


class _Autoreset(Wrapper):
    """What both modes share: the seeds of the resets that nobody asks for."""

    def __init__(self, env: VectorEnv[Any, Any, Any], mode: AutoresetMode) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "autoreset_mode": mode}
        self._first = [0] * env.num_envs
        self._episodes = np.zeros(env.num_envs, np.int64)
        self._ended = np.zeros(env.num_envs, np.bool_)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes, in all environments or where `options["reset_mask"]` says so; drawn seeds are remembered."""
        options = dict(options or {})
        if seed is None:
            seed = options.pop("seed", None)
        seeds = episode_seeds(seed, self.num_envs)
        result: tuple[Any, Infos] = self.env.reset(seed=seeds, options=options)
        fresh = reset_rows(options, self.num_envs)
        self._first = [s if new else old for s, new, old in zip(seeds, fresh, self._first, strict=True)]
        self._episodes[fresh] = 0
        self._ended[fresh] = False
        return result

    def _restart(self, mask: NDArray[np.bool_]) -> Any:
        """All observations, after the environments in `mask` began their present episode."""
        numbers = zip(self._first, self._episodes.tolist(), strict=True)
        seeds = [keyed_seed(first, "autoreset", episode) % _MAX_SEED for first, episode in numbers]
        observation, _ = self.env.reset(seed=seeds, options={"reset_mask": mask.copy()})
        return observation


class _SameStep(_Autoreset):
    def step(self, actions: Any) -> Step:
        """One step; what ended is reset within it."""
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        ended = terminated | truncated
        told = _told(infos, ~ended)
        if ended.any():
            final = np.full(self.num_envs, None, np.object_)
            for i in np.flatnonzero(ended):
                final[i] = {key: array[i] for key, array in observation.items()}
            told.update(final_obs=final, _final_obs=ended, final_info=_told(infos, ended), _final_info=ended)
            self._episodes += ended
            observation = self._restart(ended)
        return observation, reward, terminated, truncated, told


class _NextStep(_Autoreset):
    def step(self, actions: Any) -> Step:
        """One step; what ended before it is reset instead."""
        still = self._ended.copy()
        if still.any():
            # Reset before the step, as an episode that has ended takes none.
            self._episodes += still
            self._restart(still)
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        if still.any():
            # Once more, with the same seed, as the step has moved these environments, too.
            observation = self._restart(still)
            reward[still] = 0.0
            terminated, truncated = terminated & ~still, truncated & ~still
            infos["_episode"] = infos["_episode"] & ~still
        self._ended = terminated | truncated
        return observation, reward, terminated, truncated, _told(infos, ~still)


def _told(infos: Infos, mask: NDArray[np.bool_]) -> Infos:
    """Our infos as Gymnasium writes them: each with a mask of the environments that it is told of."""
    episode = {**infos["episode"], "r": infos["episode"]["return"], "l": infos["episode"]["episode_len"]}
    told = {"success": infos["success"] & mask, "_success": mask, "episode": episode, "_episode": infos["_episode"]}
    return EpisodeInfos(told)


class _Single(gymnasium.Env[dict[str, Any], Any]):
    """The only environment of a vector; a reset without seed draws one from `np_random`."""

    def __init__(self, vector: Any) -> None:
        self.vector = vector
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.render_mode = vector.render_mode
        self.metadata = {**vector.metadata, "render_modes": ["rgb_array"] if vector.render_mode else []}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Infos]:
        # Seeds `np_random`, from which resets without a seed draw.
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(_MAX_SEED)) if seed is None else seed
        observation, _ = self.vector.reset(seed=chosen, options=options)
        return {key: array[0] for key, array in observation.items()}, {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, Infos]:
        """One step; `info` holds `success` and, at the end, `episode`."""
        observation, reward, terminated, truncated, infos = self.vector.step(np.asarray(action)[None])
        info: Infos = {"success": bool(infos["success"][0])}
        if infos["_episode"][0]:
            info["episode"] = {key: array[0] for key, array in _told(infos, infos["_episode"])["episode"].items()}
        row = {key: array[0] for key, array in observation.items()}
        return row, float(reward[0]), bool(terminated[0]), bool(truncated[0]), EpisodeInfos(info)

    def render(self) -> Any:
        """A frame `[H, W, 3]` uint8.

        Raises:
            ConfigError: the environment was built without images.
        """
        frames = self.vector.render()
        if not frames:
            raise ConfigError("env.render", "the environment was built without images", "Build it with render=True.")
        return frames[0]

    def close(self) -> None:
        self.vector.close()
