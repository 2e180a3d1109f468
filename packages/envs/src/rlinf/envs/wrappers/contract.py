"""The contract, enforced: a misused environment says what was wrong instead of returning a wrong number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy, is_tensor
from rlinf.core.envs.failures import EnvPlace, env_place, locate
from rlinf.core.errors import ConfigError, NonFiniteError, RLinfError, ShapeError, UnknownName, did_you_mean
from rlinf.core.random import keyed_seed
from rlinf.envs.spaces import bounds, is_a
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import EpisodeInfos, Infos, Step, remasked, unmasked

ROW_OPTIONS = ("task", "init_id")
"""Options of `reset` that have one entry for each environment."""
_BOUND_TOLERANCE = 1e-5
_MAX_SEED = 2**31


class EnvMisuse(RLinfError, RuntimeError):
    """A call that the environment contract forbids at this moment or with these values."""


class EnforceContract(Wrapper):
    """Refuses wrong actions, wrong options of a reset, and calls at the wrong time.

    The caller clips its actions: one that lies outside the bounds by more than 1e-5 is an error, because a silent clip would make
    the log-probability that was recorded belong to another action. A missing seed is drawn here, so that no two environments
    ever share one by accident.

    What is inside gets its seeds and row options as lists `[N]`: a seed for each environment, None where no task or initial state
    was asked for. It says in `metadata["reset_options"]` which row options it takes, and wrappers inside say in
    `metadata["wrapper_options"]` which others are theirs; those pass unread. Where an initial state is asked for, its
    number sets the seed, so that nothing is left to the caller's seed; an environment without initial states of its own thereby
    has as many as there are numbers. One that can't be seeded (`metadata["waived"]` names `seeds` or `pure_reset`) has none.
    """

    passes_unseen_steps: ClassVar[bool] = True

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._takes: tuple[str, ...] = tuple(env.metadata.get("reset_options", ()))
        self._passed: tuple[str, ...] = tuple(env.metadata.get("wrapper_options", ()))
        waived: Mapping[str, str] = env.metadata.get("waived", {})
        numbered = ("init_id",) if "init_id" not in self._takes and not {"seeds", "pure_reset"} & set(waived) else ()
        self.metadata = {**env.metadata, "reset_options": (*self._takes, *numbered)}
        self._on_device = "device" in env.metadata
        self._ready = np.zeros(env.num_envs, np.bool_)
        self._done = np.zeros(env.num_envs, np.bool_)
        space = self.action_space
        low, high = bounds(space, "env.action")
        self._shape = tuple(space.shape)
        self._integers = not is_a(space, gymnasium.spaces.Box)
        slack = 0 if self._integers else _BOUND_TOLERANCE
        self._low, self._high = low - slack, high + slack

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes; the state depends on the arguments alone.

        Args:
            seed: one for each environment, or one from which environment `i` gets `seed + i`; drawn at random where None.
            options: any of

                - `reset_mask`: `[N]` bool, which environments are reset, all if it is missing; entries of the other options are
                  ignored where it is False;
                - `seed`: the same as the argument, for callers that have nothing but options;
                - `task`: a task's name or number, or a list `[N]` of them with None where the seed draws it;
                - `init_id`: which initial state, a number ≥ 0, or a list `[N]` of them with None where the seed draws it. With it
                  the state depends on task and number alone.

        Raises:
            EnvMisuse: closed, a seed outside [0, 2**31), two seeds, or a partial reset before every environment was reset once.
            ShapeError: the mask or a list doesn't have N entries.
            ConfigError: an option that doesn't exist, or that this environment doesn't take; an initial state or a task that
                can't be.
            NonFiniteError: an observation is not a number.
        """
        self._refuse_closed("env.reset")
        given = dict(options or {})
        self._refuse_options(given)
        mask = self._mask(given.get("reset_mask"))
        if not (self._ready | mask).all():
            where = np.flatnonzero(~(self._ready | mask)).tolist()
            raise EnvMisuse("env.reset", f"environments {where} were never reset", "Reset all of them first, without a mask.")
        if seed is not None and given.get("seed") is not None:
            raise EnvMisuse("env.reset", "there are two seeds, the argument and options['seed']", "Give one of them.")
        passed = {key: given[key] for key in self._passed if key in given}
        tasks = self._column(given.get("task"), mask, "task")
        numbers = self._column(given.get("init_id"), mask, "init_id")
        self._refuse_rows(tasks, numbers)
        seeds = self._seeds(given.get("seed") if seed is None else seed, mask)
        seeds = [s if number is None else _seed_of(number) for s, number in zip(seeds, numbers, strict=True)]
        try:
            result: tuple[Any, Infos] = self.env.reset(
                seed=seeds, options=self._options(mask, task=tasks, init_id=numbers) | passed
            )
            _refuse_observation(result[0], "env.reset")
        except Exception as error:
            _note_place(error)
            raise
        # Noted only now: a reset that raised doesn't count.
        self._ready |= mask
        self._done &= ~mask
        return result

    def step(self, actions: Any) -> Step:
        """One step of every environment.

        Args:
            actions: `[N, *]`, within the bounds of `action_space`; a tensor stays one for an environment that has a
                `metadata["device"]`, and becomes an array for others. `MaskedActions` say which environments take the step;
                the others may have ended.

        Raises:
            EnvMisuse: closed, not reset yet, done and not reset since, or an action that isn't finite or within bounds.
            ShapeError: the actions have another shape.
            NonFiniteError: the simulator gives a reward that is infinite or no number, or an observation that is none.
        """
        self._refuse_closed("env.step")
        if not self._ready.all():
            raise EnvMisuse("env.step", "the environments were never reset", "Call env.reset(seed=…) first.")
        values, active = unmasked(actions, self.num_envs)
        values = self._actions(values)
        if (self._done & active).any():
            where = np.flatnonzero(self._done & active).tolist()
            remedy = "Reset them: env.reset(seed=…, options={'reset_mask': done})."
            raise EnvMisuse("env.step", f"the episodes of environments {where} have ended", remedy)
        infos: Infos = {}
        try:
            result = self.env.step(remasked(actions, values))
            infos = result[4]
            _refuse_observation(result[0], "env.step")
            _refuse_reward(as_numpy(result[1]))
        except Exception as error:
            _note_place(error, infos.get("episode", {}))
            raise
        # The flags of environments that stood still are repeated by `EpisodeStatistics`, so none is lost here.
        np.logical_or(as_numpy(result[2]), as_numpy(result[3]), out=self._done)
        return *result[:4], EpisodeInfos(infos)

    def render(self) -> Any:
        """What the environment inside shows; `RecordVideo` has pictures of its own.

        Raises:
            ConfigError: it shows nothing.
        """
        try:
            return super().render()
        except NotImplementedError as error:
            raise ConfigError("env.render", "the environment was built without images", "Build it with render=True.") from error

    def close(self, **kwargs: Any) -> None:
        """Frees the simulators; a second call does nothing."""
        if not self.closed:
            super().close(**kwargs)
            self.closed = True

    def _refuse_closed(self, place: str) -> None:
        if self.closed:
            raise EnvMisuse(place, "the environment is closed", "Build another one.")

    def _mask(self, mask: Any) -> NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        mask = as_numpy(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            found = f"{mask.dtype} of shape {list(mask.shape)}"
            raise ShapeError("env.reset", f"reset_mask must be bool of shape [{self.num_envs}], found {found}")
        if not mask.any():
            raise EnvMisuse("env.reset", "reset_mask names no environment", "Skip the call when nothing is to be reset.")
        return mask

    def _seeds(self, seed: Any, mask: NDArray[np.bool_]) -> list[int]:
        """One seed for each environment; outside the mask it means nothing."""
        if _is_number(seed):
            seed = [int(seed) + i for i in range(self.num_envs)]
        entries = self._column(seed, mask, "seed")
        # Not from the global generator, which somebody may have seeded the same in every process.
        drawn = np.random.default_rng().integers(_MAX_SEED, size=self.num_envs)
        seeds = [int(drawn[i]) if s is None else int(s) for i, s in enumerate(entries)]
        wrong = [s for s in seeds if not 0 <= s < _MAX_SEED]
        if wrong:
            raise EnvMisuse("env.reset", f"seeds must lie in [0, 2**31), found {wrong[0]}", "Take the seed modulo 2**31.")
        return seeds

    def _column(self, value: Any, mask: NDArray[np.bool_], name: str) -> list[Any]:
        """One entry for each environment, None outside the mask."""
        # As objects, None stays None and a text is one entry.
        column = np.asarray(value, object)
        entries = column.tolist() if column.ndim else [value] * self.num_envs
        if len(entries) != self.num_envs:
            problem = f"expected {self.num_envs} entries of {name}, found {len(entries)}"
            raise ShapeError("env.reset", problem, "Give one for each environment.")
        return [entry if chosen else None for entry, chosen in zip(entries, mask, strict=True)]

    def _refuse_options(self, options: Mapping[str, Any]) -> None:
        known = ("reset_mask", "seed", *self.metadata["reset_options"], *self._passed)
        for key, value in options.items():
            if key not in known and key not in ROW_OPTIONS:
                raise UnknownName("env.reset", f"no option is named '{key}'", did_you_mean(key, known, label="Options"))
            if key not in known and value is not None:
                has = "tasks" if key == "task" else "numbered initial states"
                remedy = f"Leave it out. Options: {', '.join(known)}."
                raise ConfigError("env.reset", f"option '{key}' was given, but this environment has no {has}", remedy)

    def _refuse_rows(self, tasks: Sequence[Any], numbers: Sequence[Any]) -> None:
        for number in numbers:
            if number is not None and not (_is_number(number) and number >= 0):
                raise ConfigError("env.reset", f"init_id must be at least 0, found {number!r}", "Count initial states from 0.")
        for task in tasks:
            if not (task is None or isinstance(task, str) or _is_number(task)):
                raise ConfigError("env.reset", f"expected the name or the number of a task, found {task!r}")

    def _options(self, mask: NDArray[np.bool_], **rows: list[Any]) -> dict[str, Any]:
        """What the environment inside gets."""
        options: dict[str, Any] = {key: row for key, row in rows.items() if key in self._takes and row.count(None) < len(row)}
        return options if mask.all() else options | {"reset_mask": mask}

    def _actions(self, given: Any) -> Any:
        actions = as_numpy(given)
        if actions.shape != self._shape:
            raise ShapeError("env.step", f"expected actions of shape {list(self._shape)}, found {list(actions.shape)}")
        if self._integers and not np.issubdtype(actions.dtype, np.integer):
            raise EnvMisuse("env.step", f"expected integer actions, found {actions.dtype}", "Cast them.")
        # Written so that NaN, which is neither, is refused, too.
        if not ((actions >= self._low) & (actions <= self._high)).all():
            self._refuse_values(actions)
        return given if self._on_device else actions

    def _refuse_values(self, actions: NDArray[Any]) -> NoReturn:
        finite = np.isfinite(actions)
        wrong = ~finite if not finite.all() else (actions < self._low) | (actions > self._high)
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        what = f"the action of environment {at[0]} is {actions[at]} at index {list(at[1:])}"
        if not finite.all():
            raise EnvMisuse("env.step", what, "Find out why the policy gives a value that is not finite.")
        low, high = (np.broadcast_to(bound, self._shape)[at] for bound in (self._low, self._high))
        raise EnvMisuse("env.step", f"{what}, outside [{low:.6g}, {high:.6g}]", "Clip the actions to env.action_space.")


def _refuse_observation(observation: Mapping[str, Any], place: str) -> None:
    """Refuses NaN; an infinite number may be meant, such as a depth where there is nothing."""
    for key, given in observation.items():
        if is_tensor(given):
            if not given.is_floating_point() or not given.isnan().any():
                continue
        elif given.dtype.kind != "f" or not np.isnan(given).any():
            continue
        row, *at = (int(i) for i in np.argwhere(np.isnan(as_numpy(given)))[0])
        problem = f"observation '{key}' of environment {row} is nan at index {at}"
        raise _located(NonFiniteError(place, problem, "Look for its cause in the simulator, or in a wrapper."), row)


def _refuse_reward(reward: NDArray[Any]) -> None:
    if not np.isfinite(reward).all():
        row = int(np.flatnonzero(~np.isfinite(reward))[0])
        problem = f"the reward of environment {row} is {reward[row]}"
        raise _located(NonFiniteError("env.step", problem, "Look for its cause in the simulator, or in a wrapper."), row)


def _located(error: NonFiniteError, env: int) -> NonFiniteError:
    locate(error, EnvPlace(env=env))
    return error


def _note_place(error: Exception, episode: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Says below an error where it came from; `episode` is what `infos` hold of the step, if it was taken."""
    env = env_place(error).env
    if env is not None and "episode_len" in episode:
        task = episode.get("task")
        # The step itself is counted by now.
        found = EnvPlace(step=int(episode["episode_len"][env]) - 1, task=None if task is None else str(int(task[env])))
        locate(error, found)
    if place := str(env_place(error)):
        error.add_note(f"in {place}")


def _is_number(value: object) -> bool:
    # To Python, True is an int.
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _seed_of(number: int) -> int:
    """The seed that stands for an initial state."""
    return keyed_seed(int(number), "init") % _MAX_SEED
