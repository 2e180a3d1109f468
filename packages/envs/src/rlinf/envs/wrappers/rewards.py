"""What a step is worth to the learner, made from what the simulator says."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import EpisodeInfos, Infos, Step, expect_success, reset_rows, unmasked


class ShapedReward(Wrapper):
    """Scales the reward, makes it relative, and charges for time.

    With the simulator's reward bₜ, or bₜ = 1 for each step to a solved state if `source` is "success":

        vₜ = reward_coef · bₜ,   rₜ = vₜ − (vₜ₋₁ if use_rel_reward else 0) − (1 if use_step_penalty else 0),   v₀ = 0

    Relative rewards of an episode add up to its last value v_T: with `source="success"` they are the coefficient once, when the
    task is solved, and taken back if it is undone.

    The statistics are those of the rewards that are given out: `infos["episode"]["return"]` is their sum and `reward` their mean.
    The sum of what the simulator said stays known as `infos["episode"]["task_return"]`.

    Args:
        env: an environment of this package; the wrapper stands outside of its `EnforceContract`.
        reward_coef: the factor.
        use_rel_reward: give differences.
        use_step_penalty: charge 1 for each step.
        source: what is scaled, the simulator's reward or its success.

    Raises:
        ConfigError: the success of a task that knows none.
    """

    passes_unseen_steps: ClassVar[bool] = True

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        reward_coef: float = 1.0,
        use_rel_reward: bool = False,
        use_step_penalty: bool = False,
        source: Literal["reward", "success"] = "reward",
    ) -> None:
        super().__init__(env)
        if source == "success":
            expect_success(env, "shaped_reward.source", "Use reward.")
        self._coefficient = reward_coef
        self._relative = use_rel_reward
        self._penalty = 1.0 if use_step_penalty else 0.0
        self._from_success = source == "success"
        self._value: NDArray[np.float32] = np.zeros(env.num_envs, np.float32)
        self._return = np.zeros(env.num_envs, np.float64)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes; nothing was earned in them yet."""
        fresh = reset_rows(options, self.num_envs)
        result: tuple[Any, Infos] = self.env.reset(seed=seed, options=options)
        self._value = np.where(fresh, np.float32(0), self._value)
        self._return = np.where(fresh, 0.0, self._return)
        return result

    def step(self, actions: Any) -> Step:
        """One step of every environment, with the shaped reward."""
        active = unmasked(actions, self.num_envs)[1]
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        base = infos["success"] if self._from_success else rewards
        value = np.where(active, np.float32(self._coefficient) * np.asarray(base, np.float32), self._value)
        shaped = value - (self._value if self._relative else 0) - np.float32(self._penalty)
        shaped = np.where(active, shaped, 0).astype(np.float32)
        self._value = value.astype(np.float32)
        self._return = self._return + shaped
        told = EpisodeInfos({**infos, "episode": self._episode(infos["episode"])})
        return observations, shaped, terminated, truncated, told

    def _episode(self, episode: Infos) -> Infos:
        mean = self._return / np.maximum(episode["episode_len"], 1)
        ours = {"return": self._return.astype(np.float32), "reward": mean.astype(np.float32), "task_return": episode["return"]}
        return {**episode, **ours}
