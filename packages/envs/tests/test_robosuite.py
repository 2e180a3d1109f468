from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from arm_traces import expect_lite_physics, trace

from rlinf.core.errors import ConfigError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.remote import Remote
from rlinf.envs.rendering.mujoco import can_render
from rlinf.envs.robosuite import Robosuite

if importlib.util.find_spec("robosuite") is None:
    pytest.skip("the extra rlinf-envs[libero], which brings robosuite, is not installed", allow_module_level=True)
needs_gl = pytest.mark.skipif(not can_render(), reason="MuJoCo can't draw here: install libegl1 and libgl1-mesa-dri, or libosmesa6")


def make(num_envs=1, *, limit=None, ignore=False, **fields):
    return Robosuite(**fields).make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=False)


@pytest.mark.parametrize("task", ["Lift", pytest.param("Stack", marks=pytest.mark.slow)])
def test_contract(task):
    EnvContract(factory=lambda: make(2, task_id=task, rebuild=False, limit=4), steps=2).run()


@pytest.mark.parametrize("rebuild", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_reset_forgets_the_contacts_of_earlier_episodes(rebuild):
    state = np.random.get_state()[1].copy()
    used, fresh = (make(limit=40, ignore=True, rebuild=rebuild) for _ in range(2))
    trace(used, 11, 30)
    assert trace(used, 3, 10) == trace(fresh, 3, 10)
    assert trace(used, 4, 0) != trace(fresh, 3, 0)
    assert np.array_equal(np.random.get_state()[1], state), "the caller's random numbers were touched"


def test_environments_compile_one_model_and_each_has_its_own():
    compiled = importlib.import_module("rlinf.envs.robosuite._robosuite")._compiled
    compiled.cache_clear()
    env = make(2, rebuild=False)
    assert compiled.cache_info().misses == 1
    one, other = (each._env.sim.model._model for each in env.unwrapped.envs)
    one.opt.gravity[2] = 0
    assert other.opt.gravity[2] == pytest.approx(-9.81)
    assert make(rebuild=False).unwrapped.envs[0]._env.sim.model._model.opt.gravity[2] == pytest.approx(-9.81)


def test_lite_physics_is_the_same_physics_without_its_repetitions(monkeypatch):
    full, lite = (make(limit=50, rebuild=False, lite_physics=value) for value in (False, True))
    expect_lite_physics(full, lite, monkeypatch)


def test_success_ends_an_episode_and_pays():
    env = make(reward_mode="sparse")
    env.reset(seed=[1])
    inner = env.unwrapped.envs[0]._env
    pose = inner.sim.data.get_joint_qpos(inner.cube.joints[0]).copy()
    pose[2] += 0.6
    inner.sim.data.set_joint_qpos(inner.cube.joints[0], pose)
    _, reward, terminated, _, infos = env.step(np.zeros((1, 7), np.float32))
    assert infos["success"][0]
    assert terminated[0]
    assert reward[0] > 0


@needs_gl
@pytest.mark.slow
def test_images():
    env = make(obs_mode="rgb", image_size=32, rebuild=False)
    observation, _ = env.reset(seed=[1])
    first = observation["main_images"]
    assert {key: value.shape for key, value in observation.items()} == {
        "main_images": (1, 32, 32, 3),
        "wrist_images": (1, 32, 32, 3),
        "states": (1, 32),
    }
    assert first.std() > 10
    env.reset(seed=[2])
    assert np.array_equal(env.reset(seed=[1])[0]["main_images"], first)


def test_unknown_task():
    with pytest.raises(ConfigError, match=r"robosuite has no task 'Lyft'.*Lift"):
        make(task_id="Lyft")


@pytest.mark.slow
def test_robosuite_1_5_in_an_interpreter_of_its_own(tmp_path):
    """With the NumPy and the MuJoCo that it needs; fetches them."""
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, tmp_path / "venv"], check=True)
    packages = ["robosuite==1.5.2", "mujoco==3.3.0", "gymnasium"]
    subprocess.run(["uv", "pip", "install", "-q", "--python", python, *packages], check=True)

    def remote(num_envs, limit, rebuild):
        config = Remote(python=python, env="robosuite", params={"task_id": "Lift", "rebuild": rebuild})
        return config.make(num_envs, max_episode_steps=limit, ignore_terminations=False, render=False)

    EnvContract(factory=lambda: remote(2, 4, False), steps=2).run()
    for rebuild in (False, True):
        used, fresh = remote(1, 40, rebuild), remote(1, 40, rebuild)
        assert used.unwrapped.versions["numpy"].startswith("1.26")
        trace(used, 11, 30)
        assert trace(used, 3, 10) == trace(fresh, 3, 10)
        used.close()
        fresh.close()
