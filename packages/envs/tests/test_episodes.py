from __future__ import annotations

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError
from rlinf.envs.assembly import assemble
from rlinf.envs.text_array import TextArray
from rlinf.envs.wrappers.episodes import EpisodeStatistics, episode_seeds


def actions(*first):
    return np.array([[a, 0.0] for a in first], np.float32)


def test_one_seed_counts_up_over_environments_and_those_that_are_not_given_are_drawn():
    assert episode_seeds(7, 3) == episode_seeds([7, 8, 9], 3) == [7, 8, 9]
    first, given, last = episode_seeds([None, 5, None], 3)
    assert given == 5
    assert len({first, last, *episode_seeds(None, 2)}) == 4


def test_statistics_by_hand(counters):
    env = counters(2, 10**6, limit=3)
    observation, infos = env.reset(seed=[40, 50])
    assert infos == {}
    assert observation["states"].tolist() == [[40, 0], [50, 0]]
    assert observation["states"].dtype == np.float32

    observation, reward, terminated, truncated, infos = env.step(actions(0.5, -0.25))
    assert observation["states"].tolist() == [[40, 1], [50, 1]]
    assert (reward.tolist(), reward.dtype) == ([0.5, -0.25], np.float32)
    assert terminated.tolist() == truncated.tolist() == infos["_episode"].tolist() == [False, False]
    assert infos["success"].tolist() == [True, True]

    observation, _, terminated, truncated, infos = env.step(actions(0.25, -0.25))
    assert observation["states"].tolist() == [[40, 2], [50, 2]], "the final observation, not that of a new episode"
    assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, False])
    assert infos["_episode"].tolist() == [True, False]
    episode = {key: value[0].item() for key, value in infos["episode"].items()}
    assert episode == {"success_once": True, "success_at_end": False, "return": 0.75, "episode_len": 2, "reward": 0.375}

    observation, _ = env.reset(seed=[60, 70], options={"reset_mask": np.array([True, False])})
    assert observation["states"].tolist() == [[60, 0], [50, 2]]

    _, _, terminated, truncated, infos = env.step(actions(1.0, -0.25))
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
    episode = {key: value[1].item() for key, value in infos["episode"].items()}
    assert episode == {"success_once": True, "success_at_end": True, "return": -0.75, "episode_len": 3, "reward": -0.25}
    assert infos["episode"]["episode_len"].tolist() == [1, 3]
    env.close()


def test_both_flags_when_task_and_limit_end_together(counters):
    env = counters(3, limit=3)
    env.reset(seed=1)
    for _ in range(3):
        _, _, terminated, truncated, _ = env.step(actions(0.0))
    assert (terminated.tolist(), truncated.tolist()) == ([True], [True])


def test_what_was_given_is_not_changed_by_later_steps(counters):
    env = counters(9, limit=9)
    observation, _ = env.reset(seed=1)
    first = env.step(actions(1.0))
    kept = [first[0]["states"].copy(), first[1].copy(), {k: v.copy() for k, v in first[4]["episode"].items()}]
    env.step(actions(-1.0))
    assert observation["states"].tolist() == [[1, 0]]
    assert np.array_equal(first[0]["states"], kept[0])
    assert np.array_equal(first[1], kept[1])
    assert all(np.array_equal(first[4]["episode"][key], kept[2][key]) for key in kept[2])


@settings(max_examples=30)
@given(rewards=st.lists(st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3), min_size=1, max_size=7))
def test_returns_add_up(counter, rewards):
    env = assemble([counter] * 3, max_episode_steps=len(rewards), camera=None)
    env.reset(seed=0)
    for row in rewards:
        infos = env.step(actions(*row))[4]
    assert infos["_episode"].all()
    np.testing.assert_allclose(infos["episode"]["return"], np.sum(rewards, axis=0), atol=1e-5)
    assert infos["episode"]["episode_len"].tolist() == [len(rewards)] * 3


class Tasks(gymnasium.Env):
    """A seed is the number of its task, told as `tells` says."""

    metadata: ClassVar = {"tasks": ("open it", "close it", "leave it")}

    def __init__(self, tells: str) -> None:
        self.tells = tells
        parts = {"states": gymnasium.spaces.Box(-1, 1, (1,), np.float32)}
        self.observation_space = gymnasium.spaces.Dict(parts | ({"task_descriptions": TextArray(8)} if tells == "text" else {}))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _observe(self):
        observation = {"states": np.zeros(1, np.float32)}
        return observation | ({"task_descriptions": self.text} if self.tells == "text" else {})

    def reset(self, *, seed=None, options=None):
        self.text = (*self.metadata["tasks"], "wash it")[seed]
        return self._observe(), {"task": seed} if self.tells == "number" else {}

    def step(self, action):
        return self._observe(), 0.0, False, False, {}


def multitask(count, tells):
    vector = SyncVectorEnv([lambda: Tasks(tells)] * count, autoreset_mode=AutoresetMode.DISABLED)
    return EpisodeStatistics(vector, 5)


@pytest.mark.parametrize("tells", ["number", "text"])
def test_the_task_of_an_episode(tells):
    env = multitask(3, tells)
    env.reset(seed=[2, 0, 1])
    first = env.step(np.zeros((3, 1), np.float32))[4]["episode"]
    assert (first["task"].tolist(), first["task"].dtype) == ([2, 0, 1], np.int64)
    env.reset(seed=[1, 1, 1], options={"reset_mask": np.array([True, False, False])})
    assert env.step(np.zeros((3, 1), np.float32))[4]["episode"]["task"].tolist() == [1, 0, 1]
    assert first["task"].tolist() == [2, 0, 1]


def test_a_task_that_nothing_tells_is_an_error():
    with pytest.raises(ConfigError, match="3 tasks, and a reset doesn't say which"):
        multitask(2, "nothing").reset(seed=[0, 1])
    with pytest.raises(ConfigError, match="no task reads 'wash it'"):
        multitask(2, "text").reset(seed=[0, 3])


def test_success_after_which_an_episode_goes_on(counters):
    env = counters(10**6, limit=4)
    env.reset(seed=1)
    for _ in range(4):
        _, _, terminated, truncated, infos = env.step(actions(0.5))
    assert (terminated.tolist(), truncated.tolist()) == ([False], [True])
    episode = {key: value[0].item() for key, value in infos["episode"].items()}
    assert episode == {"success_once": True, "success_at_end": False, "return": 2.0, "episode_len": 4, "reward": 0.5}
