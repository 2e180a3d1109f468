"""A task that takes a memory: the first picture is bright or dark, the others grey, and the last action must say which it was."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.envs.chunks import MaskedActions

BOUND = np.ones(1, np.float32)


class RecallEnv:
    """Episodes of `limit` steps; success, and a reward of 1, if the last action has the sign of what was shown first."""

    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self, num_envs: int, limit: int) -> None:
        self.num_envs, self.limit = num_envs, limit
        self.action_space = SimpleNamespace(shape=(num_envs, 1))
        self.shown = np.zeros(num_envs, int)
        self.steps = np.zeros(num_envs, int)

    @property
    def unwrapped(self) -> RecallEnv:
        return self

    def reset(self, *, seed: list[int], options: dict[str, Any]) -> tuple[Any, Any]:
        mask = options["reset_mask"]
        self.shown[mask] = [1 if number // 7 % 2 else -1 for number in np.asarray(seed)[mask]]
        self.steps[mask] = 0
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        given = action.actions if isinstance(action, MaskedActions) else action
        self.steps += 1
        ended = self.steps == self.limit
        success = ended & (np.sign(given[:, 0]) == self.shown)
        reward = success.astype(np.float32)
        episode = {"success_once": success, "success_at_end": success, "return": reward, "episode_len": self.steps.copy()}
        return self._observed(), reward, ended, np.zeros_like(ended), {"episode": episode, "_episode": ended}

    def close(self) -> None:
        pass

    def _observed(self) -> dict[str, Any]:
        light = np.where(self.steps == 0, 128 + 127 * self.shown, 128).astype(np.uint8)
        images = np.broadcast_to(light[:, None, None, None], (self.num_envs, 8, 8, 3)).copy()
        return {"main_images": images, "task_descriptions": np.array(["say what was shown"] * self.num_envs)}


@dataclass(frozen=True)
class Recall:
    def check(self, place: str) -> None: ...

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Any:
        return RecallEnv(num_envs, max_episode_steps or 3)

    def describe(self, env: Any) -> EnvSpec:
        images = ArraySpec(shape=(8, 8, 3), dtype="uint8")
        return EnvSpec(
            observation={"main_images": images, "task_descriptions": ArraySpec(shape=(), dtype="<U18")},
            action=ArraySpec(shape=(1,), dtype="float32", low=-BOUND, high=BOUND),
            max_episode_steps=env.limit,
        )
