"""Environments that a simulator's process imports in the tests: `remote_envs:Numbers`."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

import gymnasium
import numpy as np

from rlinf.envs.assembly import assemble
from rlinf.envs.spaces import describe
from rlinf.envs.text_array import TextArray

TASKS = ("push the cube", "açık kutu")


class Number(gymnasium.Env):
    """A random walk that its seed and the actions decide; it ends beyond `ends`."""

    def __init__(self, config):
        self.metadata = {"tasks": TASKS, "reset_options": ("task",)}
        self.config = config
        images = gymnasium.spaces.Box(0, 255, (config.pixels, config.pixels, 3), np.uint8)
        states = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        spaces = {"main_images": images, "states": states, "task_descriptions": TextArray(16)}
        self.observation_space = gymnasium.spaces.Dict(spaces)
        self.action_space = gymnasium.spaces.Discrete(5) if config.discrete else gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def _see(self):
        image = np.full(self.observation_space["main_images"].shape, int(abs(self.at) * 50) % 256, np.uint8)
        return {"main_images": image, "states": np.array([self.at, self.n], np.float32), "task_descriptions": TASKS[self.task]}

    def reset(self, *, seed=None, options=None):
        self.random, self.n = np.random.default_rng(None if self.config.impure else seed), 0
        asked = (options or {}).get("task")
        drawn = int(self.random.integers(2))
        self.task = drawn if asked is None else TASKS.index(asked) if isinstance(asked, str) else asked
        self.at = float(self.random.normal())
        return self._see(), {}

    def step(self, action):
        self.config.misbehave(float(np.ravel(action)[0]))
        self.n += 1
        self.at += float(np.ravel(action)[0]) + 0.1 * float(self.random.normal())
        return self._see(), self.at, abs(self.at) > self.config.ends, False, {"success": self.at > 0}


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Walks; an action of exactly 0.25 makes what `fails` names happen, one of 0.125 takes `slow` seconds."""

    pixels: int = 4
    discrete: bool = False
    ends: float = 1e9
    impure: bool = False
    promises: bool = False
    fails: str = ""
    slow: float = 0.0

    def check(self, place):
        pass

    def misbehave(self, action):
        if action == 0.125:
            time.sleep(self.slow)
        if not self.fails or action != 0.25:
            return
        if self.fails == "raises":
            raise ValueError("the gripper is stuck")
        if self.fails == "exits":
            print("the licence has expired", file=sys.stderr, flush=True)
            os._exit(3)
        time.sleep(600)

    def make(self, num_envs, *, max_episode_steps, ignore_terminations, render):
        env = assemble([lambda: Number(self)] * num_envs, max_episode_steps=max_episode_steps or 6, camera=None)
        if self.impure and not self.promises:
            env.env.metadata["waived"] = {"pure_reset": "it draws from the system's entropy"}
        return env

    def describe(self, env):
        return describe(env)


def not_an_environment():
    return 1
