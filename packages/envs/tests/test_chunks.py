from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.envs.chunks import chunk_step
from rlinf.core.errors import RLinfError, ShapeError
from rlinf.envs.assembly import SequentialVectorEnv
from rlinf.envs.tabletop.config import Tabletop
from rlinf.envs.wrappers.contract import EnforceContract, EnvMisuse
from rlinf.envs.wrappers.episodes import EpisodeStatistics, MaskedActions
from rlinf.envs.wrappers.rewards import ShapedReward


def chunk(*rows):
    """`[N, K, 2]`: the first entry of an action is its reward."""
    return np.stack([np.array([[a, 0.0] for a in row], np.float32) for row in rows])


def test_a_chunk_by_hand(halting):
    env = halting(2, 10, limit=3)
    env.reset(seed=[40, 50])
    result = chunk_step(env, chunk([0.5, 0.25, 0.125, 1], [0.1, 0.2, 0.3, 1]))
    assert result.observations["states"].tolist() == [[40, 2], [50, 3]], "each stands at its own end"
    np.testing.assert_allclose(result.rewards, [[0.5, 0.25, 0, 0], [0.1, 0.2, 0.3, 0]])
    assert result.rewards.dtype == np.float32
    assert result.terminated.tolist() == [[False, True, False, False], [False] * 4]
    assert result.truncated.tolist() == [[False] * 4, [False, False, True, False]]
    assert result.executed.sum(axis=1).tolist() == [2, 3]
    assert result.done.tolist() == [True, True]
    assert result.infos["success"].tolist() == [False, True]
    episode = result.infos["episode"]
    assert result.infos["_episode"].tolist() == [True, True]
    assert episode["episode_len"].tolist() == [2, 3]
    np.testing.assert_allclose(episode["return"], [0.75, 0.6])
    assert (episode["success_once"].tolist(), episode["success_at_end"].tolist()) == ([True, True], [False, True])


def test_an_ended_environment_is_not_stepped_and_the_next_episode_goes_on(halting):
    env = halting(1, 9)
    env.reset(seed=[40, 50])
    done = chunk_step(env, chunk([1, 1, 1], [1, 1, 1])).done
    assert [task.count for task in env.unwrapped.envs] == [1, 3]
    assert done.tolist() == [True, False]
    observation, _ = env.reset(seed=[60, 70], options={"reset_mask": done})
    assert observation["states"].tolist() == [[60, 0], [50, 3]]
    result = chunk_step(env, chunk([1, 1], [1, 1]))
    assert result.observations["states"].tolist() == [[60, 1], [50, 5]]
    assert result.infos["episode"]["episode_len"].tolist() == [1, 5]


def test_a_chunk_of_one_is_a_step(halting):
    one, other = halting(3, 3), halting(3, 3)
    one.reset(seed=1), other.reset(seed=1)
    result, step = chunk_step(one, chunk([0.5], [0.25])), other.step(chunk([0.5], [0.25])[:, 0])
    assert result.rewards[:, 0].tolist() == step[1].tolist()
    assert result.observations["states"].tolist() == step[0]["states"].tolist()


@settings(max_examples=40)
@given(data=st.data())
def test_chunks_are_steps_one_by_one(counter, data):
    count, size, limit = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 7)))
    ends = data.draw(st.lists(st.integers(1, 8), min_size=count, max_size=count))
    values = np.random.default_rng(0).uniform(-1, 1, (count, 8, size, 2)).astype(np.float32)
    tasks = [lambda end=end: counter(end) for end in ends]
    env = EpisodeStatistics(SequentialVectorEnv(tasks), limit)
    env.reset(seed=3)
    alone = [EpisodeStatistics(SequentialVectorEnv([task]), limit) for task in tasks]
    for i, single in enumerate(alone):
        single.reset(seed=3 + i)
    for turn in range(4):
        result = chunk_step(env, values[:, turn])
        for i, single in enumerate(alone):
            steps = by_hand(single, values[i, turn])
            assert result.executed[i].sum() == len(steps)
            assert result.rewards[i, : len(steps)].tolist() == [step[1][0] for step in steps]
            assert result.terminated[i, : len(steps)].tolist() == [step[2][0] for step in steps]
            assert result.truncated[i, : len(steps)].tolist() == [step[3][0] for step in steps]
            assert result.observations["states"][i].tolist() == steps[-1][0]["states"][0].tolist()
            for key, column in steps[-1][4]["episode"].items():
                assert result.infos["episode"][key][i] == column[0]
            assert result.infos["_episode"][i] == steps[-1][4]["_episode"][0]
            if result.done[i]:
                single.reset(seed=70 + turn + i)
        if result.done.any():
            env.reset(seed=70 + turn, options={"reset_mask": result.done})


def by_hand(env, actions):
    """Steps one environment until its episode ends."""
    steps = []
    for action in actions:
        steps.append(env.step(action[None]))
        if steps[-1][2][0] or steps[-1][3][0]:
            break
    return steps


def test_a_simulator_that_moves_all_at_once_keeps_what_was_seen_at_the_end():
    make = Tabletop(task="reach", obs_mode="rgb").make
    env, other = (make(3, max_episode_steps=30, ignore_terminations=False, render=False).env for _ in range(2))
    rehearsal = make(3, max_episode_steps=30, ignore_terminations=True, render=False).env
    rehearsal.reset(seed=[5, 6, 7])
    actions = np.zeros((3, 30, 2), np.float32)
    for k in range(30):
        actions[:, k] = rehearsal.unwrapped.expert_actions()
        rehearsal.step(actions[:, k])
    first, _ = env.reset(seed=[5, 6, 7])
    other.reset(seed=[5, 6, 7])
    kept = {key: value.copy() for key, value in first.items()}
    result = chunk_step(env, actions)
    assert result.done.all()
    assert len(set(result.executed.sum(axis=1).tolist())) > 1, "they end at different steps"
    seen = {}
    for k in range(30):
        step = other.step(actions[:, k])
        for i in np.flatnonzero(step[4]["_episode"]):
            seen.setdefault(i, (k, step))
    for i, (k, step) in seen.items():
        assert result.executed[i].sum() == k + 1
        assert all(np.array_equal(result.observations[key][i], step[0][key][i]) for key in first)
        assert result.infos["episode"]["return"][i] == step[4]["episode"]["return"][i]
    assert all(np.array_equal(first[key], kept[key]) for key in first)


class OnDevice(VectorEnv):
    """Counts in torch, all rows at each step; row i ends after i + 1 steps."""

    def __init__(self, torch, num_envs):
        self.torch, self.num_envs = torch, num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED, "device": "cpu"}
        self.single_action_space = Box(-1, 1, (2,), np.float32)
        self.single_observation_space = Dict({"states": Box(-np.inf, np.inf, (1,), np.float32)})
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.count = torch.zeros(num_envs, 1)

    def reset(self, *, seed=None, options=None):
        mask = self.torch.as_tensor((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        self.count = self.torch.where(mask[:, None], 0.0, self.count)
        return {"states": self.count.clone()}, {}

    def step(self, actions):
        assert isinstance(actions, self.torch.Tensor)
        self.count = self.count + 1
        ended = self.count[:, 0] > self.torch.arange(self.num_envs)
        return {"states": self.count.clone()}, actions[:, 0], ended, self.torch.zeros_like(ended), {"success": ended.clone()}


def test_tensors_stay_tensors():
    torch = pytest.importorskip("torch")
    env = ShapedReward(EnforceContract(EpisodeStatistics(OnDevice(torch, 3), 9)))
    env.reset(seed=1)
    result = chunk_step(env, torch.full((3, 2, 2), 0.5))
    assert result.observations["states"].tolist() == [[1], [2], [2]]
    assert isinstance(result.observations["states"], torch.Tensor)
    assert result.rewards.tolist() == [[0.5, 0], [0.5, 0.5], [0.5, 0.5]]
    assert result.terminated.tolist() == [[True, False], [False, True], [False, False]]
    observation, _ = env.reset(seed=1, options={"reset_mask": result.done})
    assert observation["states"].tolist() == [[0], [0], [2]]
    assert result.observations["states"].tolist() == [[1], [2], [2]]


def test_only_an_ended_environment_stands_still_in_a_simulator_that_moves_all_at_once():
    env = Tabletop(task="reach").make(2, max_episode_steps=9, ignore_terminations=False, render=False).env
    env.reset(seed=[1, 2])
    with pytest.raises(RLinfError, match=r"environments \[1\] are in the middle"):
        env.step(MaskedActions(np.zeros((2, 2), np.float32), np.array([True, False])))


@pytest.mark.parametrize("shape", [(2, 2), (2, 0, 2), (1, 3, 2)])
def test_a_chunk_of_another_shape_is_an_error(halting, shape):
    env = halting(9, 9)
    env.reset(seed=1)
    with pytest.raises(ShapeError, match="chunk_step"):
        chunk_step(env, np.zeros(shape, np.float32))


def test_a_chunk_through_the_whole_stack(counters):
    env = counters(1, 9)
    env.reset(seed=[40, 50])
    result = chunk_step(env, chunk([1, 1, 1], [1, 1, 1]))
    assert result.executed.sum(axis=1).tolist() == [1, 3]
    with pytest.raises(EnvMisuse, match=r"environments \[0\] have ended"):
        chunk_step(env, chunk([1], [1]))
    env.reset(seed=60, options={"reset_mask": result.done})
    with pytest.raises(EnvMisuse, match="environment 1"):
        chunk_step(env, chunk([1, 1], [1, 9]))
