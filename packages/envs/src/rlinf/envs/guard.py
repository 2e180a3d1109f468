"""The contract, enforced: a misused environment says what was wrong instead of returning a wrong number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from rlinf.core.errors import RLinfError, ShapeError
from rlinf.envs.episodes import Infos, Step
from rlinf.envs.spaces import bounds, is_a

_BOUND_TOLERANCE = 1e-5
_MAX_SEED = 2**31


class EnvMisuse(RLinfError, RuntimeError):
    """A call that the environment contract forbids at this moment or with these values."""


class Guard(VectorWrapper[Any, Any, Any]):
    """Refuses wrong actions, wrong seeds and calls at the wrong time.

    The caller clips its actions: one that lies outside the bounds by more than 1e-5 is an error, because a silent clip would make
    the log-probability that was recorded belong to another action. A missing seed is drawn here, so that no two environments
    ever share one by accident.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._ready = np.zeros(env.num_envs, np.bool_)
        self._done = np.zeros(env.num_envs, np.bool_)
        space = cast("Any", env).action_space
        low, high = bounds(space, "env.action")
        self._shape = tuple(space.shape)
        self._integers = not is_a(space, gymnasium.spaces.Box)
        slack = 0 if self._integers else _BOUND_TOLERANCE
        self._low, self._high = low - slack, high + slack

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes; the state depends on the seed alone.

        Args:
            seed: one for each environment, or one from which environment `i` gets `seed + i`; drawn at random where None.
            options: `reset_mask`, `[N]` bool, says which environments are reset; all are if it is missing.

        Raises:
            EnvMisuse: closed, a seed outside [0, 2**31), or a partial reset before every environment was reset once.
            ShapeError: the mask or the list of seeds doesn't have N entries.
        """
        self._refuse_closed("env.reset")
        options = dict(options or {})
        mask = self._mask(options.get("reset_mask"))
        if not (self._ready | mask).all():
            where = np.flatnonzero(~(self._ready | mask)).tolist()
            raise EnvMisuse("env.reset", f"environments {where} were never reset", "Reset all of them first, without a mask.")
        seeds = self._seeds(seed)
        if not mask.all():
            options["reset_mask"] = mask
        else:
            options.pop("reset_mask", None)
        inner = cast("Any", self.env)
        result: tuple[Any, Infos] = inner.reset(seed=seeds, options=options)
        self._ready |= mask
        self._done &= ~mask
        return result

    def step(self, actions: Any) -> Step:
        """One step of every environment.

        Args:
            actions: `[N, *]`, within the bounds of `action_space`.

        Raises:
            EnvMisuse: closed, not reset yet, done and not reset since, or an action that isn't finite or within bounds.
            ShapeError: the actions have another shape.
        """
        self._refuse_closed("env.step")
        if not self._ready.all():
            raise EnvMisuse("env.step", "the environments were never reset", "Call env.reset(seed=…) first.")
        if self._done.any():
            where = np.flatnonzero(self._done).tolist()
            remedy = "Reset them: env.reset(seed=…, options={'reset_mask': done})."
            raise EnvMisuse("env.step", f"the episodes of environments {where} have ended", remedy)
        result = self.env.step(self._actions(actions))
        np.logical_or(result[2], result[3], out=self._done)
        return result

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
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            found = f"{mask.dtype} of shape {list(mask.shape)}"
            raise ShapeError("env.reset", f"reset_mask must be bool of shape [{self.num_envs}], found {found}")
        if not mask.any():
            raise EnvMisuse("env.reset", "reset_mask names no environment", "Skip the call when nothing is to be reset.")
        return mask

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            entries: list[int | None] = [None] * self.num_envs
        elif isinstance(seed, Sequence):
            entries = list(seed)
        else:
            entries = [int(seed) + i for i in range(self.num_envs)]
        if len(entries) != self.num_envs:
            raise ShapeError("env.reset", f"expected {self.num_envs} seeds, found {len(entries)}", "Give one for each environment.")
        drawn = np.random.default_rng().integers(_MAX_SEED, size=self.num_envs)
        seeds = [int(drawn[i]) if s is None else int(s) for i, s in enumerate(entries)]
        wrong = [s for s in seeds if not 0 <= s < _MAX_SEED]
        if wrong:
            raise EnvMisuse("env.reset", f"seeds must lie in [0, 2**31), found {wrong[0]}", "Take the seed modulo 2**31.")
        return list(seeds)

    def _actions(self, actions: Any) -> NDArray[Any]:
        actions = np.asarray(actions)
        if actions.shape != self._shape:
            raise ShapeError("env.step", f"expected actions of shape {list(self._shape)}, found {list(actions.shape)}")
        if self._integers and not np.issubdtype(actions.dtype, np.integer):
            raise EnvMisuse("env.step", f"expected integer actions, found {actions.dtype}", "Cast them.")
        if not ((actions >= self._low) & (actions <= self._high)).all():
            self._refuse_values(actions)
        return actions

    def _refuse_values(self, actions: NDArray[Any]) -> NoReturn:
        finite = np.isfinite(actions)
        wrong = ~finite if not finite.all() else (actions < self._low) | (actions > self._high)
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        what = f"the action of environment {at[0]} is {actions[at]} at index {list(at[1:])}"
        if not finite.all():
            raise EnvMisuse("env.step", what, "Find out why the policy gives a value that is not finite.")
        low, high = (np.broadcast_to(bound, self._shape)[at] for bound in (self._low, self._high))
        raise EnvMisuse("env.step", f"{what}, outside [{low:.6g}, {high:.6g}]", "Clip the actions to env.action_space.")
