from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.envs.chunks import chunk_step
from rlinf.core.testing.env import EnvContract
from rlinf.envs.assembly import SequentialVectorEnv
from rlinf.envs.wrappers.episodes import EpisodeStatistics
from rlinf.envs.wrappers.rewards import ShapedReward

GIVEN = (0.5, -0.25, 1.0, 0.25)


def play(env, rewards=GIVEN, seed=1):
    env.reset(seed=seed)
    steps = [env.step(np.array([[r, 0.0]] * env.num_envs, np.float32)) for r in rewards]
    return [step[1][0].item() for step in steps], steps[-1][4]["episode"]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, [0.5, -0.25, 1.0, 0.25]),
        ({"reward_coef": 2.0}, [1.0, -0.5, 2.0, 0.5]),
        ({"use_step_penalty": True}, [-0.5, -1.25, 0.0, -0.75]),
        ({"use_rel_reward": True}, [0.5, -0.75, 1.25, -0.75]),
        ({"use_rel_reward": True, "use_step_penalty": True, "reward_coef": 4.0}, [1.0, -4.0, 4.0, -4.0]),
        ({"source": "success", "reward_coef": 5.0}, [5.0, 0.0, 5.0, 0.0]),
        ({"source": "success", "reward_coef": 5.0, "use_rel_reward": True}, [5.0, -5.0, 5.0, -5.0]),
    ],
)
def test_by_hand(counters, settings, wanted):
    env = ShapedReward(counters(9, 9, limit=4), **settings)
    found, episode = play(env)
    assert found == wanted
    assert episode["return"].tolist() == [sum(wanted)] * 2
    assert episode["reward"].tolist() == [sum(wanted) / 4] * 2
    assert episode["task_return"].tolist() == [sum(GIVEN)] * 2
    assert all(episode[key].dtype == np.float32 for key in ("return", "reward", "task_return"))


@settings(max_examples=30)
@given(rewards=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=8))
def test_relative_rewards_add_up_to_the_last_value(counter, rewards):
    env = ShapedReward(EpisodeStatistics(SequentialVectorEnv([counter]), 9), use_rel_reward=True)
    found, episode = play(env, rewards, seed=[1])
    np.testing.assert_allclose(sum(found), rewards[-1], atol=1e-5)
    np.testing.assert_allclose(episode["return"], rewards[-1], atol=1e-5)


def test_a_new_episode_starts_from_nothing(counters):
    env = ShapedReward(counters(9, 9), use_rel_reward=True)
    play(env, (0.5, 0.75))
    env.reset(seed=2, options={"reset_mask": np.array([True, False])})
    step = env.step(np.array([[0.5, 0.0]] * 2, np.float32))
    assert step[1].tolist() == [0.5, -0.25]
    assert step[4]["episode"]["return"].tolist() == [0.5, 0.5]
    np.testing.assert_allclose(step[4]["episode"]["reward"], [0.5, 0.5 / 3], rtol=1e-6, err_msg="after one step, and after three")


def test_an_ended_environment_pays_nothing_for_the_rest_of_a_chunk(counter):
    tasks = [lambda: counter(1), lambda: counter(9)]
    inner = EpisodeStatistics(SequentialVectorEnv(tasks), 9)
    env = ShapedReward(inner, use_rel_reward=True, use_step_penalty=True)
    env.reset(seed=[1, 2])
    result = chunk_step(env, np.array([[[0.5, 0]] * 3, [[0.5, 0]] * 3], np.float32))
    assert result.rewards.tolist() == [[-0.5, 0, 0], [-0.5, -1, -1]]
    assert result.infos["episode"]["return"].tolist() == [-0.5, -2.5]


def test_it_keeps_the_contract(counters):
    EnvContract(factory=lambda: ShapedReward(counters(9, 9, 9), use_rel_reward=True, use_step_penalty=True, reward_coef=3.0)).run()
