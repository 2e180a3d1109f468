"""The examiner itself: a sound environment passes, and each way of being wrong is found."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import VectorWrapper

from rlinf.core.errors import ContractError
from rlinf.core.testing.env import EnvContract


class Broken(VectorWrapper):
    """A sound environment, but for one thing."""

    shared = 0.0

    def __init__(self, env, flaw):
        super().__init__(env)
        self.flaw = flaw
        self.memory = 0.0
        self.resets = 0

    def reset(self, *, seed=None, options=None):
        options = dict(options or {})
        if self.flaw == "resets all":
            options.pop("reset_mask", None)
        observation, infos = self.env.reset(seed=seed, options=options)
        self.resets += 1
        if self.flaw == "remembers":
            observation["states"][:, 1] += self.memory
        if self.flaw == "ignores seed":
            observation["states"][:, 0] = 0
        return observation, infos

    def step(self, actions):
        if self.flaw in ("takes NaN", "takes anything"):
            actions = np.clip(np.nan_to_num(actions), -1, 1)
            if self.flaw == "takes anything":
                actions = np.resize(actions, (2, 2))
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        self.memory += 1.0
        Broken.shared += 1.0
        if self.flaw == "shares":
            observation["states"][:, 1] += Broken.shared if self.resets > 30 else 0
        if self.flaw == "float64 reward":
            reward = reward.astype(np.float64)
        if self.flaw == "no statistics":
            infos = {"success": infos["success"]}
        if self.flaw == "wrong return":
            infos["episode"]["return"] = infos["episode"]["return"] + 1
        if self.flaw == "autoreset" and (terminated | truncated).any():
            seeds = [7 + 6000 + 17 * i for i in range(2)]
            observation, _ = self.env.reset(seed=seeds, options={"reset_mask": terminated | truncated})
        if self.flaw == "buffer":
            self.buffer = getattr(self, "buffer", observation)
            self.buffer["states"][:] = observation["states"]
            observation = self.buffer
        return observation, reward, terminated, truncated, infos

    def close(self, **kwargs):
        if self.flaw != "stays open":
            self.env.close(**kwargs)


def examine(counters, flaw):
    EnvContract(factory=lambda: Broken(counters(4, 6), flaw), steps=3).run()


def test_a_sound_environment_passes(counters):
    passed = []
    names = EnvContract(factory=lambda: counters(4, 6), steps=3).run(report=passed.append)
    assert passed == names
    assert len(names) == 11
    examine(counters, "none")


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("remembers", "depends on what happened before"),
        ("ignores seed", "another seed gives the same state"),
        ("resets all", "changed the observation of environment 1|moved environment 1"),
        ("float64 reward", "reward: expected float32"),
        ("no statistics", "_episode"),
        ("wrong return", r"infos\['episode'\]: length, return"),
        ("autoreset", "not the final one|ended and was not reset"),
        ("takes NaN", "not a number"),
        ("takes anything", "wrong shape"),
        ("stays open", "after close"),
    ],
)
def test_each_flaw_is_found(counters, flaw, message):
    with pytest.raises(ContractError, match=message):
        examine(counters, flaw)


def test_one_environment_is_too_few(counters):
    with pytest.raises(ContractError, match="at least 2"):
        EnvContract(factory=lambda: counters(4)).run()


class Leaky(VectorWrapper):
    """Its instances share a number that every step moves."""

    total = 0.0

    def reset(self, *, seed=None, options=None):
        if not options:
            Leaky.total = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, actions):
        observation, reward, *rest = self.env.step(actions)
        Leaky.total += 1.0
        return observation, reward + np.float32(Leaky.total), *rest


def test_shared_state_is_found(counters):
    with pytest.raises(ContractError, match=r"share state|moved environment"):
        EnvContract(factory=lambda: Leaky(counters(40, 60, limit=90)), steps=3).run()
