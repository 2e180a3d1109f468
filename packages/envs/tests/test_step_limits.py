"""What configurations say of episodes before anything is built: step limits, rewards, and which tasks there are."""

from __future__ import annotations

import sys
import textwrap

import gymnasium
import pytest

from rlinf.core.declarations import episode_steps_of, success_only_of
from rlinf.core.errors import ConfigError
from rlinf.envs import Custom, EnvPool, Genesis, Gymnasium, Libero, ManiSkill, MetaWorld, Parallel, Robosuite, Tabletop
from rlinf.envs.gymnasium.registrations import registered_by

REGISTERS = """
    import gymnasium
    from gymnasium import register

    for size in ["Small", "Big"]:
        suffix = "Dense" if size == "Small" else ""
        register(id=f"Toy{size}{suffix}-v0", entry_point="toy:Env", max_episode_steps=7)
    for suffix in ["Late"]:
        gymnasium.register(f"Toy{suffix}-v1", entry_point="toy:Env")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of a name of its own; what it registers is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(gymnasium.registry)

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return name

    yield write
    for added in set(gymnasium.registry) - known:
        del gymnasium.registry[added]


@pytest.mark.parametrize("config", [Tabletop(task="slots"), Tabletop(task="reach"), Gymnasium(env_id="CartPole-v1")])
def test_the_limit_that_is_declared_is_the_one_that_is_built(config):
    env = config.make(1, max_episode_steps=None, ignore_terminations=False, render=False)
    assert episode_steps_of(config) == config.describe(env).max_episode_steps
    env.close()


def test_limits_of_simulators_that_are_not_imported():
    assert episode_steps_of(MetaWorld()) == episode_steps_of(Robosuite()) == 500
    assert episode_steps_of(Libero()) == 300
    assert episode_steps_of(Libero(suite="libero_10")) == 520
    assert episode_steps_of(Genesis()) == 50
    assert episode_steps_of(EnvPool(env_id="HalfCheetah-v4")) is None
    assert episode_steps_of(ManiSkill(task_id="PushCubes-v1")) is None
    # Nobody cuts the episodes of a class; a vector environment may do so, and a name that is none is refused elsewhere.
    pole, vector = (
        "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
    )
    assert [episode_steps_of(Custom(env=name)) for name in (pole, vector, "nowhere:Env")] == [0, None, None]
    assert episode_steps_of(Parallel(env="tabletop", params={"task": "slots"})) == 8


def test_who_rewards_success_alone_says_so():
    paying = (Libero(), Tabletop(), Robosuite(reward_mode="sparse"), ManiSkill(reward_mode="sparse"))
    others = (Tabletop(reward_mode="progress"), Robosuite(), ManiSkill(), MetaWorld(), EnvPool(env_id="HalfCheetah-v4"))
    assert [success_only_of(config) for config in paying] == [True] * 4
    assert [success_only_of(config) for config in others] == [False] * 5
    assert success_only_of(Parallel(env="tabletop", params={"task": "slots"}))


def test_what_a_module_registers_is_read_from_its_source(module):
    name = module("rlinf_test_registers", REGISTERS)
    assert registered_by(name) == {"ToySmallDense-v0": 7, "ToySmall-v0": 7, "ToyBigDense-v0": 7, "ToyBig-v0": 7, "ToyLate-v1": None}
    assert name not in sys.modules
    assert episode_steps_of(Gymnasium(env_id=f"{name}:ToyBig-v0")) == 7


@pytest.mark.parametrize(
    "source",
    [
        "import gymnasium\nNAME = str(1)\ngymnasium.register(id=NAME, entry_point='toy:Env')",
        "import gymnasium\n_ = [gymnasium.register(id=name, entry_point='toy:Env') for name in ('A-v0', 'B-v0')]",
        "import gymnasium\nfor name in tuple('AB'):\n    gymnasium.register(id=f'{name}-v0', entry_point='toy:Env')",
        "",
    ],
)
def test_what_only_an_import_tells_is_unknown(module, source):
    name = module(f"rlinf_test_unknown_{len(source)}", source)
    assert registered_by(name) is None
    Gymnasium(env_id=f"{name}:Any-v0").check("env.train")


def test_an_id_that_a_module_does_not_register_is_refused(module):
    name = module("rlinf_test_refused", REGISTERS)
    Gymnasium(env_id=f"{name}:ToyBig-v0").check("env.train")
    assert name not in sys.modules
    with pytest.raises(
        ConfigError, match=rf"^env\.train\.env_id: '{name}' registers no environment 'ToyBigg-v0'\. Did you mean 'ToyBig-v0'"
    ):
        Gymnasium(env_id=f"{name}:ToyBigg-v0").check("env.train")


def test_an_id_that_another_module_registers_is_found(module):
    """Its source does not name the id, but what it imports does."""
    module("rlinf_test_inner", "import gymnasium\ngymnasium.register(id='Inner-v0', entry_point='toy:Env', max_episode_steps=3)")
    name = module(
        "rlinf_test_outer", "import gymnasium, rlinf_test_inner\ngymnasium.register(id='Outer-v0', entry_point='toy:Env')"
    )
    Gymnasium(env_id=f"{name}:Inner-v0").check("env.train")


def test_ids_and_limits_of_gymnasium_robotics_are_those_that_it_registers():
    pytest.importorskip("gymnasium_robotics")
    read = registered_by("gymnasium_robotics")
    assert read is not None
    ours = [spec for spec in gymnasium.registry.values() if str(spec.entry_point).startswith("gymnasium_robotics.")]
    assert len(ours) > 100
    assert {spec.id: spec.max_episode_steps for spec in ours}.items() <= read.items()
    with pytest.raises(
        ConfigError, match=r"^env\.train\.env_id: 'gymnasium_robotics' .*'FetchReachDens-v4'\. Did you mean 'FetchReachDense-v4'"
    ):
        Gymnasium(env_id="FetchReachDens-v4").check("env.train")


def test_tasks_of_robosuite_are_read_from_its_source():
    pytest.importorskip("robosuite")
    with pytest.raises(ConfigError, match=r"^env\.train\.task_id: .*'Lifd'\. Did you mean 'Lift'"):
        Robosuite(task_id="Lifd").check("env.train")
