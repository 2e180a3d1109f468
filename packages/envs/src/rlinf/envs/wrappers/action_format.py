"""A simulator that takes actions as a model writes them."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError
from rlinf.envs.actions.formats import ActionFormat, accepted, expect_size
from rlinf.envs.spaces import is_a, single_spaces
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import Step, remasked, unmasked


class FormatActions(Wrapper):
    """Converts every action from a model's convention to the simulator's, and clips what comes out to the simulator's bounds.

    The action space is the model's: as many numbers as it writes, within the bounds that the format says; a policy is built for it,
    and its log-probabilities are of the action that it wrote.

    It stands inside an `EnforceContract`, which refuses a wrong action in the model's own terms:

        EnforceContract(FormatActions(env, ACTION_FORMATS.build("libero", {}, place="")))

    Args:
        env: an environment of this package with continuous actions.
        action_format: from `[N, A]` of the model to `[N, A']` of the simulator.

    Raises:
        ConfigError: actions that aren't continuous, or a format that gives other numbers than the simulator takes.
    """

    passes_unseen_steps: ClassVar[bool] = True

    def __init__(self, env: VectorEnv[Any, Any, Any], action_format: ActionFormat) -> None:
        super().__init__(env)
        _, space = single_spaces(env)
        if not is_a(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ConfigError("action_format", f"expected continuous actions [A], found {space}", "Leave the wrapper out.")
        low, high = accepted(action_format, space.low.astype(np.float64), space.high.astype(np.float64), "action_format.format")
        # A bound that the float32 of the space can't hold must not end inside the one that was meant.
        self.single_action_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
        self.action_space = batch_space(self.single_action_space, env.num_envs)
        self._format, self._type = action_format, space.dtype
        self._low, self._high = space.low, space.high
        expect_size(action_format, np.clip(np.zeros((1, len(low)), np.float32), *self._own), len(space.low), "action_format.format")

    def step(self, actions: Any) -> Step:
        """One step of every environment, with the simulator's own actions."""
        executed = self._converted(as_numpy(unmasked(actions, self.num_envs)[0]))
        return self.env.step(remasked(actions, executed))

    @property
    def _own(self) -> tuple[Any, Any]:
        return self.single_action_space.low, self.single_action_space.high

    def _converted(self, actions: Any) -> Any:
        return np.clip(self._format(actions), self._low, self._high).astype(self._type)
