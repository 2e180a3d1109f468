from __future__ import annotations

import pickle

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from rlinf.envs.spaces import describe
from rlinf.envs.text_array import TextArray


class Told(gymnasium.Env):
    """Says what to do."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Dict({"task_descriptions": TextArray(12)})
        self.action_space = gymnasium.spaces.Discrete(2)

    def _said(self):
        return {"task_descriptions": ("left", "right")[int(self.np_random.integers(2))]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._said(), {}

    def step(self, action):
        return self._said(), 0.0, False, False, {}


def test_members():
    space = TextArray(5, (2,))
    assert np.array(["one", "three"]) in space
    assert np.array(["one", "eleven"]) not in space
    assert np.array(["one"]) not in space
    assert np.array([1, 2]) not in space
    assert "five" in TextArray(5)
    assert space.sample() in space
    assert space == pickle.loads(pickle.dumps(space))
    assert space != TextArray(5)
    assert space != TextArray(6, (2,))
    assert len({space, TextArray(5, (2,))}) == 1


def test_samples_follow_the_seed():
    assert np.array_equal(TextArray(9, (3,), seed=1).sample(), TextArray(9, (3,), seed=1).sample())
    assert not np.array_equal(TextArray(9, (3,), seed=1).sample(), TextArray(9, (3,), seed=2).sample())


def test_batches():
    space = batch_space(TextArray(5), 3)
    assert space == TextArray(5, (3,))
    assert list(iterate(space, np.array(["a", "b", "c"]))) == ["a", "b", "c"]
    assert create_empty_array(TextArray(5), 2).tolist() == ["", ""]
    assert create_empty_array(TextArray(5, (2,)), None).shape == (2,)


def test_gymnasium_checks_and_batches_environments_with_texts():
    check_env(Told(), skip_render_check=True)
    env = SyncVectorEnv([Told] * 4)
    observation, _ = env.reset(seed=0)
    texts = observation["task_descriptions"]
    assert texts.dtype == np.dtype("<U12")
    assert set(texts.tolist()) == {"left", "right"}
    assert observation in env.observation_space
    assert env.step(env.action_space.sample())[0] in env.observation_space


def test_texts_are_described_without_bounds():
    env = SyncVectorEnv([Told] * 2)
    env.metadata = {**env.metadata, "max_episode_steps": 3}
    found = describe(env).observation["task_descriptions"]
    assert (found.shape, found.dtype, found.low) == ((), "<U12", None)
