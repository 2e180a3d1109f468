"""Environments of a user's own, named by `module:attr` and nothing else."""

from __future__ import annotations

import sys
import types

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlinf.core.errors import ConfigError, UnknownName
from rlinf.core.registry import ENVS, register_env
from rlinf.core.testing.env import EnvContract
from rlinf.envs import Custom, EnvPool, GroupReset, Tabletop
from rlinf.envs.remote.spaces import read_space, write_space


class Dot(gymnasium.Env):
    """A dot that walks to the goal, and has reached it above 0.9."""

    def __init__(self, speed=0.1, goal=0.9):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.speed, self.goal = speed, goal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = float(self.np_random.uniform(-0.5, 0.5))
        return np.array([self.at, self.goal]), {}

    def step(self, action):
        self.at += self.speed * float(action[0])
        there = self.at > self.goal
        return np.array([self.at, self.goal]), -abs(self.at - self.goal), there, False, {"is_success": there}


class Pictured(Dot):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.full((16, 16, 3), int(100 + 50 * self.at), np.uint8)


class NoEnvironment:
    pass


def limited(speed=0.1):
    return gymnasium.wrappers.TimeLimit(Dot(speed), 7)


def vectors(num_envs, mode="Disabled"):
    return SyncVectorEnv([Dot] * num_envs, autoreset_mode=AutoresetMode(mode))


def ours(num_envs, max_episode_steps, ignore_terminations):
    return Tabletop(task="reach").make(
        num_envs, max_episode_steps=max_episode_steps, ignore_terminations=ignore_terminations, render=False
    )


def recorded(num_envs, max_episode_steps, render):
    env = Tabletop(task="reach").make(num_envs, max_episode_steps=max_episode_steps, ignore_terminations=False, render=render)
    return GroupReset(env, group_size=1)


def of_nine(num_envs):
    return Tabletop(task="reach").make(num_envs, max_episode_steps=9, ignore_terminations=False, render=False)


def surprising():
    return vectors(2)


CARTPOLES = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"


@pytest.fixture(autouse=True)
def mystuff(monkeypatch):
    module = types.ModuleType("mystuff")
    for item in (Dot, Pictured, NoEnvironment, limited, vectors, ours, recorded, of_nine, surprising):
        setattr(module, item.__name__, item)
    monkeypatch.setitem(sys.modules, "mystuff", module)


def make(name, num_envs=3, limit=12, ignore=False, render=False, **params):
    config = ENVS.build(name, params, place="env.train")
    config.check("env.train")
    env = config.make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=render)
    return config, env


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("mystuff:Dot", {}),
        ("mystuff:Dot", {"kwargs": {"speed": 0.3}, "success_key": "is_success"}),
        ("mystuff:limited", {"success_key": "is_success", "limit": 7}),
        ("mystuff:vectors", {}),
        ("mystuff:vectors", {"kwargs": {"mode": "SameStep"}}),
        ("gymnasium.envs.classic_control:PendulumEnv", {}),
        pytest.param(CARTPOLES, {}, id="a library that resets by itself"),
    ],
)
def test_it_keeps_the_contract(name, params):
    EnvContract(factory=lambda: make(name, **params)[1], steps=4).run()


def test_what_is_known_of_it():
    config, env = make("mystuff:Dot", success_key="is_success", kwargs={"goal": 0.5})
    spec = config.describe(env)
    assert spec.knows_success
    assert spec.max_episode_steps == 12
    assert env.reset(seed=0)[0]["states"][:, 1].tolist() == [0.5] * 3
    config, env = make(CARTPOLES)
    assert not config.describe(env).knows_success
    for name in ("mystuff:Dot", "mystuff:vectors"):
        config, env = make(name)
        assert not config.describe(env).knows_success


def test_an_end_can_be_ignored():
    _, env = make("mystuff:Dot", kwargs={"speed": 1.0}, success_key="is_success", ignore=True)
    env.reset(seed=0)
    for _ in range(12):
        _, _, terminated, truncated, infos = env.step(np.ones((3, 1), np.float32))
    assert not terminated.any()
    assert truncated.all()
    assert infos["episode"]["success_once"].all()
    with pytest.raises(ConfigError, match=r"env\.ignore_terminations: 'mystuff:vectors' makes vector environments"):
        make("mystuff:vectors", ignore=True)


def test_one_of_ours_is_left_as_it_is():
    _, env = make("mystuff:ours", ignore=True)
    assert env.unwrapped.__class__.__name__ == "TabletopEnv"
    assert env.metadata["max_episode_steps"] == 12


def test_one_of_ours_with_another_limit_is_refused():
    _, env = make("mystuff:of_nine", limit=9)
    assert env.metadata["max_episode_steps"] == 9
    make("mystuff:of_nine", limit=None)
    with pytest.raises(ConfigError, match=r"env\.max_episode_steps: .* 12 steps, and 'mystuff:of_nine' makes some of 9"):
        make("mystuff:of_nine", limit=12)


def test_one_of_ours_is_filmed_once():
    pytest.importorskip("imageio_ffmpeg")
    _, env = make("mystuff:recorded", render=True)
    assert type(env) is GroupReset


def test_a_class_that_was_registered():
    register_env("my_dot", Dot)
    assert ENVS.build("my_dot", {}, place="env.train") == Custom(env=ENVS.owner("my_dot"))


@pytest.mark.parametrize("name", ["mystuff:Dot", "mystuff:Pictured", "mystuff:vectors", CARTPOLES])
def test_it_is_filmed_in_one_way_or_the_other(name):
    pytest.importorskip("imageio_ffmpeg")
    _, env = make(name, render=True)
    env.reset(seed=0)
    frames = env.render()
    assert len(frames) == 3
    assert frames[0].shape[-1] == 3
    assert (frames[0].shape[0] == 16) == (name == "mystuff:Pictured")


def test_its_own_pictures_can_be_observed():
    _, env = make("mystuff:Pictured", obs_mode="rgb")
    observation, _ = env.reset(seed=0)
    assert observation["main_images"].shape == (3, 16, 16, 3)
    with pytest.raises(ConfigError, match=r"env\.obs_mode: 'Dot' takes no render_mode"):
        make("mystuff:Dot", obs_mode="rgb")


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        (
            "mystuff:NoEnvironment",
            {},
            r"env\.train\.env_type: expected a gymnasium\.Env or .*found the class NoEnvironment",
        ),
        ("mystuff:Dot", {"kwargs": {"sped": 1}}, r"env\.train\.kwargs: 'mystuff:Dot' can't be called with them: .*'sped'"),
        ("mystuff:surprising", {}, r"env\.env_type: 'mystuff:surprising' returns a vector environment\. Give it .*num_envs"),
    ],
)
def test_what_is_refused(name, params, message):
    with pytest.raises(ConfigError, match=message):
        make(name, **params)


def test_a_limit_is_needed():
    with pytest.raises(ConfigError, match=r"'Dot' has no step limit of its own\. Set max_episode_steps"):
        make("mystuff:Dot", limit=None)


@pytest.mark.parametrize("name", [5, [], None])
def test_a_name_that_is_none(name):
    with pytest.raises(UnknownName, match=r"^env\.train: expected the name of an environment, found"):
        ENVS.build(name, {}, place="env.train")


class OldReset(Dot):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class OldSeed(Dot):
    def reset(self):
        return super().reset()


class OldStep(Dot):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


def test_an_environment_of_an_older_api_is_refused_by_what_it_returns():
    make = {"max_episode_steps": 5, "ignore_terminations": False, "render": False}
    with pytest.raises(ConfigError, match=r"OldReset\.reset is to return \(observation, info\), found one ndarray"):
        Custom(env=f"{__name__}:OldReset").make(2, **make).reset(seed=[0, 1])
    with pytest.raises(ConfigError, match=r"^env: OldSeed\.reset takes no seed\. Write it as Gymnasium does"):
        Custom(env=f"{__name__}:OldSeed").make(2, **make).reset(seed=[0, 1])
    env = Custom(env=f"{__name__}:OldStep").make(2, **make)
    env.reset(seed=[0, 1])
    with pytest.raises(ConfigError, match=r"OldStep\.step is to return \(observation, reward, terminated, .*, found 4 things"):
        env.step(np.zeros((2, 1), np.float32))


class Switches(Dot):
    def __init__(self, space):
        super().__init__()
        self.action_space = space

    def step(self, action):
        assert action in self.action_space
        return super().step(np.float32([action[0] * 2.0 - action[1]]))


def test_switches_are_numbered_actions_and_a_mixture_is_refused():
    make = {"max_episode_steps": 9, "ignore_terminations": False, "render": False}
    config = Custom(env=f"{__name__}:Switches", kwargs={"space": gymnasium.spaces.MultiBinary(2)})
    env = config.make(2, **make)
    action = config.describe(env).action
    assert (action.shape, action.dtype) == ((2,), "int8")
    assert (action.low.tolist(), action.high.tolist()) == ([0, 0], [1, 1])
    before, _ = env.reset(seed=[0, 1])
    after = env.step(np.array([[1, 0], [0, 1]]))[0]
    np.testing.assert_allclose((after["states"] - before["states"])[:, 0], [0.2, -0.1], atol=1e-6)
    EnvContract(factory=lambda: config.make(3, **make)).run()
    assert read_space(write_space(gymnasium.spaces.MultiBinary(2), "action")) == gymnasium.spaces.MultiDiscrete([2, 2], np.int8)
    mixed = gymnasium.spaces.Dict({"arm": Dot().action_space, "hand": gymnasium.spaces.Discrete(2)})
    config = Custom(env=f"{__name__}:Switches", kwargs={"space": mixed})
    with pytest.raises(
        ConfigError, match=r"^env\.action: expected a Box, Discrete, MultiDiscrete or MultiBinary .*TransformAction"
    ):
        config.describe(config.make(2, **make))


class Longer(Dot):
    """Its second observation is none of its space."""

    def step(self, action):
        return np.zeros(3), *super().step(action)[1:]


class Unnamed(Dot):
    """Says that its observation has a name, and gives none."""

    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Dict({"where": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)})


def test_an_observation_outside_its_space_is_refused():
    env = make(f"{__name__}:Longer", 2)[1]
    env.reset(seed=[0, 1])
    problem = r"env\.observation: expected one of Box\(.*, found ndarray of shape \(3,\)\. Let observation_space say"
    with pytest.raises(ConfigError, match=problem):
        env.step(np.zeros((2, 1), np.float32))
    env = make(f"{__name__}:Unnamed", 2)[1]
    with pytest.raises(ConfigError, match=r"expected one of Dict\('where': Box\(.*, found ndarray of shape \(2,\)"):
        env.reset(seed=[0, 1])


def test_no_environment_and_no_step_are_refused():
    for size, limit, key in ((0, 5, "num_envs"), (2, -1, "max_episode_steps")):
        for name in (f"{__name__}:Dot", "tabletop"):
            with pytest.raises(ConfigError, match=f"{key}: expected at least 1, found {min(size, limit)}"):
                make(name, size, limit)


class Rewarding(Dot):
    def __init__(self, reward):
        super().__init__()
        self.reward = reward

    def step(self, action):
        found, _, *rest = super().step(action)
        return found, self.reward, *rest


class Spaceless(Dot):
    def __init__(self):
        super().__init__()
        del self.action_space


def test_a_reward_that_is_no_number_and_a_missing_space_are_named():
    for reward, found in ((np.zeros(1), r"ndarray of shape \(1,\)"), (None, "NoneType"), ("1", "str")):
        env = Custom(env=f"{__name__}:Rewarding", kwargs={"reward": reward}).make(
            1, max_episode_steps=5, ignore_terminations=False, render=False
        )
        env.reset(seed=[0])
        with pytest.raises(ConfigError, match=rf"^env: Rewarding\.step is to return a number as its reward, found {found}\n"):
            env.step(np.zeros((1, 1), np.float32))
    with pytest.raises(ConfigError, match=r"expected Spaceless\.action_space to be a space of Gymnasium, found None\. Set it"):
        make(f"{__name__}:Spaceless", 2)


def test_the_place_of_a_class_that_is_no_environment_is_a_key_of_the_run():
    with pytest.raises(ConfigError, match=r"^env\.train\.env_type: expected a gymnasium"):
        Custom(env="builtins:dict").check("env.train.init_params")


class Pendulums(EnvPool):
    """A configuration of ours with a setting of somebody else's."""


def test_a_class_that_derives_from_a_configuration_of_ours_is_made_as_that_is(monkeypatch):
    monkeypatch.setattr(EnvPool, "check", lambda *_: None)
    with pytest.raises(ConfigError, match=r"^env\.render: envpool's rendering is not supported"):
        Pendulums(env_id="Pendulum-v1").make(1, max_episode_steps=None, ignore_terminations=False, render=True)
