"""Episodes: where they end, and what is known of them then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.config import expect_at_least
from rlinf.core.data.arrays import as_numpy, is_tensor
from rlinf.core.envs.chunks import MaskedActions as MaskedActions
from rlinf.core.envs.failures import EnvPlace, env_place, locate
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.envs.wrappers.base import Wrapper

Infos = dict[str, Any]
Step = tuple[Any, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], Infos]


class EpisodeInfos(dict[str, Any]):
    """The `infos` of a step, in which Gymnasium's `RecordEpisodeStatistics` can write its statistics beside ours.

    That wrapper refuses `infos` that contain its key, and its key is where RLinf's users read ours. So `"episode" in infos` and
    `"_episode" in infos` are False until somebody writes them; what is written to `episode` joins what is there: `r`, `l` and `t`
    beside `return` and `episode_len`. Reading, iterating and copying are those of any dict.
    """

    __slots__ = ("_ours",)

    def __init__(self, infos: Mapping[str, Any]) -> None:
        super().__init__(infos)
        self._ours = {key: infos[key] for key in ("episode", "_episode") if key in infos}

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) and (key not in self._ours or self._ours[cast("str", key)] is not self[cast("str", key)])

    def __setitem__(self, key: str, value: Any) -> None:
        joined = key == "episode" and isinstance(value, Mapping) and isinstance(self.get(key), Mapping)
        super().__setitem__(key, {**self[key], **value} if joined else value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Rebuilt as `EpisodeInfos`, what somebody has written would be hidden again.
        return EpisodeInfos if "episode" not in self else dict, (dict(self),)


def unmasked(actions: Any, num_envs: int) -> tuple[Any, NDArray[np.bool_]]:
    """The actions themselves, and `[N]` bool, which of them are to be executed: all, unless they are `MaskedActions`."""
    if isinstance(actions, MaskedActions):
        return actions.actions, actions.active
    return actions, np.ones(num_envs, np.bool_)


def remasked(actions: Any, values: Any) -> Any:
    """Other values for a step of the same environments: as `MaskedActions` if not all take it, or not all of them are seen."""
    if isinstance(actions, MaskedActions) and not (actions.seen is None and actions.active.all()):
        return replace(actions, actions=values)
    return values


def expect_success(env: VectorEnv[Any, Any, Any], place: str, remedy: str) -> None:
    """Refuses an environment whose task knows no success, for which no episode would ever count as solved.

    Raises:
        ConfigError: with the place.
    """
    if not env.metadata.get("knows_success", True):
        hint = f"{remedy} Or let the environment say it, as by the success_key of gymnasium."
        raise ConfigError(place, "asks for the success of a task that knows none", hint)


def reset_rows(options: Mapping[str, Any] | None, num_envs: int) -> NDArray[np.bool_]:
    """`[N]` bool, in which environments a reset starts an episode: all, unless there is a `reset_mask`."""
    mask = (options or {}).get("reset_mask")
    return np.ones(num_envs, np.bool_) if mask is None else np.asarray(mask, np.bool_)


def given_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """The seed of each environment, as far as somebody gave it; of a number s they are s, s + 1, and so on."""
    if isinstance(seed, Sequence):
        return [None if s is None else int(s) for s in seed]
    return [None if seed is None else int(seed) + row for row in range(num_envs)]


def episode_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int]:
    """One seed for each environment, for a wrapper with randomness of its own; `EnforceContract` gives them to what is inside."""
    drawn = np.random.default_rng().integers(2**31, size=num_envs)
    return [int(drawn[row]) if s is None else s for row, s in enumerate(given_seeds(seed, num_envs))]


class EpisodeStatistics(Wrapper):
    """Truncates at a number of steps and keeps the statistics of each episode.

    `infos` after a step holds nothing but:

    - `success`: `[N]` bool, whether the task is solved in the state that was just reached;
    - `_episode`: `[N]` bool, whether the episode ended with this step (terminated or truncated);
    - `episode`: arrays `[N]`, valid where `_episode`: `success_once` bool, `success_at_end` bool, `return` float32 (the sum of
      rewards), `episode_len` int32 (steps) and `reward` float32 (return / episode_len); `task` int64, the number of the task,
      where the environment has several (`metadata["tasks"]`).

    With `ignore_terminations` the environment below never terminates: each episode runs to the limit and is truncated there,
    `success_once` says whether it was ever solved, `success_at_end` whether it was when time was up, and rewards after the first
    success count. Without it, an episode that ends by success has both.

    Args:
        env: without autoreset; its `infos["success"]`, if there, is a bool array `[N]`. One with several tasks says at each reset
            which they are: by `infos["task"]`, numbers `[N]`, or by the observation `task_descriptions`.
        max_episode_steps: steps after which an episode is truncated.

    Raises:
        ConfigError: there is no environment, or no step.
    """

    passes_unseen_steps: ClassVar[bool] = True

    def __init__(self, env: VectorEnv[Any, Any, Any], max_episode_steps: int) -> None:
        expect_at_least("num_envs", env.num_envs, 1)
        expect_at_least("max_episode_steps", max_episode_steps, 1)
        super().__init__(env)
        self.metadata = {**env.metadata, "max_episode_steps": max_episode_steps}
        self._masks = bool(env.metadata.get("masked_actions", False))
        self._tasks: tuple[str, ...] = tuple(env.metadata.get("tasks", ()))
        self._limit = max_episode_steps
        self._observations: Any = None
        self._task = np.zeros(env.num_envs, np.int64)
        self._length = np.zeros(env.num_envs, np.int32)
        # Summed in float64 and told in float32: single precision would lose small rewards in a long sum.
        self._return = np.zeros(env.num_envs, np.float64)
        # Two names of one array do no harm, as neither is ever written in place.
        self._success = self._success_once = np.zeros(env.num_envs, np.bool_)
        self._terminated = self._truncated = np.zeros(env.num_envs, np.bool_)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes, in all environments or where `options["reset_mask"]` says so."""
        fresh = reset_rows(options, self.num_envs)
        try:
            observations, infos = self.env.reset(seed=seed, options=options)
        except Exception as error:
            env = env_place(error).env
            asked = None if env is None else (options or {}).get("task", [None] * self.num_envs)[env]
            locate(error, EnvPlace(task=None if asked is None else self._named(asked)))
            raise
        # New arrays throughout: the former ones were given away.
        going = ~fresh
        self._length = self._length * going
        self._return = self._return * going
        self._success, self._success_once = self._success & going, self._success_once & going
        self._terminated, self._truncated = self._terminated & going, self._truncated & going
        if len(self._tasks) > 1:
            self._task = np.where(fresh, self._task_numbers(observations, infos, fresh), self._task)
        self._observations = observations
        return observations, {}

    def step(self, actions: Any) -> Step:
        """One step of every environment, or of those that `MaskedActions` name; nothing is reset."""
        values, active = unmasked(actions, self.num_envs)
        everyone = bool(active.all())
        if not everyone:
            self._refuse_halt(active)
        # One that knows no masks steps all rows; `_refuse_halt` has made sure that only ended ones are left out.
        try:
            observations, rewards, terminated, truncated, infos = self.env.step(actions if self._masks else values)
        except Exception as error:
            locate(error, self._place(env_place(error).env, active))
            raise
        rewards = np.where(active, as_numpy(rewards), 0.0).astype(np.float32)
        success = as_numpy(infos.get("success", np.zeros(self.num_envs, np.bool_)))
        self._length = self._length + active.astype(np.int32)
        self._return = self._return + rewards
        self._success = np.where(active, success, self._success).astype(np.bool_)
        self._success_once = self._success_once | self._success
        self._terminated = np.where(active, as_numpy(terminated), self._terminated).astype(np.bool_)
        cut = as_numpy(truncated) | (self._length >= self._limit)
        self._truncated = np.where(active, cut, self._truncated).astype(np.bool_)
        self._observations = observations if everyone or self._masks else _kept(self._observations, observations, ~active)
        ended = (self._terminated | self._truncated) & active
        infos = {"success": self._success.copy(), "episode": self._episode(), "_episode": ended}
        return self._observations, rewards, self._terminated.copy(), self._truncated.copy(), infos

    def _place(self, env: int | None, active: NDArray[np.bool_]) -> EnvPlace:
        """How far an environment has come, or those that take a step if all of them have come as far."""
        steps = set(self._length[active].tolist()) if env is None else {int(self._length[env])}
        task = self._named(int(self._task[env])) if env is not None and len(self._tasks) > 1 else None
        return EnvPlace(step=steps.pop() if len(steps) == 1 else None, task=task)

    def _named(self, task: int | str) -> str:
        """A task for messages."""
        known = not isinstance(task, str) and 0 <= task < len(self._tasks)
        return f"{task} ({self._tasks[int(task)]!r:.80})" if known else str(task)

    def _episode(self) -> dict[str, NDArray[Any]]:
        episode: dict[str, NDArray[Any]] = {
            "success_once": self._success_once.copy(),
            "success_at_end": self._success.copy(),
            "return": self._return.astype(np.float32),
            "episode_len": self._length.copy(),
            # A length of 0 stands where a masked step left out an environment that was just reset.
            "reward": (self._return / np.maximum(self._length, 1)).astype(np.float32),
        }
        return episode | ({"task": self._task.copy()} if self._tasks else {})

    def _refuse_halt(self, active: NDArray[np.bool_]) -> None:
        running = ~active & ~(self._terminated | self._truncated)
        if running.any() and not self._masks:
            problem = f"environments {np.flatnonzero(running).tolist()} are in the middle of an episode and can't stand still"
            raise RLinfError("env.step", problem, "Leave out of a step only those whose episodes have ended.")

    def _task_numbers(self, observations: Any, infos: Infos, fresh: NDArray[np.bool_]) -> NDArray[np.int64]:
        if "task" in infos:
            return np.asarray(as_numpy(infos["task"]), np.int64)
        if "task_descriptions" not in observations:
            problem = f"there are {len(self._tasks)} tasks, and a reset doesn't say which was started"
            raise ConfigError("env.metadata['tasks']", problem, "Give infos['task'] or the observation 'task_descriptions'.")
        numbers = {text: number for number, text in enumerate(self._tasks)}
        texts = [str(text) for text in observations["task_descriptions"]]
        unknown = [text for text, new in zip(texts, fresh, strict=True) if new and text not in numbers]
        if unknown:
            raise ConfigError("env.metadata['tasks']", f"no task reads '{unknown[0]}'", "Give infos['task'].")
        # The caller takes the rows in `fresh` alone, so any number does for the others.
        return np.array([numbers.get(text, 0) for text in texts], np.int64)


def _kept(former: Mapping[str, Any], latter: Mapping[str, Any], still: NDArray[np.bool_]) -> dict[str, Any]:
    """The latter observations, but the former ones of the environments that stand still; arrays or tensors `[N, *]`."""
    rows = np.flatnonzero(still).tolist()
    kept: dict[str, Any] = {}
    for key, new in latter.items():
        array: Any = new.clone() if is_tensor(new) else np.array(new)
        array[rows] = former[key][rows]
        kept[key] = array
    return kept
