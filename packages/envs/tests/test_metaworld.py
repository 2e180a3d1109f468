from __future__ import annotations

import importlib
from importlib.util import find_spec

import numpy as np
import pytest

from rlinf.core.envs.chunks import MaskedActions
from rlinf.core.errors import ConfigError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.metaworld import TASKS, MetaWorld
from rlinf.envs.rendering.mujoco import can_render

if find_spec("metaworld") is None:
    pytest.skip("the extra rlinf-envs[metaworld] is not installed", allow_module_level=True)
needs_gl = pytest.mark.skipif(not can_render(), reason="MuJoCo can't draw here: install libegl1 and libgl1-mesa-dri, or libosmesa6")


def make(num_envs, *, limit=None, ignore=False, **fields):
    return MetaWorld(**fields).make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=False)


def expert(task):
    return importlib.import_module("metaworld.policies").ENV_POLICY_MAP[f"{task}-v3"]()


def play(env, task, seed, steps):
    """An episode of the scripted expert, in bytes: rich in contacts."""
    policy = expert(task)
    states = env.reset(seed=[seed])[0]["states"]
    parts, success = [states.tobytes()], False
    for _ in range(steps):
        action = np.clip(policy.get_action(states[0].astype(np.float64)), -1, 1).astype(np.float32)
        observation, reward, _, _, infos = env.step(action[None])
        states = observation["states"]
        parts += [states.tobytes(), reward.tobytes()]
        success |= bool(infos["success"][0])
    return parts, success


def test_contract():
    EnvContract(factory=lambda: make(2, task_id="push", limit=8), steps=4).run()


@pytest.mark.slow
@needs_gl
def test_contract_of_several_tasks_with_images():
    factory = lambda: make(2, task_id="MT10", obs_mode="rgb", image_size=24, wrist_camera=True, limit=4)  # noqa: E731
    EnvContract(factory=factory, steps=2).run()


@pytest.mark.parametrize("task", ["pick-place", "drawer-open"])
def test_a_reset_forgets_contacts(task):
    used, fresh = make(1, task_id=task, ignore=True), make(1, task_id=task, ignore=True)
    for seed, steps in ((11, 80), (12, 47)):
        play(used, task, seed, steps)
    assert play(used, task, 3, 60) == play(fresh, task, 3, 60)


def test_the_expert_solves_what_success_says():
    """It sees the goal even where a policy does not."""
    env = make(2, task_id="MT10", limit=150, goal_observable=False)
    env.reset(seed=[5, 6], options={"task": ["drawer-close", "reach"]})
    ended = np.zeros(2, np.bool_)
    while not ended.all():
        _, _, terminated, truncated, infos = env.step(MaskedActions(env.unwrapped.expert_actions(), ~ended))
        ended |= terminated | truncated
    assert infos["episode"]["success_once"].all()


def test_the_goal_can_be_hidden():
    seen = make(1).reset(seed=[3])[0]["states"][0]
    hidden = make(1, goal_observable=False).reset(seed=[3])[0]["states"][0]
    assert np.array_equal(seen[:36], hidden[:36])
    assert (seen[36:] != 0).any()
    assert not hidden[36:].any()


def test_tasks_by_name_number_and_seed():
    env = make(3, task_id="MT10", one_hot=True)
    observation, _ = env.reset(seed=1, options={"task": ["window-open-v3", 2, None]})
    texts = observation["task_descriptions"].tolist()
    assert texts[:2] == [TASKS["window-open"], TASKS["pick-place"]]
    assert observation["states"][:, 39:].argmax(1).tolist() == [8, 2, env.metadata["tasks"].index(texts[2])]
    assert env.metadata["tasks"][0] == TASKS["reach"]
    drawn = {text for seed in (0, 3, 6, 9) for text in env.reset(seed=seed)[0]["task_descriptions"].tolist()}
    assert len(drawn) > 3
    with pytest.raises(ConfigError, match=r"no task 'window-opn'.*Did you mean 'window-open'"):
        env.reset(seed=1, options={"task": "window-opn"})
    with pytest.raises(ConfigError, match="no task 10"):
        env.reset(seed=1, options={"task": 10})


def test_an_initial_state_depends_on_task_and_number_alone():
    env = make(2, task_id="MT10")
    first = env.reset(seed=1, options={"task": [3, 5], "init_id": [7, 0]})[0]["states"]
    second = env.reset(seed=99, options={"task": [5, 3], "init_id": [0, 7]})[0]["states"]
    assert np.array_equal(first, second[::-1])
    third = env.reset(seed=1, options={"task": [3, 5], "init_id": [8, 1]})[0]["states"]
    assert not (first == third).all(axis=1).any()


def test_sparse_reward_and_limit_beyond_the_simulators_own():
    env = make(1, task_id="reach", reward_mode="sparse", limit=510, ignore=True)
    env.reset(seed=[1])
    for _ in range(510):
        _, reward, terminated, truncated, infos = env.step(np.zeros((1, 4), np.float32))
        assert reward[0] == float(infos["success"][0])
    assert truncated[0]
    assert not terminated[0]


@needs_gl
def test_images_are_the_right_way_up():
    """From corner2 the sky, which is black in the fast look, is at the top, and the robot at the left."""
    env = make(1, obs_mode="rgb", image_size=64, wrist_camera=True)
    observation, _ = env.reset(seed=[1])
    assert observation["states"].shape == (1, 4)
    image = observation["main_images"][0].astype(int)
    sky = image.sum(-1) == 0
    red = (image[..., 0] > 100) & (image[..., 1] < 60) & (image[..., 2] < 60)
    assert sky[:8].all()
    assert not sky[-8:, 16:].any()
    assert red.sum() > 30, "no arm is seen"
    assert np.nonzero(red)[1].mean() < 32
    assert not np.array_equal(observation["main_images"], observation["wrist_images"])


@needs_gl
def test_videos_show_what_the_camera_sees():
    pytest.importorskip("PIL")
    config = MetaWorld(image_size=40)
    env = config.make(1, max_episode_steps=20, ignore_terminations=False, render=True)
    env.reset(seed=[1])
    seen = make(1, obs_mode="rgb", image_size=40).reset(seed=[1])[0]["main_images"]
    assert np.array_equal(env.render()[0], seen[0])
    env.close()


def test_unknown_names():
    with pytest.raises(ConfigError, match=r"env\.task_id: Meta-World has no task 'reech'\. Did you mean 'reach'\?"):
        MetaWorld(task_id="reech").check("env")
    with pytest.raises(ConfigError, match=r"env\.image_size: expected at least 1, found 0"):
        MetaWorld(image_size=0).check("env")
    with pytest.raises(ConfigError, match="no camera 'corner9'"):
        MetaWorld(camera="corner9").check("env")


def test_the_names_are_those_of_the_package():
    tables = importlib.import_module("metaworld.env_dict")
    assert [f"{name}-v3" for name in TASKS] == list(tables.ALL_V3_ENVIRONMENTS)
    assert [f"{name}-v3" for name in MetaWorld(task_id="MT10").tasks] == list(tables.MT10_V3)
    assert [f"{name}-v3" for name in MetaWorld(task_id="MT50").tasks] == list(tables.MT50_V3)
