from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.core.testing.env import EnvContract
from rlinf.envs import Gymnasium


def make(config, num_envs=3, *, limit=None, ignore=False):
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=False)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_contract(env_id):
    EnvContract(factory=lambda: make(Gymnasium(env_id=env_id))).run()


def test_contract_of_fetch():
    pytest.importorskip("gymnasium_robotics")
    EnvContract(factory=lambda: make(Gymnasium(env_id="FetchReachDense-v4", success_key="is_success"), 2)).run()


def test_fetch_is_flattened_by_sorted_key():
    robotics = pytest.importorskip("gymnasium_robotics")
    gymnasium.register_envs(robotics)
    bare = gymnasium.make("FetchReachDense-v4")
    observation, _ = bare.reset(seed=5)
    expected = np.concatenate([observation[k] for k in ("achieved_goal", "desired_goal", "observation")]).astype(np.float32)
    config = Gymnasium(env_id="FetchReachDense-v4", success_key="is_success")
    env = make(config, 1)
    assert np.array_equal(env.reset(seed=[5])[0]["states"][0], expected)
    spec = config.describe(env)
    assert (spec.observation["states"].shape, spec.action.shape, spec.max_episode_steps) == ((16,), (4,), 50)
    assert np.array_equal(spec.action.high, np.ones(4, np.float32))


def test_fetch_success_is_reached_and_does_not_end_the_episode():
    pytest.importorskip("gymnasium_robotics")
    env = make(Gymnasium(env_id="FetchReachDense-v4", success_key="is_success"), 2, limit=20)
    observation, _ = env.reset(seed=[3, 4])
    for _ in range(20):
        states = observation["states"]
        action = np.zeros((2, 4), np.float32)
        action[:, :3] = np.clip(8 * (states[:, 3:6] - states[:, :3]), -1, 1)
        observation, _, terminated, truncated, infos = env.step(action)
    assert infos["success"].all()
    assert infos["episode"]["success_at_end"].all()
    assert truncated.all()
    assert not terminated.any()


def test_ignored_terminations():
    env = make(Gymnasium(env_id="CartPole-v1"), 2, limit=60, ignore=True)
    env.reset(seed=1)
    for _ in range(60):
        _, _, terminated, truncated, infos = env.step(np.ones(2, np.int64))
        assert not terminated.any()
    assert truncated.all()
    assert infos["episode"]["episode_len"].tolist() == [60, 60]


def test_discrete_actions_are_described():
    config = Gymnasium(env_id="CartPole-v1")
    action = config.describe(make(config, 1)).action
    assert (action.shape, int(action.low), int(action.high)) == ((), 0, 1)


def test_a_success_key_that_the_environment_does_not_have():
    env = make(Gymnasium(env_id="Pendulum-v1", success_key="is_success"), 1)
    env.reset(seed=1)
    with pytest.raises(ConfigError, match=r"env\.success_key: the environment says nothing of 'is_success'"):
        env.step(np.zeros((1, 1), np.float32))


def test_unknown_id():
    with pytest.raises(ConfigError, match=r"env\.train\.env_id: .*Pendulum"):
        Gymnasium(env_id="Pendulim-v1").check("env.train")


def test_missing_packages():
    with pytest.raises(MissingExtra, match="no_such_package"):
        Gymnasium(env_id="no_such_package:Thing-v0").check("env.train")


def test_an_environment_without_a_limit(counter):
    gymnasium.register("rlinf_test/Endless-v0", entry_point=gymnasium.spec("Pendulum-v1").entry_point)
    with pytest.raises(ConfigError, match="max_episode_steps"):
        make(Gymnasium(env_id="rlinf_test/Endless-v0"))


def test_public_modules_import_no_simulator():
    heavy = "{'torch', 'ray', 'mujoco', 'sapien', 'mani_skill', 'gymnasium_robotics', 'PIL', 'imageio'}"
    code = f"""
import sys
import rlinf.envs, rlinf.envs.commands, rlinf.envs.video
from rlinf.core.errors import MissingExtra
for config in (rlinf.envs.ManiSkill(), rlinf.envs.Gymnasium(env_id='FetchReachDense-v4')):
    try:
        config.check('env')
    except MissingExtra:
        pass
print(sorted({heavy} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr
