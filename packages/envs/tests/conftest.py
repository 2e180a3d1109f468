from __future__ import annotations

import os
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rlinf.envs.assembly import SequentialVectorEnv, assemble
from rlinf.envs.wrappers.episodes import EpisodeStatistics

# robosuite compiles its arithmetic at the first step, which costs more than its tests have steps to gain.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
# Whether a simulator is installed is asked of `find_spec`: an import costs seconds in every process that collects its tests.
# Tests are imported without their folder on the path, and some share what lies beside them.
sys.path.insert(0, str(Path(__file__).parent))


class Counter(gymnasium.Env):
    """Counts steps. The reward is the action's first entry; it is solved while the count is odd, and ends at `ends`."""

    def __init__(self, ends: int = 10**6) -> None:
        self.observation_space = gymnasium.spaces.Dict({"states": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)})
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.ends = ends
        self.closed = 0

    def _state(self):
        return {"states": np.array([self.start, self.count], np.float32)}

    def reset(self, *, seed=None, options=None):
        self.start, self.count = seed, 0
        return self._state(), {}

    def step(self, action):
        self.count += 1
        return self._state(), float(action[0]), self.count >= self.ends, False, {"success": self.count % 2 == 1}

    def close(self):
        self.closed += 1


@pytest.fixture
def counters():
    """Builds a vector of counters, one for each number of steps to termination."""

    def build(*ends: int, limit: int = 5, camera=None):
        tasks = [lambda end=end: Counter(end) for end in ends]
        return assemble(tasks, max_episode_steps=limit, camera=camera)

    return build


@pytest.fixture
def halting():
    """Counters that end after the given numbers of steps, in an environment that can leave some out of a step."""

    def build(*ends: int, limit: int = 5):
        return EpisodeStatistics(SequentialVectorEnv([lambda end=end: Counter(end) for end in ends]), limit)

    return build


@pytest.fixture(scope="session")
def counter():
    return Counter
