"""Memory stays flat over resets: the quick test counts Python's and NumPy's allocations, the soak the pages of the process."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rlinf.core.registry import ENVS
from rlinf.envs.assembly import assemble
from rlinf.envs.tabletop import Tabletop

RESETS, WARM_UP, STEPS, SAMPLES = 2_000, 300, 3, 20
KIBIBYTES = 1.0
"""The most that a reset may add to the process in the soak: the allocator's own wandering stays below 2 MiB in 2,000 resets."""


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope(env, measure, resets, warm_up):
    """Bytes that each reset adds, by the line through samples after the warm-up."""
    env.action_space.seed(0)
    every = (resets - warm_up) // SAMPLES
    found = np.zeros(SAMPLES)
    for count in range(resets):
        mask = np.ones(env.num_envs, np.bool_) if count % 2 == 0 else np.arange(env.num_envs) == 0
        env.reset(seed=count, options={"reset_mask": mask})
        for _ in range(STEPS):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if (terminated | truncated).any():
                break
        if (terminated | truncated).any():
            env.reset(seed=count, options={"reset_mask": terminated | truncated})
        sample, left = divmod(count - warm_up, every)
        if left == 0 and 0 <= sample < SAMPLES:
            gc.collect()
            found[sample] = measure()
    return float(np.polyfit(np.arange(SAMPLES) * every, found, 1)[0])


class Leaky(gymnasium.Env):
    """Keeps what it draws: a list that grows at each reset."""

    def __init__(self, leak):
        self.observation_space = gymnasium.spaces.Dict({"states": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)})
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.kept, self.leak = [], leak

    def reset(self, *, seed=None, options=None):
        if self.leak:
            self.kept.append(np.ones(self.leak, np.uint8))
        return {"states": np.zeros(2, np.float32)}, {}

    def step(self, action):
        return {"states": np.ones(2, np.float32)}, 0.0, False, False, {"success": False}


def leaky(leak):
    return assemble([lambda: Leaky(leak)] * 2, max_episode_steps=50, camera=None)


@pytest.fixture
def traced():
    gc.freeze()  # each sample looks for garbage, and what other tests have imported is none: a second of looking
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.unfreeze()


@pytest.mark.parametrize("obs_mode", ["state", "rgb"])
def test_tabletop_keeps_nothing(traced, obs_mode):
    config = Tabletop(task="slots", obs_mode=obs_mode, image_size=8)
    env = config.make(3, max_episode_steps=None, ignore_terminations=False, render=False)
    assert abs(slope(env, traced, 80, 20)) < 32


def test_a_small_leak_is_found(traced):
    assert slope(leaky(64), traced, 80, 20) > 64
    assert abs(slope(leaky(0), traced, 80, 20)) < 32


def soaked(what):
    """KiB that each reset adds to a process of its own: in one that ran other tests, what they freed is taken first."""
    ended = subprocess.run([sys.executable, __file__, what], capture_output=True, text=True, check=False, timeout=1100)
    assert ended.returncode == 0, ended.stderr
    return float(ended.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_soak_finds_a_leak_of_two_kilobytes_a_reset():
    assert soaked("4096") > 2 * KIBIBYTES
    assert soaked("0") < KIBIBYTES


SIMULATORS = {
    "tabletop": ("numpy", "tabletop", {"task": "pick_place", "obs_mode": "rgb", "image_size": 16}),
    "pendulum": ("gymnasium", "gymnasium", {"env_id": "Pendulum-v1"}),
    "half_cheetah": ("mujoco", "gymnasium", {"env_id": "HalfCheetah-v5"}),
    "fetch_reach": ("gymnasium_robotics", "gymnasium", {"env_id": "FetchReach-v4"}),
    "push_cube": ("mani_skill", "maniskill", {"task_id": "PushCube-v1"}),
    "metaworld": ("metaworld", "metaworld", {"task_id": "reach-v3"}),
    "envpool": ("envpool", "envpool", {"env_id": "HalfCheetah-v4"}),
    "envpool_stream": ("envpool", "envpool", {"env_id": "MetaWorld/Reach-v3", "seeds": "stream"}),
    "robosuite": ("robosuite", "robosuite", {"task_id": "Lift", "rebuild": False}),
    "genesis": ("genesis", "genesis", {}),
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SIMULATORS)
def test_soak(name):
    module = SIMULATORS[name][0]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    grown = soaked(name)
    assert grown < KIBIBYTES, f"{name}: each reset adds {grown:.2f} KiB to the process"


def simulator(name):
    _, registered, config = SIMULATORS[name]
    return ENVS.build(registered, config, place="env").make(2, max_episode_steps=50, ignore_terminations=False, render=False)


if __name__ == "__main__":
    environment = simulator(sys.argv[1]) if sys.argv[1] in SIMULATORS else leaky(int(sys.argv[1]))
    print(slope(environment, resident, RESETS, WARM_UP) / 1024)
    environment.close()
