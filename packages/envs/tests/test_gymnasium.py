from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.core.testing.env import EnvContract
from rlinf.envs import Gymnasium
from rlinf.envs.rendering.mujoco import can_render

needs_gl = pytest.mark.skipif(not can_render(), reason="MuJoCo can't draw here: install libegl1 and libgl1-mesa-dri, or libosmesa6")


def make(config, num_envs=3, *, limit=None, ignore=False):
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=False)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_contract(env_id):
    EnvContract(factory=lambda: make(Gymnasium(env_id=env_id))).run()


@pytest.mark.parametrize("success_key", [None, "is_success"])
def test_a_task_without_a_success_key_says_that_it_knows_no_success(success_key):
    config = Gymnasium(env_id="Pendulum-v1", success_key=success_key)
    assert config.describe(make(config)).knows_success == (success_key is not None)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5"])
def test_contract_of_mujoco(env_id):
    pytest.importorskip("mujoco")
    EnvContract(factory=lambda: make(Gymnasium(env_id=env_id), 2, limit=20)).run()


@pytest.mark.parametrize(
    ("env_id", "success"),
    [
        pytest.param("FetchPush-v4", "is_success", marks=pytest.mark.slow),
        ("AdroitHandDoor-v1", "success"),
        pytest.param("FrankaKitchen-v1", None, marks=pytest.mark.slow),
    ],
)
def test_contract_of_robotics(env_id, success):
    pytest.importorskip("gymnasium_robotics")
    EnvContract(factory=lambda: make(Gymnasium(env_id=env_id, success_key=success), 2, limit=5), steps=4).run()


@needs_gl
@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", pytest.param("FetchReachDense-v4", marks=pytest.mark.slow)])
def test_contract_with_images(env_id):
    pytest.importorskip("gymnasium_robotics")
    config = Gymnasium(env_id=env_id, obs_mode="rgb", image_size=32)
    EnvContract(factory=lambda: make(config, 2, limit=6), steps=4).run()


def test_an_id_may_name_the_module_of_gymnasium_robotics():
    pytest.importorskip("gymnasium_robotics")
    Gymnasium(env_id="gymnasium_robotics:FetchReach-v4").check("env")
    with pytest.raises(ConfigError, match="'gymnasium_robotics' registers no environment 'FetchReech-v4'"):
        Gymnasium(env_id="gymnasium_robotics:FetchReech-v4").check("env")


CONTACTS = ["Ant-v5", "Humanoid-v5", "FetchPush-v4", "AdroitHandHammer-v1", "AdroitHandRelocate-v1", "HandManipulateBlock-v1"]


@pytest.mark.parametrize("env_id", CONTACTS)
def test_a_reset_forgets_contacts(env_id):
    """Warm starts, activations, mocap bodies, time: nothing of an episode is left in the next one."""
    pytest.importorskip("gymnasium_robotics")
    used, fresh = (make(Gymnasium(env_id=env_id), 1, limit=60, ignore=True) for _ in range(2))
    for seed, steps in ((11, 60), (12, 33), (13, 1)):
        trace(used, seed, steps)
    assert trace(used, 3, 25) == trace(fresh, 3, 25)
    simulation = used.unwrapped.envs[0].env.unwrapped
    assert simulation.data.time < 10, "the clock was not reset"


def trace(env, seed, steps):
    """An episode's observations and rewards as bytes."""
    rng = np.random.default_rng(seed)
    low, high = env.action_space.low, env.action_space.high
    parts = [env.reset(seed=[seed])[0]["states"].tobytes()]
    for _ in range(steps):
        observation, reward, *_ = env.step(rng.uniform(low, high).astype(env.action_space.dtype))
        parts += [observation["states"].tobytes(), reward.tobytes()]
    return parts


def register(name, entry_point):
    gymnasium.registry.pop(f"rlinf_test/{name}", None)
    gymnasium.register(f"rlinf_test/{name}", entry_point=entry_point)


class Imaged(gymnasium.Env):
    """Its observation is an image, alone or beside a number."""

    def __init__(self, keys=("image",)):
        image = gymnasium.spaces.Box(0, 255, (4, 6, 3), np.uint8)
        parts = dict.fromkeys(keys, image) | {"number": gymnasium.spaces.Discrete(3)}
        self.observation_space = gymnasium.spaces.Dict(parts) if keys else image
        self.action_space = gymnasium.spaces.Discrete(2)
        self.keys = keys

    def observe(self):
        self.count += 1
        image = np.full((4, 6, 3), (self.start + self.count) % 251, np.uint8)
        return dict.fromkeys(self.keys, image) | {"number": self.count % 3} if self.keys else image

    def reset(self, *, seed=None, options=None):
        self.start, self.count = seed, 0
        return self.observe(), {}

    def step(self, action):
        return self.observe(), 0.0, False, False, {}


@pytest.mark.parametrize("keys", [(), ("image",)])
def test_images_pass_through(keys):
    register("Imaged-v0", Imaged)
    config = Gymnasium(env_id="rlinf_test/Imaged-v0", kwargs={"keys": keys})
    env = make(config, 2, limit=5)
    observation, _ = env.reset(seed=[7, 8])
    assert observation["main_images"].shape == (2, 4, 6, 3)
    assert observation["main_images"][:, 0, 0, 0].tolist() == [8, 9]
    if keys:
        assert observation["states"].tolist() == [[0, 1, 0], [0, 1, 0]]
    else:
        assert set(observation) == {"main_images"}
    EnvContract(factory=lambda: make(config, 2, limit=5)).run()


class Told(Imaged):
    """Calls its observation by our keys: two cameras, what it is told, and two parts that are numbers."""

    def __init__(self, told="push the cube"):
        super().__init__(("main_images", "wrist_images"))
        text = gymnasium.spaces.Text(16, charset="abcdefghijklmnopqrstuvwxyz ")
        self.observation_space = gymnasium.spaces.Dict({**self.observation_space.spaces, "task_descriptions": text})
        self.told = told

    def observe(self):
        found = super().observe()
        return {**found, "wrist_images": found["main_images"] + 100, "task_descriptions": self.told}


def test_parts_with_our_names_stay_what_they_are():
    register("Told-v0", Told)
    config = Gymnasium(env_id="rlinf_test/Told-v0")
    env = make(config, 2, limit=5)
    for observation in (env.reset(seed=[7, 8])[0], env.step(np.zeros(2, np.int64))[0]):
        assert set(observation) == {"main_images", "wrist_images", "states", "task_descriptions"}
        assert observation["task_descriptions"].tolist() == ["push the cube"] * 2
        assert observation["states"].shape == (2, 3), "the text is no number"
        assert (observation["wrist_images"] == observation["main_images"] + 100).all()
    EnvContract(factory=lambda: make(config, 2, limit=5)).run()
    with pytest.raises(ConfigError, match=r"found \{main_images: ndarray of shape \(4, 6, 3\), .*: 'push the cubes away'\}"):
        make(Gymnasium(env_id="rlinf_test/Told-v0", kwargs={"told": "push the cubes away"}), limit=5).reset(seed=[0, 1, 2])


def test_several_images_are_one_too_many():
    register("Imaged-v0", Imaged)
    with pytest.raises(ConfigError, match=r"several images: left, right"):
        make(Gymnasium(env_id="rlinf_test/Imaged-v0", kwargs={"keys": ("left", "right")}), limit=5)


def test_a_size_that_the_environment_does_not_take():
    with pytest.raises(ConfigError, match=r"env\.image_size: .*CartPole-v1.* takes no width and height"):
        make(Gymnasium(env_id="CartPole-v1", image_size=32))


def test_contract_of_fetch():
    pytest.importorskip("gymnasium_robotics")
    EnvContract(factory=lambda: make(Gymnasium(env_id="FetchReachDense-v4", success_key="is_success"), 2)).run()


def test_fetch_is_flattened_by_sorted_key():
    robotics = pytest.importorskip("gymnasium_robotics")
    gymnasium.register_envs(robotics)
    bare = gymnasium.make("FetchReachDense-v4")
    observation, _ = bare.reset(seed=5)
    expected = np.concatenate([observation[k] for k in ("achieved_goal", "desired_goal", "observation")]).astype(np.float32)
    config = Gymnasium(env_id="FetchReachDense-v4", success_key="is_success")
    env = make(config, 1)
    assert np.array_equal(env.reset(seed=[5])[0]["states"][0], expected)
    spec = config.describe(env)
    assert (spec.observation["states"].shape, spec.action.shape, spec.max_episode_steps) == ((16,), (4,), 50)
    assert np.array_equal(spec.action.high, np.ones(4, np.float32))


def test_fetch_success_is_reached_and_does_not_end_the_episode():
    pytest.importorskip("gymnasium_robotics")
    env = make(Gymnasium(env_id="FetchReachDense-v4", success_key="is_success"), 2, limit=20)
    observation, _ = env.reset(seed=[3, 4])
    for _ in range(20):
        states = observation["states"]
        action = np.zeros((2, 4), np.float32)
        action[:, :3] = np.clip(8 * (states[:, 3:6] - states[:, :3]), -1, 1)
        observation, _, terminated, truncated, infos = env.step(action)
    assert infos["success"].all()
    assert infos["episode"]["success_at_end"].all()
    assert truncated.all()
    assert not terminated.any()


def test_ignored_terminations():
    env = make(Gymnasium(env_id="CartPole-v1"), 2, limit=60, ignore=True)
    env.reset(seed=1)
    for _ in range(60):
        _, _, terminated, truncated, infos = env.step(np.ones(2, np.int64))
        assert not terminated.any()
    assert truncated.all()
    assert infos["episode"]["episode_len"].tolist() == [60, 60]


def test_discrete_actions_are_described():
    config = Gymnasium(env_id="CartPole-v1")
    action = config.describe(make(config, 1)).action
    assert (action.shape, int(action.low), int(action.high)) == ((), 0, 1)


def test_a_success_key_that_the_environment_does_not_have():
    env = make(Gymnasium(env_id="Pendulum-v1", success_key="is_success"), 1)
    env.reset(seed=1)
    with pytest.raises(ConfigError, match=r"env\.success_key: the environment says nothing of 'is_success'"):
        env.step(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Pendulim-v1", r"Environment `Pendulim` doesn't exist\. Did you mean: `Pendulum`"),
        ("Pendulum-v0", r"version v0 for `Pendulum` is deprecated\. Please use `Pendulum-v1`"),
        ("Pendulum-v9", r"version `v9` for environment `Pendulum` doesn't exist\."),
        ("Pendulum v1", r"Malformed environment ID: Pendulum v1\. .*\(env-name\)-v\(version\)"),
        ("", r"Malformed environment ID"),
    ],
)
def test_an_id_that_gymnasium_does_not_know(env_id, message):
    with pytest.raises(ConfigError, match=rf"^env\.train\.env_id: .*{message}"):
        Gymnasium(env_id=env_id).check("env.train")


def test_an_argument_that_the_environment_does_not_take():
    message = r"^env\.kwargs\.gravity: 'Pendulum-v1' takes no such argument\. .*Its arguments: g\."
    with pytest.raises(ConfigError, match=message):
        make(Gymnasium(env_id="Pendulum-v1", kwargs={"gravity": 3.0}), 1)
    assert make(Gymnasium(env_id="Pendulum-v1", kwargs={"g": 3.0}), 1)


def test_missing_packages():
    with pytest.raises(MissingExtra, match="no_such_package"):
        Gymnasium(env_id="no_such_package:Thing-v0").check("env.train")


@pytest.mark.skipif(importlib.util.find_spec("pygame") is not None, reason="pygame is installed")
def test_pictures_of_classic_control_need_pygame():
    message = r"env\.train\.obs_mode: the module 'pygame' is not installed\. Install gymnasium\[classic-control\]"
    with pytest.raises(MissingExtra, match=message):
        Gymnasium(env_id="CartPole-v1", obs_mode="rgb").check("env.train")
    Gymnasium(env_id="CartPole-v1").check("env.train")


class Undrawn(Imaged):
    """What it draws with is only imported when it draws."""

    metadata: ClassVar[dict[str, list[str]]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed, run `pip install pygame`")


def test_what_a_simulator_finds_missing_when_it_draws_is_told():
    gymnasium.register("rlinf_test/Undrawn-v0", entry_point=Undrawn, max_episode_steps=5)
    with pytest.raises(MissingExtra, match=r"env\.env_id: 'rlinf_test/Undrawn-v0' lacks something: pygame is not installed, run"):
        make(Gymnasium(env_id="rlinf_test/Undrawn-v0", obs_mode="rgb"))


def test_an_error_that_says_nothing_is_told_by_its_class(caplog):
    class Silent(Undrawn):
        def render(self):
            raise NotImplementedError

    pytest.importorskip("PIL")
    gymnasium.register("rlinf_test/Silent-v0", entry_point=Silent, max_episode_steps=5)
    Gymnasium(env_id="rlinf_test/Silent-v0").make(1, max_episode_steps=5, ignore_terminations=False, render=True).close()
    assert "rlinf_test/Silent-v0 can't render here (NotImplementedError): its videos" in caplog.text


def test_an_environment_without_a_limit(counter):
    gymnasium.register("rlinf_test/Endless-v0", entry_point=gymnasium.spec("Pendulum-v1").entry_point)
    with pytest.raises(ConfigError, match="max_episode_steps"):
        make(Gymnasium(env_id="rlinf_test/Endless-v0"))


def test_public_modules_import_no_simulator():
    heavy = "{'torch', 'ray', 'mujoco', 'sapien', 'mani_skill', 'gymnasium_robotics', 'PIL', 'imageio'}"
    code = f"""
import sys
from typing import ClassVar
import rlinf.envs, rlinf.envs.commands, rlinf.envs.wrappers.video
from rlinf.core.errors import MissingExtra
for config in (rlinf.envs.ManiSkill(), rlinf.envs.Gymnasium(env_id='FetchReachDense-v4')):
    try:
        config.check('env')
    except MissingExtra:
        pass
print(sorted({heavy} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr
