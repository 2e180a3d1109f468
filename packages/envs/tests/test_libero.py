"""LIBERO's own code, tasks and initial states, on shapes of ours: the meshes are no part of its package.

The shapes stand where the meshes would and have the same joints, so that the shipped initial states fit; how they look and
collide is another matter.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from arm_traces import expect_lite_physics, trace

from rlinf.core.errors import ConfigError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.libero.libero import Libero, describe_task, initial_states, suite_tasks
from rlinf.envs.rendering.mujoco import can_render

if importlib.util.find_spec("libero") is None:
    pytest.skip("the extra rlinf-envs[libero] is not installed", allow_module_level=True)
needs_gl = pytest.mark.skipif(not can_render(), reason="MuJoCo can't draw here: install libegl1 and libgl1-mesa-dri, or libosmesa6")

write_shapes = runpy.run_path(str(Path(__file__).parent / "libero_shapes.py"))["write_shapes"]


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    """A folder that stands for the meshes."""
    root = tmp_path_factory.mktemp("libero_assets")
    write_shapes(root)
    return str(root)


def make(assets, num_envs=1, *, limit=None, ignore=False, task_ids=(0,), **fields):
    config = Libero(assets=assets, task_ids=task_ids, **fields)
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=False)


@pytest.fixture(scope="module")
def used(assets):
    """An environment that several tests play in; to compile its model takes a second."""
    env = make(assets, obs_mode="state", settle_steps=2, limit=50, ignore=True)
    yield env
    env.close()


def test_contract(assets):
    EnvContract(factory=lambda: make(assets, 2, obs_mode="state", settle_steps=0, limit=4), steps=2).run()


@needs_gl
@pytest.mark.slow
def test_contract_with_images(assets):
    EnvContract(factory=lambda: make(assets, 2, image_size=24, settle_steps=0, limit=3), steps=2).run()


def test_a_shipped_initial_state_depends_on_its_number_alone(assets):
    env = make(assets, 2, obs_mode="state", settle_steps=0)
    states = initial_states(Libero(), suite_tasks("libero_spatial")[0])
    assert states.shape == (50, 92)
    observation, _ = env.reset(seed=1, options={"init_id": [3, 49]})
    assert np.array_equal(observation["states"][:, 8:], states[[3, 49]].astype(np.float32))
    for _ in range(4):
        env.step(np.full((2, 7), 0.9, np.float32))
    again, _ = env.reset(seed=77, options={"init_id": [49, 3]})
    assert np.array_equal(again["states"], observation["states"][::-1])
    with pytest.raises(ConfigError, match=r"no initial state 50.*numbered 0 to 49"):
        env.reset(seed=1, options={"init_id": 50})


def test_a_reset_forgets_the_contacts_of_earlier_episodes(assets, used):
    fresh = make(assets, obs_mode="state", settle_steps=2, limit=50, ignore=True)
    for seed, steps in ((11, 40), (12, 17)):
        trace(used, seed, steps)
    assert trace(used, 3, 15) == trace(fresh, 3, 15)


def test_lite_physics_is_the_same_physics_without_its_repetitions(assets, monkeypatch):
    full, lite = (make(assets, obs_mode="state", settle_steps=0, limit=50, lite_physics=value) for value in (False, True))
    expect_lite_physics(full, lite, monkeypatch)


def test_the_goal_is_seen(assets, used):
    """The bowl is put where the goal wants it, which no policy does in one step."""
    for ignore, env in ((False, make(assets, obs_mode="state", settle_steps=0)), (True, used)):
        env.reset(seed=1, options={"init_id": 0})
        inner = env.unwrapped.envs[0].simulation.env.env
        bowl, plate = (inner.objects_dict[name].joints[-1] for name in ("akita_black_bowl_1", "plate_1"))
        pose = inner.sim.data.get_joint_qpos(plate).copy()
        pose[2] += 0.031
        inner.sim.data.set_joint_qpos(bowl, pose)
        for _ in range(4):
            _, reward, terminated, _, infos = env.step(np.float32([[0, 0, 0, 0, 0, 0, -1]]))
            if infos["success"][0]:
                break
        assert infos["success"][0]
        assert reward[0] == 1.0
        assert terminated[0] == (not ignore)


def test_the_expert_puts_the_bowl_on_the_plate(assets):
    """After its hand was turned, and while it is pushed."""
    env = make(assets, obs_mode="state", limit=120, init_ids=(5,))
    env.reset(seed=1)
    pushed = np.random.default_rng(0)
    for _ in range(4):
        env.step(np.float32([[0, 0, 0, 1, -1, 0, -1]]))
    terminated = truncated = np.zeros(1, np.bool_)
    while not (terminated | truncated).any():
        push = np.float32([*pushed.uniform(-0.4, 0.4, 3), 0, 0, 0, 0])
        _, _, terminated, truncated, infos = env.step(np.clip(env.unwrapped.expert_actions() + push, -1, 1))
    assert infos["episode"]["success_once"].all()


def test_some_initial_states(assets):
    env = make(assets, 2, obs_mode="state", settle_steps=0, init_ids=(49, 3))
    assert env.metadata["init_ids"] == 2
    some, _ = env.reset(seed=1, options={"init_id": [0, 1]})
    everything, _ = make(assets, 2, obs_mode="state", settle_steps=0).reset(seed=1, options={"init_id": [49, 3]})
    assert np.array_equal(some["states"][:, 8:], everything["states"][:, 8:])
    with pytest.raises(ConfigError, match=r"here.init_ids: the task '.*' has no initial state 50. They are numbered 0 to 49"):
        Libero(assets=str(assets), task_ids=(0,), init_ids=(50,)).check("here")
    with pytest.raises(ConfigError, match=r"env.init_ids: expected numbers of initial states, found \[-1\]"):
        make(assets, obs_mode="state", init_ids=(-1,))


@needs_gl
@pytest.mark.slow
def test_tasks_change_from_reset_to_reset(assets):
    env = make(assets, task_ids=(3, 0), image_size=16, settle_steps=0)
    first, _ = env.reset(seed=1, options={"task": 1, "init_id": 4})
    other, _ = env.reset(seed=1, options={"task": 0, "init_id": 4})
    again, _ = env.reset(seed=9, options={"task": str(first["task_descriptions"][0]), "init_id": 4})
    assert other["task_descriptions"][0] == env.metadata["tasks"][0] == describe_task(suite_tasks("libero_spatial")[3])
    assert not np.array_equal(first["main_images"], other["main_images"])
    assert all(np.array_equal(first[key], again[key]) for key in first)
    env.close()


@needs_gl
@pytest.mark.slow
@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object"])
def test_all_tasks_of_a_suite(assets, suite):
    env = make(assets, suite=suite, task_ids=None, image_size=16, settle_steps=0)
    for task, text in enumerate(env.metadata["tasks"]):
        observation, _ = env.reset(seed=1, options={"task": task, "init_id": 49})
        assert observation["task_descriptions"][0] == text
        assert not env.step(np.zeros((1, 7), np.float32))[4]["success"][0]
    env.close()


@needs_gl
def test_images_are_those_of_libero_itself(assets):
    """In LIBERO's own look and orientation it is the picture that robosuite draws."""
    env = make(assets, image_size=40, look="full", settle_steps=0, image_convention="raw")
    observation, _ = env.reset(seed=1, options={"init_id": 2})
    assert observation["main_images"].shape == (1, 40, 40, 3)
    assert observation["states"].shape == (1, 8)
    assert observation["task_descriptions"][0].startswith("pick up the black bowl between the plate and the ramekin")
    sim = env.unwrapped.envs[0].simulation.env.sim
    context = importlib.import_module("robosuite.utils.binding_utils").MjRenderContextOffscreen(sim, device_id=-1)
    context.vopt.geomgroup[0], context.vopt.geomgroup[1] = 0, 1
    for key, camera in (("main_images", "agentview"), ("wrist_images", "robot0_eye_in_hand")):
        expected = sim.render(camera_name=camera, width=40, height=40)
        right, wrong = (np.abs(observation[key][0].astype(int) - other).mean() for other in (expected, expected[::-1]))
        assert right < 0.1 * wrong, (key, right, wrong)
    # robosuite frees its context when it is collected, at a time when OpenGL may be gone.
    sim._render_context_offscreen = None
    context.gl_ctx.make_current()
    del context
    gc.collect()
    env.close()


def test_image_conventions():
    turned = importlib.import_module("rlinf.envs.libero._libero")._turned
    upright = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    raw = turned(upright, "raw")
    assert np.array_equal(raw, upright[::-1])
    assert np.array_equal(turned(upright, "rotated"), raw[::-1, ::-1])
    assert np.array_equal(turned(upright, "upright"), upright)


def test_tasks_are_read_without_an_import():
    assert [len(suite_tasks(name)) for name in ("libero_spatial", "libero_object", "libero_goal", "libero_10")] == [10] * 4
    assert len(suite_tasks("libero_90")) == 90
    assert describe_task("KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet") == "close the top drawer of the cabinet"
    assert Libero(suite="libero_object").texts[0] == "pick up the alphabet soup and place it in the basket"
    folder = Path(importlib.util.find_spec("libero").submodule_search_locations[0]) / "libero"
    for suite in ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"):
        for name in suite_tasks(suite):
            assert (folder / "bddl_files" / suite / f"{name}.bddl").is_file(), name
            assert (folder / "init_files" / suite / f"{name}.pruned_init").is_file(), name


def test_missing_meshes_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"env\.train\.assets: no LIBERO meshes in .*lerobot/libero-assets.*422 MB") as error:
        Libero(assets=str(tmp_path)).check("env.train")
    assert "\n" not in str(error.value)


def test_what_cannot_be_is_refused(assets):
    with pytest.raises(ConfigError, match=r"no suite 'libero_spacial'.*Did you mean 'libero_spatial'"):
        Libero(suite="libero_spacial", assets=assets).check("env")
    with pytest.raises(ConfigError, match=r"libero_goal has no task 10\. Its tasks are numbered 0 to 9"):
        Libero(suite="libero_goal", task_ids=(3, 10), assets=assets).check("env")
    with pytest.raises(ConfigError, match=r"env\.image_size: expected at least 1, found 0"):
        Libero(image_size=0, assets=assets).check("env")
    with pytest.raises(ConfigError, match="the states of 10 tasks differ in size"):
        Libero(obs_mode="state", assets=assets).check("env")


@pytest.mark.slow
def test_nothing_is_asked_and_nothing_is_written_at_home(assets, tmp_path):
    code = f"""
import sys
from rlinf.envs.libero import Libero
env = Libero(assets={assets!r}, task_ids=(0,), obs_mode="state").make(
    1, max_episode_steps=5, ignore_terminations=False, render=False)
env.reset(seed=1)
"""
    environment = {key: value for key, value in os.environ.items() if key != "LIBERO_CONFIG_PATH"} | {"HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert not (tmp_path / ".libero").exists()
    assert "macro" not in run.stderr
