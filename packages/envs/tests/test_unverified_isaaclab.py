"""The adapter of Isaac Lab against a fake that behaves as documented; the real one needs an NVIDIA GPU."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from rlinf.core.errors import ConfigError, MissingExtra, RLinfError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.unverified.isaaclab import IsaacLab

torch = pytest.importorskip("torch")
import isaaclab_fake  # noqa: E402 - which needs torch

IMAGES = {"main_images": "policy.camera", "states": "policy.goal"}


@pytest.fixture(autouse=True)
def isaaclab(monkeypatch):
    isaaclab_fake.install(monkeypatch)


def make(kind="Managed", num_envs=3, *, limit=8, ignore=True, render=False, **fields):
    config = IsaacLab(task_id=f"Isaac-{kind}-v0", device="cpu", **fields)
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=render)


def simulation(env):
    return env.unwrapped.batch._env


def images(**fields):
    return make(enable_cameras=True, observation=IMAGES, overrides={"observations.policy.concatenate_terms": False}, **fields)


def scripted(env, observation):
    """Straight to the goal: actions in [-1, 1]."""
    states = torch.as_tensor(observation["states"])
    return ((states[:, 2:4] - states[:, :2]) / 0.1).clamp(-1, 1).numpy()


@pytest.mark.parametrize("ignore", [True, False])
@pytest.mark.parametrize("kind", ["Managed", "Direct"])
def test_contract_of_a_task_without_noise(kind, ignore):
    def factory():
        env = make(kind, ignore=ignore, overrides={"noise": 0.0})
        # The fake, unlike Isaac Sim, can be there twice, and here it draws in resets alone.
        env.metadata["waived"].clear()
        return env

    EnvContract(factory=factory, steps=5).run()


def test_contract_of_a_task_with_noise():
    def factory():
        env = make()
        del env.metadata["waived"]["instances"]
        return env

    EnvContract(factory=factory, steps=5).run()


def test_declarations():
    assert set(make().metadata["waived"]) == {"instances", "partial_reset", "place"}
    assert set(make(exact_resets=False).metadata["waived"]) == {"instances", "partial_reset", "place", "seeds"}


@pytest.mark.parametrize("kind", ["Managed", "Direct"])
def test_the_observation_after_the_last_step_is_the_final_one(kind):
    env = make(kind, limit=8, success="reached", ignore=False)
    observation, _ = env.reset(seed=3)
    inner = simulation(env)
    inner.resets.clear()
    for _ in range(8):
        observation, _, terminated, truncated, infos = env.step(scripted(env, observation))
        done = terminated | truncated
        if done.any():
            break
    assert inner.resets == []
    assert terminated.any()
    row = int(np.flatnonzero(terminated)[0])
    assert np.linalg.norm(observation["states"][row, :2] - observation["states"][row, 2:]) < 0.15
    assert infos["success"][row]
    assert inner.episode_length_buf[row] > 0
    env.reset(seed=5, options={"reset_mask": done})
    assert inner.resets == [[int(i)] for i in np.flatnonzero(done)]
    assert inner.episode_length_buf[row] == 0


def test_the_fake_itself_returns_what_comes_after_the_reset():
    cfg = isaaclab_fake.parse_env_cfg("t", num_envs=1)
    isaaclab_fake.AppLauncher.launched.append({})
    env = isaaclab_fake.ManagerBasedRLEnv(cfg)
    env.reset(seed=1)
    for _ in range(env.max_episode_length):
        *_, truncated, _ = env.step(torch.zeros(1, 2))
    assert truncated.all()
    assert env.episode_length_buf.tolist() == [0]


def test_ignored_terminations_go_on_without_a_reset():
    env = make(success="reached")
    observation, _ = env.reset(seed=3)
    inner = simulation(env)
    inner.resets.clear()
    for step in range(8):
        observation, _, terminated, truncated, infos = env.step(scripted(env, observation))
        assert not terminated.any()
        assert truncated.all() == (step == 7)
    assert inner.resets == []
    assert infos["episode"]["success_once"].any()


def test_a_longer_limit_than_the_tasks_own():
    assert make(limit=None).metadata["max_episode_steps"] == 25
    env = make(limit=40)
    env.reset(seed=1)
    assert simulation(env).max_episode_length == 40
    for _ in range(40):
        _, _, _, truncated, _ = env.step(np.ones((3, 2), np.float32))
    assert truncated.all()


def test_a_reset_in_one_call():
    env = make(exact_resets=False)
    env.reset(seed=1)
    inner = simulation(env)
    inner.resets.clear()
    states = [env.reset(seed=7)[0]["states"] for _ in range(2)]
    assert inner.resets == [[0, 1, 2]] * 2
    assert np.array_equal(*states)
    assert not np.array_equal(states[0], env.reset(seed=8)[0]["states"])


def test_the_process_and_the_simulation_do_not_share_their_draws():
    seen = []
    for disturbed in (False, True):
        env = make()
        env.reset(seed=1)
        state = torch.get_rng_state()
        for _ in range(3):
            if disturbed:
                torch.manual_seed(5)
                np.random.rand()
            last = env.step(np.zeros((3, 2), np.float32))[0]["states"]
        assert disturbed or torch.equal(torch.get_rng_state(), state)
        seen.append(last)
    assert np.array_equal(*seen)


def test_images_terms_and_tensors():
    env = images(arrays="torch", task_description="reach the goal")
    observation, _ = env.reset(seed=1)
    assert observation["main_images"].shape == (3, 4, 4, 3)
    assert observation["main_images"].dtype == torch.uint8
    assert observation["states"].shape == (3, 2)
    assert observation["task_descriptions"].tolist() == ["reach the goal"] * 3
    kept = observation["main_images"].clone()
    following = env.step(torch.ones(3, 2))[0]
    assert torch.equal(observation["main_images"], kept)
    assert not torch.equal(following["main_images"], kept)
    assert isaaclab_fake.AppLauncher.launched == [{"headless": True, "enable_cameras": True, "device": "cpu"}]


def test_videos_show_the_main_image():
    pytest.importorskip("imageio_ffmpeg")
    env = images(render=True)
    observation, _ = env.reset(seed=1)
    frames = env.render()
    assert np.array_equal(np.stack(frames), observation["main_images"])


def test_one_app_in_a_process():
    make()
    make()
    assert len(isaaclab_fake.AppLauncher.launched) == 1
    with pytest.raises(ConfigError, match="runs Isaac Sim without cameras already"):
        images()


def test_a_task_that_resets_in_another_way_is_refused():
    env = make("Stubborn", limit=2)
    env.reset(seed=1)
    env.step(np.zeros((3, 2), np.float32))
    with pytest.raises(RLinfError, match="'Isaac-Stubborn-v0' ended an episode without calling _reset_idx"):
        env.step(np.zeros((3, 2), np.float32))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"observation": {"pictures": "policy"}}, "no embodied key is named 'pictures'"),
        ({"observation": {"states": "policy.joints"}}, "there is no 'joints' in the observation 'policy.joints'"),
        ({"observation": {"states": "critic"}}, "there is no 'critic'"),
        ({"observation": IMAGES}, "images need cameras"),
        ({"action_bound": 0.0}, "expected more than 0"),
        (
            {"overrides": {"observations.policies.x": 1}},
            r"env\.overrides\.observations\.policies\.x: the task's configuration has no",
        ),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(ConfigError, match=message):
        make(**fields)


def test_an_unknown_success_term():
    env = make(success="grasped")
    env.reset(seed=1)
    with pytest.raises(ConfigError, match="no termination is named 'grasped'"):
        env.step(np.zeros((3, 2), np.float32))


def test_without_isaac_lab(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("isaaclab") and name != "isaaclab_fake"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match="the module 'isaaclab' is not installed"):
        IsaacLab().check("env.train")
