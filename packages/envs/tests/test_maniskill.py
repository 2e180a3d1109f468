from __future__ import annotations

import logging
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from rlinf.core.capabilities import HasExpert
from rlinf.core.errors import ConfigError
from rlinf.core.testing.env import EnvContract
from rlinf.envs import ManiSkill
from rlinf.envs.remote import Remote

if find_spec("mani_skill") is None:
    pytest.skip("the extra rlinf-envs[maniskill] is not installed", allow_module_level=True)


def make(num_envs, *, limit=None, ignore=True, **fields):
    return ManiSkill(**fields).make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=False)


def push(states, step):
    """Turns towards the cube, comes down behind it and stretches: an action rich in contacts, `[N, 8]`."""
    tool, cube = states[:, 18:21], states[:, 28:31]
    bearing = [np.arctan2(at[:, 1], at[:, 0] + 0.615) for at in (cube, tool)]
    action = np.zeros((len(states), 8), np.float32)
    action[:, 0] = np.clip((bearing[0] - bearing[1]) * 8, -1, 1)
    action[:, [1, 3, 5]] = (0.8, -0.25, 0.6) if step < 13 else (0.6, 0.45, 0.0)
    action[:, 7] = -1.0
    return action


def episode(env, seed, actions=None):
    """An episode of one environment: its bytes and its actions."""
    observation, _ = env.reset(seed=[seed])
    trace, played = [observation["states"].tobytes()], []
    for step in range(35):
        played.append(push(observation["states"], step) if actions is None else actions[step])
        observation, reward, *_ = env.step(played[-1])
        trace.append(observation["states"].tobytes() + reward.tobytes())
    return trace, played


@pytest.fixture(scope="module")
def single():
    env = make(1)
    yield env
    env.close()


def test_contract():
    EnvContract(factory=lambda: make(2, limit=20, ignore=False), steps=8).run()


def test_a_reset_forgets_the_contacts_of_earlier_episodes(single):
    recorded = {seed: episode(single, seed) for seed in (0, 3, 7, 10, 11)}
    cubes = [np.frombuffer(trace[k], np.float32)[28:30] for trace, _ in recorded.values() for k in (0, -1)]
    assert max(np.abs(cubes[k] - cubes[k + 1]).max() for k in range(0, len(cubes), 2)) > 0.01, "no cube was touched"
    for seed in (11, 10, 0, 3, 7, 11, 10, 0):
        trace, actions = recorded[seed]
        assert episode(single, seed, actions)[0] == trace, f"seed {seed}"


def test_the_shorter_ways_give_the_same_numbers(single):
    import gymnasium
    import torch

    settings = {"obs_mode": "state", "control_mode": "pd_joint_delta_pos", "reward_mode": "normalized_dense"}
    plain = gymnasium.make("PushCube-v1", sim_backend="physx_cpu", render_backend="none", **settings)
    trace, actions = episode(single, 11)
    with torch.inference_mode():
        states, _ = plain.reset(seed=11)
        expected = [states.numpy().tobytes()]
        for action in actions:
            states, reward, *_ = plain.step(action[0])
            expected.append(states.numpy().tobytes() + reward.numpy().tobytes())
    plain.close()
    assert type(plain.unwrapped) is type(single.unwrapped.envs[0].simulation)
    assert trace == expected


def test_the_expert_pushes_the_cube_to_the_goal(single):
    env = make(4, limit=25)
    env.reset(seed=[0, 1, 2, 3])
    returns, solved = np.zeros(4), np.zeros(4, bool)
    for _ in range(25):
        actions = env.unwrapped.expert_actions()
        assert actions.shape == (4, 8)
        assert np.abs(actions).max() <= 1.0
        _, reward, _, _, infos = env.step(actions)
        returns, solved = returns + reward, solved | infos["success"]
    env.close()
    assert solved.all()
    # Solved states are worth 1 a step: it is done after two thirds of an episode, and stays there.
    assert returns.mean() > 10.0
    other = ManiSkill(control_mode="pd_ee_delta_pos").make(1, max_episode_steps=5, ignore_terminations=True, render=False)
    assert not isinstance(other.unwrapped, HasExpert)
    other.close()


def test_description(single):
    spec = ManiSkill().describe(single)
    assert spec.observation["states"].shape == (35,)
    assert spec.observation["states"].low is None
    assert (spec.action.shape, spec.action.dtype, spec.max_episode_steps) == ((8,), "float32", 50)
    assert np.array_equal(spec.action.low, -np.ones(8, np.float32))


def test_success_ends_an_episode_unless_ignored():
    # The goal moves under the cube, which no policy can bring about in one step.
    for ignore in (False, True):
        env = make(2, ignore=ignore)
        env.reset(seed=1)
        simulation = env.unwrapped.envs[0].simulation
        simulation.goal_region.set_pose(simulation.obj.pose)
        _, reward, terminated, truncated, infos = env.step(np.zeros((2, 8), np.float32))
        assert infos["success"].tolist() == [True, False]
        assert terminated.tolist() == [not ignore, False]
        assert not truncated.any()
        assert reward[0] == 1.0
        env.close()


def test_step_limits_are_read_from_the_source(single):
    import gymnasium
    from mani_skill.utils.registration import REGISTERED_ENVS

    # Ids of whole scenes are composed, so that its source does not name them.
    named = [task for task in REGISTERED_ENVS if not task.endswith("_SceneManipulation-v1")]
    limits = {task: gymnasium.spec(task).max_episode_steps for task in named}
    assert len(limits) > 50
    assert {task: ManiSkill(task_id=task).episode_steps for task in limits} == limits


def test_a_control_mode_that_the_robot_does_not_have():
    with pytest.raises(ConfigError, match=r"^env\.control_mode: .*'PushCube-v1': pd_joint_delta not in .*pd_joint_delta_pos"):
        make(1, control_mode="pd_joint_delta")


def test_unknown_task():
    with pytest.raises(
        ConfigError, match=r"env\.train\.task_id: ManiSkill has no task 'PushCub-v1'\. Did you mean 'PushCube-v1'\?"
    ):
        ManiSkill(task_id="PushCub-v1").check("env.train")


def test_the_way_without_vulkan_is_said_once(caplog):
    with caplog.at_level(logging.INFO, logger="rlinf.envs"):
        for _ in range(2):
            make(1).close()
    assert len([r for r in caplog.records if "no Vulkan" in r.message]) <= 1


def test_another_process_gives_the_same_numbers():
    settings = {"max_episode_steps": 8, "ignore_terminations": True, "render": False}
    env, local = Remote(python=sys.executable, env="maniskill").make(2, **settings), ManiSkill().make(2, **settings)
    told = []
    for e in (env, local):
        e.action_space.seed(0)
        told.append([e.reset(seed=3)[0]["states"].tobytes()])
        for _ in range(8):
            observation, reward, *_ = e.step(e.action_space.sample())
            told[-1] += [observation["states"].tobytes(), reward.tobytes()]
        e.close()
    assert told[0] == told[1]
