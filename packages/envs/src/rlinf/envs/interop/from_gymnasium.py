"""The vector environments of other libraries under this project's contract: whatever they reset inside `step` is undone.

What Gymnasium calls the autoreset mode says where a library hides the reset of an episode that ended at step t:

    DISABLED    nowhere: the caller resets.
    SAME_STEP   in step t itself; its observation is the next episode's, and the last one lies in infos["final_obs"].
    NEXT_STEP   in step t + 1, which ignores the action of that environment; the others take a real step meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError, ContractError, did_you_mean
from rlinf.core.random import keyed_seed
from rlinf.envs.spaces import is_a, single_spaces
from rlinf.envs.text_array import TextArray
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.contract import EnforceContract, EnvMisuse
from rlinf.envs.wrappers.episodes import EpisodeStatistics, Infos, Step
from rlinf.envs.wrappers.images import IMAGE_KEYS

Resets = Literal["each", "own"]
Source = str | Sequence[str]

_KEYS = (*IMAGE_KEYS, "states", "task_descriptions")

_OWN_RESETS = "the library resets a single environment only by itself, when its episode has ended; its seed is not ours"
_ONE_SEED = "the library takes one seed for all environments"
_LAG = "the first observation of an episode comes one step after its reset; infos['executed'] tells"


def from_vector_env(
    env: VectorEnv[Any, Any, Any],
    *,
    max_episode_steps: int | None = None,
    success_key: str | None = None,
    keys: Mapping[str, Source] | None = None,
    autoreset_mode: AutoresetMode | str | None = None,
    resets: Resets | None = None,
    lagging: bool = False,
) -> VectorEnv[Any, Any, Any]:
    """Any `gymnasium.vector.VectorEnv` as one of ours, without a transition lost or invented.

        library  →  autoreset undone, embodied keys  →  EpisodeStatistics  →  EnforceContract

    Args:
        env: the library's environment; it is not to be used otherwise from now on.
        max_episode_steps: steps after which an episode is truncated; what `env.spec` says if None.
        success_key: the key of the library's `infos` that says whether the task is solved; None: it knows no success.
        keys: which of the library's observations becomes which of ours, such as `{"main_images": "pixels", "states": ["q", "dq"]}`.
            None: embodied keys are kept, one image `[H, W, 3]` becomes `main_images`, anything else is flattened to `states`.
        autoreset_mode: where the library hides its resets; what `env.metadata["autoreset_mode"]` says if None.
        resets: "each": the library takes `options["reset_mask"]` and a list of seeds, as Gymnasium's own vector environments do.
            "own": it resets one environment only by itself, inside `step`. None: "each" for Gymnasium's and without autoreset,
            otherwise "own".
        lagging: allows what is otherwise refused: with NEXT_STEP and "own" resets, `reset` of some environments answers with their
            *old* observation, and the next step, which the library spends on their reset, answers with the first one of the new
            episode. `infos["executed"]`, `[N]` bool, is False for them in that step: drop it. It counts in no statistics.

    Raises:
        ConfigError: the autoreset mode or the limit is unknown, an observation that can't be read, or a combination that can't be
            kept.
    """
    mode = _mode(env, autoreset_mode)
    by_itself = _resets(env, mode, resets) == "own"
    limit = _limit(env, max_episode_steps, by_itself)
    if lagging and not (by_itself and mode is AutoresetMode.NEXT_STEP):
        raise ConfigError("env.lagging", "only NEXT_STEP environments that reset by themselves can lag", "Leave it away.")
    inner = _WithoutAutoreset(env, mode, ObservationReader(single_spaces(env)[0], keys), success_key, by_itself, lagging)
    return EnforceContract(_ExecutedStatistics(inner, limit) if lagging else EpisodeStatistics(inner, limit))


class _WithoutAutoreset(Wrapper):
    """The library's environment without autoreset; see `from_vector_env` for the arguments."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        mode: AutoresetMode,
        reader: ObservationReader,
        success_key: str | None,
        by_itself: bool,
        lagging: bool,
    ) -> None:
        super().__init__(env)
        self._library: Any = self.env
        self.single_observation_space = reader.space
        self.observation_space = batch_space(reader.space, env.num_envs)
        self.single_action_space = self._library.single_action_space
        self.action_space = batch_space(self._library.single_action_space, env.num_envs)
        waived: dict[str, str] = {}
        if by_itself and env.num_envs > 1:
            waived = {"partial_reset": _OWN_RESETS, "place": _ONE_SEED, "seeds": _OWN_RESETS}
        if lagging:
            waived["final_observation"] = _LAG
        self.metadata = {
            **env.metadata,
            "autoreset_mode": AutoresetMode.DISABLED,
            "waived": waived,
            "reset_options": (),
            "knows_success": success_key is not None,
        }
        self._mode = mode
        self._reader = reader
        self._success_key = success_key
        self._by_itself = by_itself
        self._lagging = lagging
        self._shown: dict[str, NDArray[Any]] = {}
        self._following: dict[str, NDArray[Any]] = {}
        self._ended = np.zeros(env.num_envs, np.bool_)
        self.waiting = np.zeros(env.num_envs, np.bool_)
        """`[N]`, the environments whose next step will be the library's reset."""

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes where `options["reset_mask"]` says so, or in all environments.

        Raises:
            EnvMisuse: the library can't reset these environments alone.
        """
        seeds = cast("list[int]", seed)
        mask = (options or {}).get("reset_mask")
        if mask is None or mask.all():
            observation, _ = self._library.reset(seed=_one_seed(seeds) if self._by_itself else seeds)
            self._shown = self._reader.read(observation)
            self._ended[:] = self.waiting[:] = False
            return self._copy(), {}
        if self._by_itself:
            self._take_own_reset(mask)
        else:
            observation, _ = self._library.reset(seed=seeds, options={"reset_mask": mask.copy()})
            self._show(mask, {key: array[mask] for key, array in self._reader.read(observation).items()})
        self._ended &= ~mask
        return self._copy(), {}

    def step(self, actions: Any) -> Step:
        """One step of every environment; the observation of an episode that ends is its last one."""
        observation, reward, terminated, truncated, infos = self._library.step(actions)
        reward = np.array(as_numpy(reward), np.float32)
        terminated, truncated = (np.array(as_numpy(flags), np.bool_) for flags in (terminated, truncated))
        self._shown = self._reader.read(observation)
        self._ended = terminated | truncated
        within = self._mode is AutoresetMode.SAME_STEP
        success = self._success(infos, self._ended if within else np.zeros_like(self._ended))
        if within and self._ended.any():
            # The library has reset already; what it shows is kept for the caller's reset.
            self._following = self._shown
            self._shown = self._copy()
            self._show(self._ended, self._reader.read(_final_rows(infos, self._ended)))
        executed = ~self.waiting
        # Their step was the library's reset, whose reward belongs to no action.
        reward[self.waiting] = 0.0
        self.waiting[:] = False
        return self._copy(), reward, terminated, truncated, {"success": success & executed}

    def _take_own_reset(self, mask: NDArray[np.bool_]) -> None:
        """Environments that the library has reset, or will reset, by itself."""
        running = np.flatnonzero(mask & ~self._ended).tolist()
        if running:
            problem = f"the library can't reset environments {running} alone, whose episodes have not ended for it"
            raise EnvMisuse("env.reset", problem, "Reset all of them, or wrap environments of one; see docs/envs/interop.md.")
        if self._mode is AutoresetMode.SAME_STEP:
            self._show(mask, {key: array[mask] for key, array in self._following.items()})
            return
        if not self._lagging:
            where = np.flatnonzero(mask).tolist()
            problem = f"the library resets environments {where} in its next step, for which it needs the actions of all"
            remedy = "Wrap environments of one, or say lagging=True, or resets='each' if it takes a mask; see docs/envs/interop.md."
            raise EnvMisuse("env.reset", problem, remedy)
        self.waiting |= mask

    def _success(self, infos: Infos, ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """`[N]`; where the episode ended within the step, what the library tells of the end, not of the reset."""
        success = np.zeros(self.num_envs, np.bool_)
        # A step that the library spent on a reset tells nothing of the task.
        told = ~ended & ~self.waiting
        if self._success_key is None:
            return success
        if told.any():
            success[told] = self._told(infos)[told]
        if ended.any():
            final = infos.get("final_info", {})
            batched = isinstance(final, Mapping)
            success[ended] = self._told(final)[ended] if batched else [self._told(final[i]) for i in np.flatnonzero(ended)]
        return success

    def _told(self, infos: Any) -> NDArray[np.bool_]:
        if self._success_key not in infos:
            known = f"Its infos hold: {', '.join(sorted(infos)) or 'nothing'}."
            raise ConfigError("env.success_key", f"the environment says nothing of '{self._success_key}'", known)
        return np.asarray(as_numpy(infos[self._success_key]), np.bool_)

    def _show(self, mask: NDArray[np.bool_], rows: dict[str, NDArray[Any]]) -> None:
        for key, array in rows.items():
            self._shown[key][mask] = array

    def _copy(self) -> dict[str, NDArray[Any]]:
        return {key: array.copy() for key, array in self._shown.items()}


class ObservationReader:
    """Batches of the library's observations as new arrays by embodied key.

    Args:
        space: of one environment of the library.
        keys: see `from_vector_env`.

    Attributes:
        space: of one environment, by embodied key.
    """

    def __init__(self, space: Any, keys: Mapping[str, Source] | None) -> None:
        self._parts = {key: _parts(space, source) for key, source in (_guess(space) if keys is None else keys).items()}
        self.space = gymnasium.spaces.Dict({key: _space(key, [part for _, part in parts]) for key, parts in self._parts.items()})

    def read(self, batch: Any) -> dict[str, NDArray[Any]]:
        """Arrays `[B, *]` that share no memory with `batch`."""
        return {key: self._array(key, [(_at(batch, path), part) for path, part in parts]) for key, parts in self._parts.items()}

    def _array(self, key: str, parts: list[tuple[Any, Any]]) -> NDArray[Any]:
        if key == "states":
            return np.concatenate([_flat(entry, part) for entry, part in parts], axis=1)
        return np.array(as_numpy(parts[0][0]), self.space[key].dtype)


def _guess(space: Any) -> dict[str, Source]:
    """Which observation becomes which of ours, where nobody said so."""
    if is_a(space, gymnasium.spaces.Dict) and set(space) <= set(_KEYS):
        return {key: key for key in space}
    return {"main_images" if _is_image(space) else "states": ()}


def _parts(space: Any, source: Source) -> list[tuple[tuple[str, ...], Any]]:
    """Path and space of each leaf that an observation of ours is made of; all for an empty source."""
    if not source:
        return _leaves(space, ())
    parts: list[tuple[tuple[str, ...], Any]] = []
    for key in [source] if isinstance(source, str) else source:
        if not is_a(space, gymnasium.spaces.Dict) or key not in space.spaces:
            known = list(space) if is_a(space, gymnasium.spaces.Dict) else []
            raise ConfigError("env.keys", f"the library has no observation '{key}'", did_you_mean(key, known, label="It has"))
        parts += _leaves(space[key], (key,))
    return parts


def _leaves(space: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    if is_a(space, gymnasium.spaces.Dict):
        return [leaf for key in sorted(space) for leaf in _leaves(space[key], (*path, key))]
    return [(path, space)]


def _space(key: str, parts: list[Any]) -> Any:
    """The space of one observation of ours.

    Raises:
        ConfigError: no such key, or it can't be made of these parts.
    """
    if key not in _KEYS:
        raise ConfigError("env.keys", f"'{key}' is no embodied key", did_you_mean(key, _KEYS))
    if key == "states" and all(_is_vector(part) for part in parts):
        size = sum(_size(part) for part in parts)
        return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
    if key in IMAGE_KEYS and len(parts) == 1 and is_a(parts[0], gymnasium.spaces.Box):
        return parts[0]
    if key == "task_descriptions" and len(parts) == 1 and is_a(parts[0], gymnasium.spaces.Text):
        return TextArray(parts[0].max_length)
    remedy = "Say which is which: keys={'main_images': 'pixels', 'states': ['position', 'velocity']}."
    raise ConfigError("env.keys", f"'{key}' can't be made of {', '.join(str(part) for part in parts)}", remedy)


def _is_image(space: Any) -> bool:
    return is_a(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 3


def _is_vector(space: Any) -> bool:
    kinds = (gymnasium.spaces.Box, gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete, gymnasium.spaces.MultiBinary)
    return any(is_a(space, kind) for kind in kinds) and not _is_image(space)


def _size(space: Any) -> int:
    """How many numbers `_flat` makes of it."""
    return int(space.n) if is_a(space, gymnasium.spaces.Discrete) else math.prod(space.shape)


def _at(batch: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        batch = batch[key]
    return batch


def _flat(batch: Any, space: Any) -> NDArray[np.float32]:
    """`[B, D]`; a number of a finite set becomes one-hot."""
    array = as_numpy(batch)
    if is_a(space, gymnasium.spaces.Discrete):
        return (array[:, None] == np.arange(int(space.n)) + int(space.start)).astype(np.float32)
    return array.reshape(len(array), -1).astype(np.float32)


class _ExecutedStatistics(EpisodeStatistics):
    """Statistics that leave out the steps which the library spent on resets, and say which these were."""

    def step(self, actions: Any) -> Step:
        # The step that is counted below is the library's reset for these.
        self._length -= self.env.waiting
        executed = ~self.env.waiting
        result = super().step(actions)
        result[4]["executed"] = executed
        return result


def _final_rows(infos: Infos, ended: NDArray[np.bool_]) -> Any:
    """The last observations of the environments whose episode ended within this step, as a batch of them alone."""
    final: Any = infos.get("final_obs", infos.get("final_observation"))
    if final is None:
        where = np.flatnonzero(ended).tolist()
        problem = f"the library resets within the step, but infos has no 'final_obs' for environments {where}"
        raise ContractError("env.step", problem, "Without it the last transition of an episode is lost: hook the library's reset.")
    # Gymnasium's own environments give an array of objects, None where no episode ended.
    if isinstance(final, np.ndarray) and cast("NDArray[Any]", final).dtype == np.object_:
        return _stack([final[i] for i in np.flatnonzero(ended)])
    return _rows(final, ended)


def _stack(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], Mapping):
        return {key: _stack([row[key] for row in rows]) for key in cast("Mapping[str, Any]", rows[0])}
    return np.stack([as_numpy(row) for row in rows])


def _rows(batch: Any, ended: NDArray[np.bool_]) -> Any:
    if isinstance(batch, Mapping):
        # By `_key` Gymnasium marks which rows of `key` count.
        entries = cast("Mapping[str, Any]", batch).items()
        return {key: _rows(entry, ended) for key, entry in entries if not key.startswith("_")}
    return as_numpy(batch)[ended]


def _one_seed(seeds: list[int]) -> int:
    """One seed for a library that takes no more: s for [s, s + 1, …], which is what Gymnasium means by s; else a hash of all."""
    consecutive = seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    return seeds[0] if consecutive else keyed_seed(seeds[0], "inner", *seeds[1:]) % 2**31


def _mode(env: VectorEnv[Any, Any, Any], told: AutoresetMode | str | None) -> AutoresetMode:
    mode: Any = env.metadata.get("autoreset_mode") if told is None else told
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(m.name for m in AutoresetMode)
        remedy = f"Read the library's documentation and say autoreset_mode=AutoresetMode.X, one of {known}."
        raise ConfigError("env.autoreset_mode", f"where the library resets is not known, found {mode!r}", remedy) from None


def _resets(env: VectorEnv[Any, Any, Any], mode: AutoresetMode, told: Resets | None) -> Resets:
    if told is None:
        gymnasiums = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        return "each" if gymnasiums or mode is AutoresetMode.DISABLED else "own"
    if told == "own" and mode is AutoresetMode.DISABLED:
        raise ConfigError("env.resets", "a library without autoreset can't reset by itself", "Use resets='each'.")
    return told


def _limit(env: VectorEnv[Any, Any, Any], told: int | None, by_itself: bool) -> int:
    own = None if env.spec is None else env.spec.max_episode_steps
    limit = own if told is None else told
    if limit is None:
        raise ConfigError("env.max_episode_steps", "the library announces no step limit", "Say max_episode_steps=….")
    if own is not None and limit > own:
        problem = f"the library cuts episodes after {own} steps, before {limit}"
        raise ConfigError("env.max_episode_steps", problem, f"Use {own}, or give the library the longer limit.")
    if by_itself and own is not None and limit < own and env.num_envs > 1:
        problem = f"a limit of {limit} ends episodes that the library, whose own limit is {own}, can't reset singly"
        raise ConfigError("env.max_episode_steps", problem, f"Use {own}, or give the library the shorter limit.")
    return limit
