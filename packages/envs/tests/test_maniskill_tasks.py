"""Tasks, images and refusals of ManiSkill on the CPU, on the real simulator."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.maniskill import ManiSkill, maniskill

if find_spec("mani_skill") is None:
    pytest.skip("the extra rlinf-envs[maniskill] is not installed", allow_module_level=True)


def make(num_envs=2, limit=4, **fields):
    return ManiSkill(**fields).make(num_envs, max_episode_steps=limit, ignore_terminations=True, render=False)


@pytest.fixture
def vulkan():
    from rlinf.envs.maniskill._maniskill import _import_simulator

    if not maniskill.has_vulkan_driver() or _import_simulator() is None:
        pytest.skip("no Vulkan driver: SAPIEN can't render here")


@pytest.mark.parametrize("task_id", ["PickCube-v1", pytest.param("StackCube-v1", marks=pytest.mark.slow)])
def test_contract(task_id):
    EnvContract(factory=lambda: make(task_id=task_id), steps=3).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    "task_id",
    [
        "PegInsertionSide-v1",
        "LiftPegUpright-v1",
        "PullCube-v1",
        "PlaceSphere-v1",
        "PullCubeTool-v1",
        "RollBall-v1",
        "PokeCube-v1",
        "MS-CartpoleBalance-v1",
        "MS-AntWalk-v1",
        "MS-HopperStand-v1",
        "TriFingerRotateCubeLevel0-v1",
        "RotateValveLevel0-v1",
    ],
)
def test_contract_of_more_tasks(task_id):
    EnvContract(factory=lambda: make(task_id=task_id, limit=6), steps=4).run()


@pytest.mark.parametrize(("task_id", "known"), [("MS-CartpoleBalance-v1", False), ("PushCube-v1", True)])
def test_a_task_without_success_says_so(task_id, known):
    config = ManiSkill(task_id=task_id)
    env = config.make(1, max_episode_steps=5, ignore_terminations=False, render=False)
    assert config.describe(env).knows_success == known
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize(("task_id", "keys"), [("PushCube-v1", {"main"}), ("PegInsertionSide-v1", {"main", "wrist"})])
def test_contract_of_images(vulkan, task_id, keys):
    def factory():
        return make(task_id=task_id, obs_mode="rgbd", image_size=32)

    EnvContract(factory=factory, steps=2).run()
    env = factory()
    observation, _ = env.reset(seed=1)
    images = {f"{view}_{kind}" for view in keys for kind in ("images", "depths")}
    assert set(observation) == images | {"states", "task_descriptions"}
    assert observation["main_images"].shape == (2, 32, 32, 3)
    assert observation["main_images"].std() > 10
    assert 0.1 < observation["main_depths"].mean() < 10
    env.close()


def test_images_without_vulkan_are_refused_before_the_start(monkeypatch):
    monkeypatch.setattr(maniskill, "has_vulkan_driver", lambda: False)
    with pytest.raises(ConfigError, match=r"env\.train\.obs_mode: 'rgb' needs a Vulkan driver, found none\. Install mesa-vulkan"):
        ManiSkill(obs_mode="rgb").check("env.train")


def test_images_are_refused_where_the_driver_does_not_work(monkeypatch):
    from rlinf.envs.maniskill import _maniskill

    monkeypatch.setattr(maniskill, "has_vulkan_driver", lambda: True)
    monkeypatch.setattr(_maniskill, "_import_simulator", lambda: None)
    with pytest.raises(ConfigError, match=r"env\.obs_mode: 'rgbd' needs a working Vulkan driver"):
        make(obs_mode="rgbd")


def test_the_message_of_a_put_on_plate_task_says_what_to_fetch(monkeypatch, tmp_path):
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        ManiSkill(task_id="PutCarrotOnPlateInScene-v1", obs_mode="rgb").check("env.train")
    text = str(caught.value)
    assert text.startswith("env.train.task_id: 'PutCarrotOnPlateInScene-v1' needs assets that are not in ")
    assert str(tmp_path / "data/tasks/bridge_v2_real2sim_dataset") in text
    for asset in ("bridge_v2_real2sim", "widowx250s"):
        assert f"python -m mani_skill.utils.download_asset {asset}" in text
    assert "\n" not in text


def test_the_assets_of_a_put_on_plate_task_are_found_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    monkeypatch.setattr(maniskill, "has_vulkan_driver", lambda: True)
    config = ManiSkill(task_id="PutCarrotOnPlateInScene-v1", obs_mode="rgb", control_mode=None, reward_mode="sparse")
    for folder in ("tasks/bridge_v2_real2sim_dataset", "robots/widowx"):
        with pytest.raises(ConfigError, match=f"assets that are not in .*{folder}"):
            config.check("env")
        (tmp_path / "data" / folder).mkdir(parents=True)
    config.check("env")


def test_a_robot_that_would_be_downloaded_is_refused(capsys):
    with pytest.raises(ConfigError, match=r"'AnymalC-Reach-v1' needs assets that are not on this machine \(Robot anymal_c"):
        make(task_id="AnymalC-Reach-v1")


def test_a_reward_that_the_task_does_not_have():
    with pytest.raises(ConfigError, match=r"'StackPyramid-v1' has no reward 'normalized_dense'\. It has: sparse"):
        make(task_id="StackPyramid-v1")


def test_a_numbered_initial_state_reaches_the_simulation(monkeypatch):
    from rlinf.envs.maniskill import _maniskill

    monkeypatch.setattr(_maniskill, "numbered_states", lambda simulation: 24)
    env = make(1)
    simulation = env.unwrapped.envs[0].simulation
    reset, seen = simulation.reset, []
    monkeypatch.setattr(simulation, "reset", lambda seed, options: seen.append(options) or reset(seed, options))
    env.reset(options={"init_id": 5})
    env.reset(seed=1)
    assert seen[0]["episode_id"].tolist() == [5]
    assert seen[1] == {}
    with pytest.raises(ConfigError, match="there is no initial state 24"):
        env.reset(options={"init_id": 24})
    env.close()


def test_sparse_and_dense_rewards():
    rewards = {}
    for mode in ("sparse", "dense", "normalized_dense"):
        env = make(1, reward_mode=mode)
        env.reset(seed=1)
        rewards[mode] = env.step(np.zeros((1, 8), np.float32))[1][0]
        env.close()
    assert rewards["sparse"] == 0.0 < rewards["normalized_dense"] < rewards["dense"]


def test_each_task_has_a_sentence():
    assert ManiSkill(task_id="StackCube-v1").description == "stack the red cube on the green cube"
    assert ManiSkill(task_id="my.tasks:UnitreeG1PlaceAppleInBowl-v1").description == "unitree g 1 place apple in bowl"
    assert ManiSkill(task_description="shove it").description == "shove it"
