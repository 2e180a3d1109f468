"""The adapters to RoboTwin and BEHAVIOR, against fakes that behave as their documentation says."""

from __future__ import annotations

import os
import sys

import gymnasium
import numpy as np
import pytest
from fake_modules import put_module

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.unverified.behavior import Behavior
from rlinf.envs.unverified.robotwin import RoboTwin

Box = gymnasium.spaces.Box


@pytest.fixture
def install(monkeypatch):
    return lambda name, **content: put_module(monkeypatch, name, content)


def image(value, channels=3):
    return np.full((8, 8, channels), value % 256, np.uint8)


# RoboTwin -------------------------------------------------------------------------------------------------------------


class UnStableError(Exception):
    pass


class Hammer:
    """Solved when the last number of an action is above 0.9; every scene whose seed is divisible by 3 falls over."""

    scenes = ()
    never_stable = False

    def __init__(self):
        self.closed = 0

    def setup_demo(self, now_ep_num, seed, is_test, **settings):
        assert os.path.exists("task_config")
        assert settings["left_embodiment_config"]["arm_joints_name"]
        assert (settings["eval_mode"], settings["dual_arm_embodied"]) == (True, True)
        Hammer.scenes = (*Hammer.scenes, seed)
        if seed % 3 == 0 or Hammer.never_stable:
            raise UnStableError(seed)
        self.joints, self.take_action_cnt, self.eval_success, self.step_lim = np.full(6, seed % 1000 / 1000), 0, False, 2

    def set_instruction(self, instruction):
        self.instruction = instruction

    def take_action(self, action, action_type):
        assert action_type == "qpos"
        if self.take_action_cnt == self.step_lim or self.eval_success:
            return
        self.take_action_cnt += 1
        self.joints = action
        self.eval_success = bool(action[-1] > 0.9)

    def get_obs(self):
        views = ("head_camera", "left_camera", "right_camera")
        cameras = {view: {"rgb": image(i + int(100 * self.joints[0]))} for i, view in enumerate(views)}
        return {"observation": cameras, "joint_action": {"vector": self.joints}}

    def close_env(self, clear_cache=False):
        self.closed += 1


@pytest.fixture
def robotwin(install, monkeypatch, tmp_path):
    pytest.importorskip("yaml")
    files = {
        "envs/beat_block_hammer.py": "",
        "assets/robot/config.yml": "arm_joints_name: [[l1, l2], [r1, r2]]",
        "task_config/_embodiment_config.yml": "aloha: {file_path: ./assets/robot}",
        "task_config/_camera_config.yml": "D435: {h: 8, w: 8}",
        "task_config/demo_clean.yml": "{embodiment: [aloha], camera: {head_camera_type: D435}, data_type: {rgb: true, qpos: true}}",
        "task_config/odd.yml": "{embodiment: [aloha, aloha], camera: {head_camera_type: D435}}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("sapien", "toppra", "curobo", "envs", "envs.utils"):
        install(name)
    install("envs.utils.create_actor", UnStableError=UnStableError)
    install("envs.beat_block_hammer", beat_block_hammer=Hammer)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(Hammer, "scenes", ())
    monkeypatch.setattr(Hammer, "never_stable", False)
    return str(tmp_path)


def twin(root, num_envs=2, limit=6, ignore=False, **changes):
    return RoboTwin(root=root, **changes).make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=False)


def test_robotwin(robotwin):
    EnvContract(factory=lambda: twin(robotwin)).run()


def test_robotwin_translates(robotwin):
    here = os.getcwd()
    env = twin(robotwin, num_envs=1, instruction="hit it")
    assert env.single_action_space.low == pytest.approx([-np.pi, -np.pi, 0, -np.pi, -np.pi, 0])
    seen, _ = env.reset(seed=4)
    assert (seen["main_images"].shape, seen["wrist_images"].shape) == ((1, 8, 8, 3), (1, 2, 8, 8, 3))
    assert seen["task_descriptions"].tolist() == ["hit it"]
    action = np.array([[0.1, 0.2, 0, 0.3, 0.4, 0.5]], np.float32)
    for _ in range(3):  # one more than its own limit
        seen, _, terminated, _, _ = env.step(action)
        assert seen["states"] == pytest.approx(action)
        assert not terminated[0]
        action = action + np.float32(0.01)
    action[0, -1] = 1.0
    _, reward, terminated, _, infos = env.step(action)
    assert (reward[0], terminated[0], infos["success"][0]) == (1, True, True)
    assert os.getcwd() == here


def test_a_scene_that_falls_over_is_replaced_always_by_the_same(robotwin):
    env = twin(robotwin, num_envs=1)
    first = env.reset(seed=9)[0]["states"]
    tried = Hammer.scenes
    assert tried[0] == 9
    assert tried[-1] % 3 != 0
    env.reset(seed=4)
    assert np.array_equal(env.reset(seed=9)[0]["states"], first)
    Hammer.never_stable = True
    with pytest.raises(RLinfError, match="20 scenes from seed 5 were unstable"):
        env.reset(seed=5)


def test_wrong_robotwin_configurations(robotwin):
    with pytest.raises(ConfigError, match=r"env\.root: '.*/envs/dance\.py' doesn't exist"):
        twin(robotwin, task="dance")
    with pytest.raises(ConfigError, match="expected an embodiment of 1 or 3 entries, found 2"):
        twin(robotwin, task_config="odd")
    with pytest.raises(ConfigError, match="takes no action after success"):
        twin(robotwin, ignore=True)


# BEHAVIOR -------------------------------------------------------------------------------------------------------------


class House:
    """One activity, flattened, with tensors; it resets itself unless told not to, and forgets all seeds."""

    def __init__(self, configs):
        assert configs["env"] == {"automatic_reset": False, "flatten_action_space": True, "flatten_obs_space": True}
        self.configs = configs
        keys = {"robot_r1::proprio": Box(-9, 9, (5,), np.float64)}
        keys |= {
            f"robot_r1::robot_r1:{c}:Camera:0::rgb": Box(0, 255, (8, 8, 4), np.uint8) for c in ("zed_link", "left_realsense_link")
        }
        self.observation_space = gymnasium.spaces.Dict(keys)
        self.action_space = Box(-np.ones((1, 3), np.float32), np.ones((1, 3), np.float32))

    def see(self):
        torch = pytest.importorskip("torch")
        seen = {key: torch.from_numpy(image(i + self.at, 4)) for i, key in enumerate(sorted(self.observation_space.spaces)[1:])}
        return {**seen, "robot_r1::proprio": torch.full((5,), float(self.at))}

    def reset(self):
        self.at = 0
        return self.see(), {}

    def step(self, action):
        assert type(action).__name__ == "Tensor"
        assert action.shape == (3,)
        self.at += 1
        success = float(action[0]) > 0.5
        return self.see(), 0.25, success, False, {"done": {"success": success, "termination_conditions": {}}}


@pytest.fixture
def behavior(install):
    pytest.importorskip("torch")
    houses = []

    def environment(configs):
        houses.append(House(configs))
        return houses[-1]

    install("omnigibson", Environment=environment)
    return houses


def house(config, num_envs=1):
    return config.make(num_envs, max_episode_steps=5, ignore_terminations=False, render=False)


def test_behavior_translates(behavior):
    env = house(Behavior(activity="picking_up_trash", instance=3))
    task = behavior[0].configs["task"]
    assert (task["activity_name"], task["activity_instance_id"]) == ("picking_up_trash", 3)
    assert env.single_action_space.shape == (3,)
    seen, _ = env.reset(seed=0)
    assert seen in env.observation_space
    assert seen["task_descriptions"].tolist() == ["picking up trash"]
    assert seen["extra_view_images"].shape == (1, 1, 8, 8, 3)
    assert seen["main_images"].flat[0] != seen["extra_view_images"].flat[0]
    seen, reward, terminated, _, infos = env.step(np.zeros((1, 3), np.float32))
    assert (seen["states"].tolist(), reward[0], terminated[0]) == ([[1] * 5], 0.25, False)
    _, _, terminated, _, infos = env.step(np.ones((1, 3), np.float32))
    assert (terminated[0], infos["success"][0]) == (True, True)


def test_behavior_declares_what_it_cannot_keep(behavior):
    env = house(Behavior())
    assert set(env.metadata["waived"]) == {"seeds", "pure_reset", "instances", "partial_reset"}
    with pytest.raises(ConfigError, match="no numbered initial states"):
        env.reset(options={"init_id": 0})
    with pytest.raises(ConfigError, match=r"one simulator for the whole process, found num_envs=2\. Use 1 here"):
        house(Behavior(), num_envs=2)


def test_behavior_takes_other_robots(behavior):
    house(Behavior(overrides={"robots": [{"type": "Fetch"}]}))
    assert behavior[0].configs["robots"] == [{"type": "Fetch"}]
