from __future__ import annotations

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.registry import ENVS
from rlinf.core.testing.env import EnvContract
from rlinf.envs.tabletop import Tabletop
from rlinf.envs.wrappers.contract import EnvMisuse

TASKS = ["reach", "push", "slots", "pick_place"]


def make(num_envs=3, *, limit=None, ignore=False, render=False, **config):
    return Tabletop(**config).make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=render)


def play(env, seeds, act, **options):
    """Every episode once, by batches of the environment's size: what it saw and how it ended, in the order of `seeds`."""
    results = []
    for start in range(0, len(seeds), env.num_envs):
        batch = [*seeds[start : start + env.num_envs], *([0] * env.num_envs)][: env.num_envs]
        observation, _ = env.reset(seed=batch, options=options)
        rows = [[o.tobytes()] for o in observation["states"]]
        ended = np.zeros(env.num_envs, np.bool_)
        while not ended.all():
            observation, _, terminated, truncated, infos = env.step(act(env))
            for i in np.flatnonzero(~ended):
                rows[i] += [value[i].tobytes() for value in observation.values()]
                if infos["_episode"][i]:
                    rows[i] += [value[i].tobytes() for value in infos["episode"].values()]
            done = terminated | truncated
            ended |= done
            if done.any():
                env.reset(seed=0, options={"reset_mask": done})
        results += rows
    return results[: len(seeds)]


def expert(env):
    return env.unwrapped.expert_actions()


@pytest.mark.parametrize("mode", ["state", "rgb"])
@pytest.mark.parametrize("task", TASKS)
def test_contract(task, mode):
    EnvContract(factory=lambda: make(task=task, obs_mode=mode, image_size=16)).run()


@pytest.mark.parametrize("task", TASKS)
def test_results_do_not_depend_on_the_number_of_environments(task):
    seeds = list(range(40, 47))
    single, several, many = (play(make(n, task=task, obs_mode="rgb", image_size=8), seeds, expert) for n in (1, 4, 7))
    assert single == several
    assert single == many


@pytest.mark.parametrize(("task", "steps"), [("reach", 10), ("push", 22), ("slots", 5), ("pick_place", 30)])
def test_the_expert_succeeds(task, steps):
    env = make(256, task=task)
    env.reset(seed=0)
    length = np.zeros(256)
    for _ in range(env.metadata["max_episode_steps"]):
        _, reward, terminated, truncated, infos = env.step(expert(env))
        assert np.array_equal(reward, terminated.astype(np.float32))
        length = np.where(infos["_episode"] & (length == 0), infos["episode"]["episode_len"], length)
        done = terminated | truncated
        assert infos["episode"]["success_once"][done].all()
        if done.any():
            env.reset(seed=1000, options={"reset_mask": done})
    assert length.all()
    assert length.mean() < steps


@pytest.mark.parametrize(("task", "most"), [("reach", 0.1), ("push", 0.02), ("slots", 0.05), ("pick_place", 0.01)])
def test_chance_does_not_succeed(task, most):
    env = make(256, task=task, ignore=True)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(env.metadata["max_episode_steps"]):
        infos = env.step(env.action_space.sample())[-1]
    assert infos["episode"]["success_once"].mean() <= most


def test_observations_are_those_announced():
    env = make(4, task="pick_place", obs_mode="rgb", image_size=24)
    observation, _ = env.reset(seed=3)
    assert env.observation_space == batch_space(env.single_observation_space, 4)
    assert observation in env.observation_space
    assert {k: (v.shape, v.dtype.kind) for k, v in observation.items()} == {
        "main_images": ((4, 24, 24, 3), "u"),
        "wrist_images": ((4, 24, 24, 3), "u"),
        "states": ((4, 4), "f"),
        "task_descriptions": ((4,), "U"),
    }
    spec = Tabletop(task="pick_place", obs_mode="rgb", image_size=24).describe(env)
    assert spec.observation["task_descriptions"].shape == ()
    assert spec.observation["main_images"].shape == (24, 24, 3)
    assert (spec.action.shape, spec.max_episode_steps) == ((4,), 60)
    assert "wrist_images" not in make(task="slots", obs_mode="rgb").observation_space.spaces


def test_the_task_is_told_in_words_and_not_shown():
    env = make(3, task="slots", obs_mode="rgb")
    seen = env.reset(seed=[5, 5, 5], options={"task": ["red", "move to the block that is green", 2]})[0]
    assert seen["task_descriptions"].tolist() == [f"move to the block that is {c}" for c in ("red", "green", "blue")]
    assert (seen["main_images"] == seen["main_images"][0]).all()
    states = make(3, task="slots").reset(seed=[5, 5, 5], options={"task": ["red", "green", "blue"]})[0]["states"]
    assert np.array_equal(states[:, 8:], np.eye(3))
    assert (states[:, :8] == states[0, :8]).all()


def test_goals_are_drawn_from_the_configured_ones():
    env = make(200, task="slots", obs_mode="rgb", image_size=8)
    texts, counts = np.unique(env.reset(seed=0)[0]["task_descriptions"], return_counts=True)
    assert len(texts) == 3
    assert counts.min() > 45
    only = make(20, task="slots", goals=("blue", "red")).reset(seed=0)[0]["states"]
    assert not only[:, 9].any()
    assert 0 < only[:, 8].sum() < 20


def test_an_initial_state_is_a_function_of_goal_and_number():
    env = make(4, task="pick_place")
    first = env.reset(seed=0, options={"task": "red", "init_id": [7, 7, 8, None]})[0]["states"]
    env.step(env.action_space.sample())
    second = env.reset(seed=99, options={"task": "red", "init_id": [7, 8, 7, None]})[0]["states"]
    assert np.array_equal(first[0], first[1])
    assert np.array_equal(first[[0, 2]], second[[2, 1]])
    assert not np.array_equal(first[0], first[2])
    assert not np.array_equal(first[3], second[3])
    other = env.reset(seed=0, options={"task": "blue", "init_id": 7})[0]["states"]
    assert not np.array_equal(other[0, 6:14], first[0, 6:14])


def test_options_reach_only_the_environments_that_are_reset():
    env = make(2, task="slots")
    before = env.reset(seed=0, options={"task": "red"})[0]["states"]
    after = env.reset(seed=0, options={"task": "blue", "init_id": 3, "reset_mask": np.array([False, True])})[0]["states"]
    assert np.array_equal(before[0], after[0])
    assert after[:, 8:].tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": "rad"}, ConfigError, r"has no goal 'rad'\. Did you mean 'red'"),
        ({"task": 3}, ConfigError, "has no goal 3"),
        ({"task": ["red"]}, ShapeError, "expected 3 entries of task, found 1"),
        ({"init_id": -1}, ConfigError, "init_id must be at least 0"),
        ({"init": 1}, ConfigError, r"no option is named 'init'\. Did you mean 'init_id'"),
    ],
)
def test_wrong_options(options, error, message):
    with pytest.raises(error, match=message):
        make(task="slots").reset(seed=0, options=options)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"image_size": 4}, r"env\.train\.image_size: must lie in \[8, 512\]"),
        ({"task": "slots", "goals": ("purple",)}, r"env\.train\.goals: the task 'slots' has no goal 'purple'"),
        ({"task": "slots", "goals": ()}, "no goal to draw"),
    ],
)
def test_wrong_configurations(config, message):
    with pytest.raises(ConfigError, match=message):
        Tabletop(**config).check("env.train")


@pytest.mark.parametrize("task", TASKS)
def test_progress_adds_up_to_the_distance(task):
    env = make(8, task=task, reward_mode="progress")
    env.action_space.seed(4)  # no block comes to its place by chance
    env.reset(seed=4)
    scene, tables = env.unwrapped.scene, env.unwrapped
    start = scene.distance(tables._world)
    total = np.zeros(8)
    for _ in range(4):
        _, reward, terminated, _, infos = env.step(env.action_space.sample())
        total += reward - infos["success"]
        assert not terminated.any()
    assert np.allclose(total, start - scene.distance(tables._world), atol=1e-5)


def test_success_ends_an_episode_unless_terminations_are_ignored():
    for ignore in (False, True):
        env = make(1, task="reach", ignore=ignore)
        env.reset(seed=0)
        for _ in range(30):
            _, reward, terminated, truncated, infos = env.step(expert(env))
            if terminated[0] or truncated[0]:
                break
        assert infos["success"][0]
        assert (terminated[0], truncated[0]) == (not ignore, ignore)
        assert reward[0] == 1


def test_a_pickled_environment_goes_on_the_same():
    env = make(2, task="push")
    env.reset(seed=0)
    env.step(expert(env))
    twin = pickle.loads(pickle.dumps(env))
    for _ in range(5):
        action = expert(env)
        assert np.array_equal(env.step(action)[0]["states"], twin.step(action)[0]["states"])


def test_step_limit_and_misuse():
    env = make(2, task="push", limit=3)
    env.reset(seed=0)
    for _ in range(3):
        truncated = env.step(np.zeros((2, 2), np.float32))[3]
    assert truncated.all()
    with pytest.raises(EnvMisuse, match="have ended"):
        env.step(np.zeros((2, 2), np.float32))


def test_it_is_chosen_by_name():
    built = ENVS.build("rlinf.envs.tabletop:Tabletop", {"task": "slots", "goals": ["red"]}, place="env.train")
    assert built == Tabletop(task="slots", goals=("red",))
    with pytest.raises(ConfigError, match=r"env\.train\.task"):
        ENVS.build("rlinf.envs.tabletop:Tabletop", {"task": "slot"}, place="env.train")


def test_video(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    env = make(2, task="pick_place", render=True)
    env.reset(seed=0, options={"record": tmp_path / "film.mp4"})
    for _ in range(3):
        env.step(expert(env))
    assert env.render()[0].shape == (256, 256, 3)
    env.close()
    assert (tmp_path / "film.mp4").stat().st_size > 1000


def test_without_a_camera_a_recording_is_refused():
    with pytest.raises(ConfigError, match="no option is named 'record'"):
        make(task="push").reset(seed=0, options={"record": "film.mp4"})


def test_other_libraries_wrappers_work():
    low, high = (np.full(2, bound, np.float32) for bound in (-2, 2))
    plain, env = make(2, task="push"), gymnasium.wrappers.vector.RescaleAction(make(2, task="push"), low, high)
    for each in (plain, env):
        each.reset(seed=[0, 1])
    expected, found = plain.step(np.full((2, 2), 1.0, np.float32)), env.step(np.full((2, 2), 2.0, np.float32))
    np.testing.assert_array_equal(found[0]["states"], expected[0]["states"])
