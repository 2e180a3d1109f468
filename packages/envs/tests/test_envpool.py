"""envpool: seeds, partial resets and ends are ours, and what it simulates is what envpool alone simulates."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import deque
from importlib.util import find_spec

import numpy as np
import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.envpool import EnvPool

if find_spec("envpool") is None:
    pytest.skip("needs envpool", allow_module_level=True)

CARTPOLE = EnvPool(env_id="CartPole-v1")
METAWORLD = EnvPool(env_id="MetaWorld/Reach-v3", kwargs={"partially_observable": False}, success_key="success")
FETCH = EnvPool(env_id="FetchReach-v4", success_key="is_success")
CHEETAH = EnvPool(env_id="HalfCheetah-v4")


def make(config, num_envs=3, *, limit=None, ignore=False, render=False):
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=render)


def stream(config):
    return EnvPool(env_id=config.env_id, kwargs=config.kwargs, success_key=config.success_key, seeds="stream")


@pytest.mark.parametrize(
    "config",
    [CARTPOLE, CHEETAH, pytest.param(FETCH, marks=pytest.mark.slow), METAWORLD, stream(CARTPOLE)],
    ids=lambda c: f"{c.env_id}-{c.seeds}",
)
def test_contract(config):
    EnvContract(factory=lambda: make(config, 2, limit=None if config.env_id.startswith("Cart") else 6), steps=3).run()


def alone(env_id, seed, actions):
    """Transitions of envpool's own single environment up to its end."""
    env = importlib.import_module("envpool").make_gymnasium(env_id, num_envs=1, seed=[seed])
    before, transitions = env.reset()[0][0], []
    for action in actions:
        after, reward, terminated, truncated, _ = env.step(action[None])
        transitions.append((*before, *np.atleast_1d(action), reward[0], *after[0], terminated[0], truncated[0]))
        before = after[0]
        if terminated[0] or truncated[0]:
            break
    return transitions


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("threads", [1, 3])
def test_every_episode_is_that_of_an_environment_alone(threads):
    """150 steps of five poles that fall at different times, each reset at once with a seed of its own."""
    env = make(EnvPool(env_id="CartPole-v1", num_threads=threads), 5)
    seeds = list(range(5))
    states = env.reset(seed=seeds)[0]["states"]
    actions, seen, following, ends = [[] for _ in seeds], [[] for _ in seeds], 100, 0
    env.action_space.seed(1)
    for _ in range(150):
        action = env.action_space.sample()
        observation, reward, terminated, truncated, _ = env.step(action)
        after, done = observation["states"], terminated | truncated
        for i in range(5):
            actions[i].append(action[i])
            seen[i].append((*states[i], action[i], reward[i], *after[i], terminated[i], truncated[i]))
            if done[i]:
                assert seen[i] == alone("CartPole-v1", seeds[i], actions[i])
                actions[i], seen[i], seeds[i] = [], [], following
                following, ends = following + 1, ends + 1
        states = after
        if done.any():
            states = env.reset(seed=seeds, options={"reset_mask": done})[0]["states"]
            assert np.array_equal(states[~done], after[~done])
    assert ends > 20
    assert len(env.unwrapped._pools) <= 5
    env.close()
    assert not env.unwrapped._pools


def test_a_stream_can_be_repeated_and_declares_what_it_does_not_keep():
    def starts():
        env = make(stream(CHEETAH), 2, limit=3)
        assert {"partial_reset", "place", "pure_reset", "seeds"} < set(env.metadata["waived"])
        first = [env.reset(seed=5)[0]["states"]]
        for mask in ([True, False], [False, True], [True, True]):
            kept, _ = env.reset(seed=5, options={"reset_mask": np.array(mask)})
            assert all(np.array_equal(kept["states"][i], first[-1][i]) != mask[i] for i in range(2))
            first.append(kept["states"])
        return np.concatenate(first)

    assert np.array_equal(starts(), starts())


def test_the_limit_is_the_tasks_own_or_ours_and_hides_no_termination():
    assert make(METAWORLD).metadata["max_episode_steps"] == 500
    env = make(CARTPOLE, 2)
    env.reset(seed=0)
    terminated, steps = np.zeros(2, bool), 0
    while not terminated.any():
        _, _, terminated, truncated, _ = env.step(np.array([0, 0]))
        steps += 1
    assert not truncated.any()
    exact = make(CARTPOLE, 2, limit=steps)
    exact.reset(seed=0)
    for _ in range(steps):
        _, _, both, cut, _ = exact.step(np.array([0, 0]))
    assert np.array_equal(both, terminated)
    assert cut.all()


def test_success_and_rewards_of_metaworld():
    """A proportional controller reaches the goal that the state shows."""
    env = make(METAWORLD, 4, limit=80)
    observation, _ = env.reset(seed=0)
    for _ in range(80):
        state = observation["states"]
        action = np.clip(np.concatenate([10 * (state[:, -3:] - state[:, :3]), np.zeros((4, 1))], axis=1), -1, 1)
        observation, reward, terminated, _, infos = env.step(action.astype(np.float32))
        assert not terminated.any()
    assert infos["episode"]["success_once"].all()
    assert (reward > 5).all()


def test_what_is_refused():
    with pytest.raises(ConfigError, match=r"no task 'MetaWorld/Reech-v3'\. Did you mean 'MetaWorld/Reach-v3'"):
        make(EnvPool(env_id="MetaWorld/Reech-v3"))
    with pytest.raises(ConfigError, match="'seed' is no setting of the task"):
        make(EnvPool(env_id="CartPole-v1", kwargs={"seed": 3}))
    with pytest.raises(ConfigError, match="images of envpool"):
        make(EnvPool(env_id="HalfCheetah-v4", kwargs={"from_pixels": True}))
    with pytest.raises(ConfigError, match="rendering"):
        make(CARTPOLE, render=True)
    env = make(EnvPool(env_id="CartPole-v1", success_key="success"))
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"says nothing of 'success'\. Its info holds: nothing"):
        env.step(np.zeros(3, int))
    env = make(CARTPOLE, ignore=True)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="terminated, after which envpool can't go on"):
        deque(env.step(np.zeros(3, int)) for _ in range(100))


def test_importing_the_configuration_imports_no_envpool():
    code = "import sys, rlinf.envs.envpool.envpool as e; e.EnvPool(env_id='x').check('env'); sys.exit('envpool' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
