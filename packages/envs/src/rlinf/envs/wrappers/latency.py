"""Actions that take effect later than they were decided, as on a real robot."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike, NDArray

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.random import keyed_generator
from rlinf.envs.spaces import bounds, is_a, single_spaces
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import Infos, Step, episode_seeds, remasked, reset_rows, unmasked


class Latency(Wrapper):
    """Executes an action some control steps after the one for which it was given.

    The action of step t arrives at step t + d. At each step the newest action that has arrived is executed; one that is overtaken
    by a newer one is never executed. Before the first arrives, the idle action is. d is fixed, or drawn for each step from the
    episode's seed and the number of the step, so that an episode of the same seed and the same actions is the same to the bit.

    It stands inside an `EnforceContract`, which refuses a wrong action when it is given and not when it arrives:

        EnforceContract(Latency(env, steps=(0, 2)))

    Args:
        env: an environment of this package with continuous actions.
        steps: d, or the least and the greatest d, between which it is drawn uniformly.
        meanwhile: what is executed at a step at which no newer action arrives: `hold` repeats the last one, `idle` executes the
            idle action.
        idle: the idle action, `[*]`; zero, or the nearest to it within the bounds, if None.

    Raises:
        ConfigError: d is negative, or its range is empty, or no action arrives before an episode ends; actions that aren't
            continuous, which nothing idle is known of.
        ShapeError: the idle action has another shape than an action.
    """

    passes_unseen_steps: ClassVar[bool] = True

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        steps: int | tuple[int, int],
        meanwhile: Literal["hold", "idle"] = "hold",
        idle: ArrayLike | None = None,
    ) -> None:
        super().__init__(env)
        least, most = (steps, steps) if isinstance(steps, int) else steps
        if not 0 <= least <= most:
            raise ConfigError("latency.steps", f"expected 0 ≤ least ≤ greatest, found {steps}", "Give a number, or a pair.")
        limit = env.metadata.get("max_episode_steps")
        if limit is not None and least >= limit:
            problem = f"actions arrive {least} steps later at the earliest, and an episode ends after {limit}"
            raise ConfigError("latency.steps", problem, "Lower it, so that some are executed.")
        self._least, self._most = least, most
        self._holds = meanwhile == "hold"
        self._idle = _idle_action(env, idle)
        count = env.num_envs
        self._seeds = [0] * count
        self._step = np.zeros(count, np.int64)
        self._pending: list[dict[int, tuple[int, NDArray[Any]]]] = [{} for _ in range(count)]
        self._newest = np.full(count, -1)
        self._last = np.repeat(self._idle[None], count, axis=0)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes; no action is under way in them."""
        seeds = episode_seeds(seed, self.num_envs)
        for row in np.flatnonzero(reset_rows(options, self.num_envs)):
            self._seeds[row] = seeds[row]
            self._pending[row] = {}
            self._step[row], self._newest[row], self._last[row] = 0, -1, self._idle
        result: tuple[Any, Infos] = self.env.reset(seed=seeds, options=options)
        return result

    def step(self, actions: Any) -> Step:
        """One step of every environment, with the actions that have arrived."""
        given, active = unmasked(actions, self.num_envs)
        values = as_numpy(given)
        # Environments that stand still need some valid action, which isn't executed.
        executed = self._last.copy()
        for row in np.flatnonzero(active):
            executed[row] = self._executed(int(row), values[row])
        return self.env.step(remasked(actions, executed))

    def _executed(self, row: int, action: NDArray[Any]) -> NDArray[Any]:
        """What an environment executes now, when `action` is what it was given now."""
        now = int(self._step[row])
        self._step[row] += 1
        pending = self._pending[row]
        # By the step of arrival; of two decisions that arrive together the later one stays.
        # Copied, as the caller may write its array again before the action arrives.
        pending[now + self._delay(row, now)] = (now, np.array(action))
        decided, arrived = pending.pop(now, (-1, self._idle))
        if decided > self._newest[row]:
            self._newest[row], self._last[row] = decided, arrived
            return arrived
        return self._last[row] if self._holds else self._idle

    def _delay(self, row: int, step: int) -> int:
        if self._least == self._most:
            return self._least
        return int(keyed_generator(self._seeds[row], "latency", step).integers(self._least, self._most + 1))


def _idle_action(env: VectorEnv[Any, Any, Any], given: ArrayLike | None) -> NDArray[Any]:
    _, space = single_spaces(env)
    if not is_a(space, gymnasium.spaces.Box):
        raise ConfigError("latency", f"expected continuous actions, found {space}", "Only a Box has an idle action.")
    low, high = bounds(space, "env.action")
    idle = np.asarray(np.zeros(space.shape) if given is None else given, space.dtype)
    if idle.shape != space.shape:
        raise ShapeError("latency.idle", f"expected an action of shape {list(space.shape)}, found {list(idle.shape)}")
    return np.clip(idle, low, high)
