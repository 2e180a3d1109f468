"""The adapters to simulators that can't run here, against fakes that behave as their documentation says."""

from __future__ import annotations

import importlib.util
import os
import types

import gymnasium
import numpy as np
import pytest
from fake_modules import put_module

from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.core.registry import ENVS
from rlinf.core.testing.env import EnvContract
from rlinf.envs.unverified.calvin import Calvin
from rlinf.envs.unverified.frankasim import FrankaSim
from rlinf.envs.unverified.habitat import Habitat
from rlinf.envs.unverified.robocasa import RoboCasa

Box, Dict = gymnasium.spaces.Box, gymnasium.spaces.Dict


@pytest.fixture
def install(monkeypatch):
    """Puts modules in place, by dotted name."""

    def put(**modules):
        for name, content in modules.items():
            put_module(monkeypatch, name.replace("__", "."), content)

    return put


def build(config, num_envs=2, limit=9, ignore=False, render=False):
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=render)


def image(value, size=8):
    return np.full((size, size, 3), value % 256, np.uint8)


# FrankaSim ------------------------------------------------------------------------------------------------------------


class PickCube:
    """Draws from NumPy's global generator, and says "terminated" when its time is up, as the published one does."""

    def __init__(self, image_obs=False, time_limit=10.0):
        box = Box(-np.inf, np.inf, (3,), np.float32)
        state = {"panda/tcp_pos": box, "panda/tcp_vel": box, "panda/gripper_pos": Box(-np.inf, np.inf, (1,), np.float32)}
        if not image_obs:
            state["block_pos"] = box
        self.observation_space = Dict({"state": Dict(state)})
        if image_obs:
            views = Dict({name: Box(0, 255, (8, 8, 3), np.uint8) for name in ("front", "wrist")})
            self.observation_space = Dict({"state": Dict(state), "images": views})
        self.images, self.limit = image_obs, time_limit
        self.data = types.SimpleNamespace(sensor=lambda name: types.SimpleNamespace(data=self.block))

    def see(self):
        hand, grip = self.hand.astype(np.float32), np.array(self.grip, np.float32)
        state = {"panda/tcp_pos": hand, "panda/tcp_vel": hand * 0, "panda/gripper_pos": grip}
        if self.images:
            front = image(int(1000 * self.block[0] + 100 * self.hand[0]))
            return {"state": state, "images": {"front": front, "wrist": image(2)}}
        return {"state": {**state, "block_pos": self.block.astype(np.float32)}}

    def reset(self, seed=None, **kwargs):
        self.hand, self.grip, self.steps = np.array([0.5, 0.0, 0.4]), 0.0, 0
        self.block = np.array([*np.random.uniform([0.25, -0.25], [0.55, 0.25]), 0.02])
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        self.hand = self.hand + 0.1 * action[:3]
        self.grip = float(np.clip(self.grip + action[3], 0, 1))
        if self.grip > 0.5:
            self.block = self.block + np.array([0, 0, 0.1 * action[2]])
        return self.see(), 0.3, self.steps * 0.02 >= self.limit, False, {}

    def close(self):
        pass


@pytest.fixture
def frankasim(install):
    install(gym={}, franka_sim={}, franka_sim__envs={"PandaPickCubeGymEnv": PickCube})


@pytest.mark.parametrize("images", [False, True])
def test_frankasim(frankasim, images):
    EnvContract(factory=lambda: build(FrankaSim(images=images))).run()


def test_frankasim_lifts_and_borrows_the_global_generator(frankasim):
    env = build(FrankaSim(), limit=600)
    np.random.seed(4)
    expected = np.random.uniform()
    np.random.seed(4)
    first = env.reset(seed=[1, 2])[0]["states"]
    assert np.random.uniform() == expected
    assert np.array_equal(first, env.reset(seed=[1, 2])[0]["states"])
    assert first.shape == (2, 10)
    for step in range(1, 4):
        _, reward, terminated, truncated, infos = env.step(np.array([[0, 0, 1, 1], [0, 0, 0, 0]], np.float32))
        assert infos["success"].tolist() == [step >= 2, False]
        assert reward[0] == np.float32(0.3)
        if terminated.any():
            break
    assert (step, terminated.tolist(), truncated.any()) == (2, [True, False], False)


# RoboCasa -------------------------------------------------------------------------------------------------------------


STATES = {
    "state.base_position": 3,
    "state.base_rotation": 4,
    "state.end_effector_position_relative": 3,
    "state.end_effector_rotation_relative": 4,
    "state.gripper_qpos": 2,
}
VIEWS = ("robot0_agentview_left", "robot0_agentview_right", "robot0_eye_in_hand")


class Kitchen(gymnasium.Env):
    def __init__(self, split="test", camera_widths=256, camera_heights=256):
        self.split, self.size = split, camera_widths
        spaces = {key: Box(-1, 1, (n,), np.float32) for key, n in STATES.items()}
        spaces |= {f"video.{view}": Box(0, 255, (camera_heights, camera_widths, 3), np.uint8) for view in VIEWS}
        self.observation_space = Dict({**spaces, "annotation.human.task_description": gymnasium.spaces.Text(256)})
        self.action_space = Dict({"action.gripper_close": Box(-1, 1, (1,), np.float32)})

    def see(self):
        seen = {key: np.full(n, self.draw + i, np.float32) for i, (key, n) in enumerate(STATES.items())}
        seen |= {f"video.{view}": image(i + self.count, self.size) for i, view in enumerate(VIEWS)}
        return {**seen, "annotation.human.task_description": "put the apple in the cabinet"}

    def reset(self, seed=None, options=None):
        self.draw, self.count = float(np.random.default_rng(seed).uniform()), 0
        return self.see(), {"success": False}

    def step(self, action):
        assert {key: len(value) for key, value in action.items()} == {
            "action.base_motion": 4,
            "action.control_mode": 1,
            "action.end_effector_position": 3,
            "action.end_effector_rotation": 3,
            "action.gripper_close": 1,
        }
        self.count += 1
        self.draw += float(action["action.end_effector_position"][0])
        success = bool(action["action.gripper_close"][0] > 0.5)
        return self.see(), float(success), False, False, {"success": success}


@pytest.fixture
def robocasa(install, monkeypatch):
    install(robosuite={}, robocasa={}, robocasa__wrappers={}, robocasa__wrappers__gym_wrapper={})
    monkeypatch.setattr(gymnasium, "make", lambda name, disable_env_checker, **kwargs: Kitchen(**kwargs))


def test_robocasa(robocasa):
    EnvContract(factory=lambda: build(RoboCasa(image_size=8))).run()


def test_robocasa_translates(robocasa):
    env = build(RoboCasa(image_size=8), num_envs=1)
    seen, _ = env.reset(seed=3)
    assert {key: value.shape[1:] for key, value in seen.items()} == {
        "main_images": (8, 8, 3),
        "extra_view_images": (1, 8, 8, 3),
        "wrist_images": (8, 8, 3),
        "states": (16,),
        "task_descriptions": (),
    }
    assert [seen[key].flat[0] for key in ("main_images", "extra_view_images", "wrist_images")] == [0, 1, 2]
    action = np.zeros((1, 12), np.float32)
    action[0, 5] = 1.0
    moved, _, terminated, _, _ = env.step(action)
    assert moved["states"][0, 0] == pytest.approx(seen["states"][0, 0] + 1)
    assert not terminated[0]
    action[0, 11] = 1.0
    _, reward, terminated, _, infos = env.step(action)
    assert (reward[0], terminated[0], infos["success"][0]) == (1, True, True)


def test_videos_show_the_main_images(robocasa, frankasim):
    pytest.importorskip("imageio_ffmpeg")
    env = build(RoboCasa(image_size=8), render=True)
    seen, _ = env.reset(seed=0)
    assert all(np.array_equal(frame, shown) for frame, shown in zip(env.render(), seen["main_images"], strict=True))
    blind = build(FrankaSim(), render=True)
    blind.reset(seed=0)
    with pytest.raises(ConfigError, match="no images to show"):
        blind.render()


# Habitat --------------------------------------------------------------------------------------------------------------


class Walk:
    """A corridor: the goal is `number` + 2 steps ahead."""

    def __init__(self, config):
        assert "habitat.environment.max_episode_steps=0" in config
        self.episodes = [
            types.SimpleNamespace(
                number=i, object_category=f"chair{i}", instruction=types.SimpleNamespace(instruction_text="go on")
            )
            for i in range(4)
        ]
        spaces = {
            "rgb": Box(0, 255, (8, 8, 3), np.uint8),
            "gps": Box(-9, 9, (2,), np.float32),
            "compass": Box(-9, 9, (1,), np.float32),
        }
        self.observation_space, self.current_episode = Dict(spaces), self.episodes[0]
        self.action_space = types.SimpleNamespace(spaces={"stop": None, "move_forward": None, "turn_left": None})
        self.closed = False

    def seed(self, seed):
        self.noise = seed % 97

    def see(self):
        return {"rgb": image(self.at + self.noise), "gps": np.array([self.at, 0], np.float32), "compass": np.zeros(1, np.float32)}

    def reset(self):
        self.at, self.episode_over = 0, False
        return self.see()

    def step(self, action):
        assert not self.episode_over
        self.at += action["action"] == "move_forward"
        self.episode_over = action["action"] == "stop"
        return self.see()

    def get_metrics(self):
        left = self.current_episode.number + 2 - self.at
        return {"success": float(self.episode_over and left == 0), "distance_to_goal": float(abs(left))}

    def close(self):
        self.closed = True


@pytest.fixture
def habitat(install):
    install(habitat_sim={}, habitat={"Env": lambda config: Walk(config), "get_config": lambda path, overrides: overrides})


def test_habitat(habitat):
    EnvContract(factory=lambda: build(Habitat(), limit=12)).run()


def test_habitat_stops_at_the_goal(habitat):
    env = build(Habitat(reward="progress"), limit=20)
    seen, _ = env.reset(seed=0, options={"init_id": [1, 3]})
    assert seen["task_descriptions"].tolist() == ["find the chair1", "find the chair3"]
    for _ in range(3):
        _, reward, *_ = env.step(np.array([1, 1]))
        assert reward.tolist() == [1, 1]
    _, reward, terminated, _, infos = env.step(np.array([0, 0]))
    assert (terminated.tolist(), infos["success"].tolist(), reward.tolist()) == ([True, True], [True, False], [1, 0])
    with pytest.raises(ConfigError, match="the dataset has 4 episodes, found init_id=4"):
        env.reset(seed=0, options={"init_id": 4})
    with pytest.raises(ConfigError, match="refuses steps after a stop"):
        build(Habitat(), ignore=True)
    assert build(Habitat(goal="instruction")).reset(seed=0)[0]["task_descriptions"][0] == "go on"


# CALVIN ---------------------------------------------------------------------------------------------------------------


class Table:
    def get_obs(self):
        seen = {"rgb_static": image(self.at), "rgb_gripper": image(self.at + 1, 4)}
        return {"rgb_obs": seen, "robot_obs": np.full(15, self.at + self.drift), "scene_obs": np.zeros(24)}

    at, drift = 0, 0.0

    def reset(self, robot_obs=None, scene_obs=None):
        self.at, self.drift = int(robot_obs[0]), 0.0
        return self.get_obs()

    def get_info(self):
        return {"at": self.at}

    def step(self, action):
        assert action[-1] in (-1, 1)
        self.at += int(action[-1] > 0)
        self.drift += action[0]
        action *= 0.02  # as the published robot does to its caller's array
        return self.get_obs(), 0, False, self.get_info()

    def close(self):
        pass


class Oracle:
    """A subtask is solved after as many openings as its last letter says."""

    def get_task_info_for_set(self, start, now, wanted):
        return {task for task in wanted if now["at"] - start["at"] >= int(task[-1])}


@pytest.fixture
def calvin(install, tmp_path):
    words = {f"task_{i}": [f"do {i} things"] for i in range(1, 4)}
    chains = [({"start": 10 * i}, ("task_1", "task_2", "task_3", "task_1", "task_1")) for i in range(3)]
    install(
        hydra={"utils": types.SimpleNamespace(instantiate=lambda config: Oracle())},
        omegaconf={"OmegaConf": types.SimpleNamespace(load=lambda path: words)},
        calvin_env={},
        calvin_env__envs={},
        calvin_env__envs__play_table_env={"get_env": lambda path, show_gui: Table()},
        calvin_agent={},
        calvin_agent__evaluation={},
        calvin_agent__evaluation__multistep_sequences={"get_sequences": lambda n: chains[:n]},
        calvin_agent__evaluation__utils={"get_env_state_for_initial_condition": lambda s: (np.full(15, s["start"]), np.zeros(24))},
    )
    for name in ("data/validation/.hydra/merged_config.yaml", "conf/callbacks/x", "conf/annotations/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return {"dataset": str(tmp_path / "data"), "conf": str(tmp_path / "conf")}


def test_calvin(calvin):
    EnvContract(factory=lambda: build(Calvin(**calvin), limit=12), seed=1).run()


def test_calvin_plays_a_chain(calvin):
    env = build(Calvin(**calvin, chain=3, subtask_steps=4), limit=None)
    assert env.metadata["max_episode_steps"] == 12
    seen, _ = env.reset(seed=0, options={"init_id": [0, 2]})
    assert seen["states"][:, 0].tolist() == [0, 20]
    action = np.zeros((2, 7), np.float32)
    action[0, 6] = 0.3
    texts, rewards = [seen["task_descriptions"][0]], []
    for _ in range(4):
        seen, reward, terminated, _, infos = env.step(action)
        texts.append(seen["task_descriptions"][0])
        rewards.append(reward[0])
    assert action[0, 6] == np.float32(0.3)
    assert texts == ["do 1 things", "do 2 things", "do 2 things", "do 3 things", "do 3 things"]
    assert rewards == [1, 0, 1, 0]
    assert terminated.tolist() == [False, True]  # the second one did nothing for four steps
    env.reset(seed=0, options={"init_id": 1, "reset_mask": terminated})
    for _ in range(2):
        _, _, terminated, _, infos = env.step(action)
    assert (terminated[0], infos["success"][0], infos["episode"]["return"][0]) == (True, True, 3)


def test_calvin_has_as_many_initial_states_as_sequences(calvin):
    with pytest.raises(ConfigError, match="there are 2 sequences, found init_id=2"):
        build(Calvin(**calvin, sequences=2)).reset(options={"init_id": 2})
    with pytest.raises(ConfigError, match=r"env\.dataset: '.*nowhere' doesn't exist\. Fetch it"):
        Calvin(dataset="/nowhere", conf=calvin["conf"]).check("env")


# All ------------------------------------------------------------------------------------------------------------------

CONFIGS = {
    "calvin": ("calvin_env", {"dataset": "/nowhere", "conf": "/nowhere"}),
    "robocasa": ("robocasa", {}),
    "robotwin": ("curobo", {"root": "/nowhere"}),
    "behavior": ("omnigibson", {}),
    "frankasim": ("franka_sim", {}),
    "habitat": ("habitat", {}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_each_is_listed_as_unverified_and_says_what_is_missing(name):
    module, fields = CONFIGS[name]
    config = ENVS.build(name, fields, place="env.train")
    assert name in ENVS.unverified()
    if importlib.util.find_spec(module) is None:
        with pytest.raises(MissingExtra, match=r"env\.train: the module '\w+' is not installed\. \w+"):
            config.check("env.train")


@pytest.mark.parametrize("name", CONFIGS)
def test_contract_where_the_simulator_is_installed(name):
    """CALVIN and RoboTwin also need RLINF_CALVIN_DATASET, RLINF_CALVIN_CONF and RLINF_ROBOTWIN_ROOT."""
    module, fields = CONFIGS[name]
    pytest.importorskip(module)
    fields = {key: os.environ.get(f"RLINF_{name}_{key}".upper(), value) for key, value in fields.items()}
    config = ENVS.build(name, fields, place="env")
    EnvContract(factory=lambda: build(config, num_envs=1 if name == "behavior" else 2)).run()
