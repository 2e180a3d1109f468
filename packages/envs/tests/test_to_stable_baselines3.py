"""Ours as a `VecEnv` of Stable-Baselines3: by its documented interface here, by the library itself where it is installed."""

import importlib.util
import subprocess
import sys
import types
from abc import ABC, abstractmethod

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.envs import Gymnasium, Tabletop
from rlinf.envs.interop import as_sb3_vec_env, with_autoreset

INSTALLED = importlib.util.find_spec("stable_baselines3") is not None


class VecEnv(ABC):
    """What the library's documentation says of `VecEnv`, as far as an adapter meets it."""

    def __init__(self, num_envs, observation_space, action_space):
        self.num_envs, self.observation_space, self.action_space = num_envs, observation_space, action_space
        self._reset_seeds()
        self.render_mode = self.get_attr("render_mode")[0]

    def _reset_seeds(self):
        self._seeds = [None] * self.num_envs

    def seed(self, seed):
        self._seeds = [seed + i for i in range(self.num_envs)]

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()

    @abstractmethod
    def reset(self): ...
    @abstractmethod
    def step_async(self, actions): ...
    @abstractmethod
    def step_wait(self): ...
    @abstractmethod
    def close(self): ...
    @abstractmethod
    def get_attr(self, attr_name, indices=None): ...
    @abstractmethod
    def set_attr(self, attr_name, value, indices=None): ...
    @abstractmethod
    def env_method(self, method_name, *method_args, indices=None, **method_kwargs): ...
    @abstractmethod
    def env_is_wrapped(self, wrapper_class, indices=None): ...


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """The library, or what stands for it."""
    if INSTALLED:
        return
    for name in ("stable_baselines3", "stable_baselines3.common", "stable_baselines3.common.vec_env"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["stable_baselines3.common.vec_env"].VecEnv = VecEnv
    monkeypatch.delitem(sys.modules, "rlinf.envs.interop._stable_baselines3", raising=False)


def make(config, num_envs=3, limit=None):
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=False, render=False)


def test_steps_are_ours_and_ends_are_told_as_the_library_reads_them():
    """60 steps of three poles, of which some fall and some reach the limit of 15 steps."""
    cartpole = Gymnasium(env_id="CartPole-v1")
    vec, ours = as_sb3_vec_env(make(cartpole, limit=15)), with_autoreset(make(cartpole, limit=15), AutoresetMode.SAME_STEP)
    vec.seed(4)
    assert np.array_equal(vec.reset(), ours.reset(seed=4)[0]["states"])
    assert vec.observation_space == ours.single_observation_space["states"]
    ours.action_space.seed(0)
    fell = late = 0
    returns = np.zeros(3)
    for _ in range(60):
        action = ours.action_space.sample()
        observation, reward, terminated, truncated, told = ours.step(action)
        seen, paid, done, infos = vec.step(action)
        assert np.array_equal(seen, observation["states"])
        assert np.array_equal(paid, reward)
        assert np.array_equal(done, terminated | truncated)
        returns += reward
        for i, info in enumerate(infos):
            assert bool(info) == done[i]
            if not info:
                continue
            assert np.array_equal(info["terminal_observation"], told["final_obs"][i]["states"])
            assert info["TimeLimit.truncated"] == (truncated[i] and not terminated[i])
            assert (info["episode"]["r"], info["episode"]["l"]) == (returns[i], returns[i])
            assert "is_success" not in info, "CartPole knows no success"
            fell, late = fell + int(terminated[i]), late + int(info["TimeLimit.truncated"])
            returns[i] = 0
    assert fell >= 3
    assert late > 0


def test_several_arrays_are_a_dict_and_texts_are_left_out():
    vec = as_sb3_vec_env(make(Tabletop(task="reach", obs_mode="rgb"), limit=2))
    assert set(vec.observation_space.spaces) == {"main_images", "states"}
    assert set(vec.reset()) == {"main_images", "states"}
    for _ in range(2):
        _, _, done, infos = vec.step(np.ones((3, 2), np.float32))
    assert done.all()
    assert {"terminal_observation", "TimeLimit.truncated", "episode", "is_success"} == set(infos[0])
    assert vec.get_attr("num_envs", indices=[0, 2]) == [3, 3]
    assert vec.env_is_wrapped(object) == [False] * 3
    for refused in (lambda: vec.set_attr("gravity", 1), lambda: vec.env_method("push")):
        with pytest.raises(ConfigError, match="are one object"):
            refused()
    vec.close()


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="stable-baselines3 is not installed")
def test_its_ppo_trains_on_ours():
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", as_sb3_vec_env(make(Gymnasium(env_id="CartPole-v1"), 8)), n_steps=128, seed=0, device="cpu")
    model.learn(12_000)
    assert np.mean([episode["r"] for episode in model.ep_info_buffer]) > 44, "twice what a random policy gets"


@pytest.mark.skipif(INSTALLED, reason="stable-baselines3 is installed")
def test_without_the_library_it_says_what_to_install():
    code = "from rlinf.envs.interop import as_sb3_vec_env; as_sb3_vec_env(None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (
        f"{MissingExtra.__name__}: as_sb3_vec_env: the module 'stable_baselines3' is not installed. Install stable-b" in done.stderr
    )
