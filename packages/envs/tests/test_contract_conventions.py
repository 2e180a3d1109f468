"""Gymnasium's own conventions for vector environments, held by ours: spaces, autoreset mode, and its wrappers on top."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from gymnasium.wrappers import vector as wrappers

from rlinf.core.testing.env import EnvContract
from rlinf.envs import Gymnasium, Tabletop
from rlinf.envs.assembly import assemble

LIMIT = 6
OLD = tuple(map(int, gymnasium.__version__.split(".")[:2])) < (1, 4)
CONFIGS = {
    "continuous": Gymnasium(env_id="Pendulum-v1"),
    "discrete": Gymnasium(env_id="CartPole-v1"),
    "images and texts": Tabletop(task="slots", obs_mode="rgb", image_size=8),
}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def env(request):
    env = request.param.make(3, max_episode_steps=LIMIT, ignore_terminations=False, render=False)
    yield env
    env.close()


def same(first, second):
    """Gymnasium's own comparison; texts, which it would compare as numbers, by NumPy."""
    pairs = [(first[key], second[key]) for key in first]
    assert list(first) == list(second)
    return all(np.array_equal(a, b) if a.dtype.kind == "U" else data_equivalence(a, b) for a, b in pairs)


def test_spaces_are_batched(env):
    assert isinstance(env, VectorEnv)
    assert env.num_envs == 3
    assert env.observation_space == batch_space(env.single_observation_space, 3)
    assert env.action_space == batch_space(env.single_action_space, 3)
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert isinstance(env.unwrapped, VectorEnv)


def test_observations_can_be_taken_apart_and_put_together(env):
    observation, infos = env.reset(seed=3)
    assert observation in env.observation_space
    assert infos == {}
    rows = list(iterate(env.observation_space, observation))
    assert all(row in env.single_observation_space for row in rows)
    room = create_empty_array(env.single_observation_space, n=3)
    assert same(concatenate(env.single_observation_space, rows, room), observation)


def test_seeds_are_gymnasiums(env):
    assert same(env.reset(seed=3)[0], env.reset(seed=[3, 4, 5])[0])
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(4)]
    trace = [env.step(action) for action in actions]
    env.reset(seed=3)
    for first, action in zip(trace, actions, strict=True):
        second = env.step(action)
        assert same(first[0], second[0])
        assert data_equivalence(first[1:], second[1:])


def test_infos_are_arrays_with_a_mask(env):
    env.reset(seed=3)
    infos = env.step(env.action_space.sample())[4]
    assert infos["_episode"].dtype == infos["success"].dtype == np.bool_
    assert all(len(values) == 3 for values in infos["episode"].values())
    if OLD:
        return  # Gymnasium before 1.4 has no `DictInfoToList` for arrays without a mask of their own
    listed = wrappers.DictInfoToList(env)
    listed.reset(seed=3)
    assert len(listed.step(env.action_space.sample())[4]) == 3


def test_gymnasiums_statistics_agree_with_ours(env):
    both = wrappers.RecordEpisodeStatistics(env, stats_key="theirs")
    both.reset(seed=3)
    ended = 0
    for turn in range(3 * LIMIT):
        _, _, terminated, truncated, infos = both.step(env.action_space.sample())
        done = terminated | truncated
        if done.any():
            assert np.array_equal(infos["_theirs"], done)
            ours, theirs = infos["episode"], infos["theirs"]
            assert np.allclose(ours["return"][done], theirs["r"][done], atol=1e-4)
            assert np.array_equal(ours["episode_len"][done], theirs["l"][done])
            both.reset(seed=turn, options={"reset_mask": done})
            ended += int(done.sum())
    assert ended >= 9


def test_other_wrappers_work_on_top(env):
    env = wrappers.FilterObservation(env, ["states"])
    env = wrappers.NormalizeReward(wrappers.FlattenObservation(env))
    if isinstance(env.single_action_space, gymnasium.spaces.Box):
        env = wrappers.RescaleAction(env, np.float32(-0.5), np.float32(0.5))
    observation, _ = env.reset(seed=3)
    assert observation.ndim == 2
    for turn in range(2 * LIMIT):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert observation in env.observation_space
        assert reward.shape == (3,)
        if (terminated | truncated).any():
            env.reset(seed=turn, options={"reset_mask": terminated | truncated})


@pytest.mark.parametrize("task", ["reach", "push", "slots", "pick_place"])
def test_the_contract_holds_where_an_expert_ends_episodes(task):
    def factory():
        return Tabletop(task=task).make(3, max_episode_steps=None, ignore_terminations=False, render=False)

    EnvContract(factory=factory, act=lambda env: env.unwrapped.expert_actions()).run()


class Brief(gymnasium.Env[Any, Any]):
    """An episode of `seed % longest + 1` steps."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, longest: int) -> None:
        self.observation_space = gymnasium.spaces.Dict({"states": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)})
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.longest = longest

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left, self.at = int(seed or 0) % self.longest + 1, np.random.default_rng(seed).normal(size=2)
        return {"states": self.at.astype(np.float32)}, {}

    def step(self, action: Any) -> Any:
        self.left, self.at = self.left - 1, self.at + 0.1 * np.asarray(action)
        over = self.left == 0
        return {"states": self.at.astype(np.float32)}, float(self.at.sum()), over, False, {"success": over}


@pytest.mark.parametrize("longest", [1, 3])
def test_episodes_may_end_with_their_first_step(longest: int) -> None:
    EnvContract(factory=lambda: assemble([lambda: Brief(longest)] * 3, max_episode_steps=12, camera=None)).run()
