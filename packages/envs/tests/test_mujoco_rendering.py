from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from rlinf.core.errors import ConfigError
from rlinf.envs import Gymnasium
from rlinf.envs.rendering import mujoco
from rlinf.envs.rendering.mujoco import can_render, gl_backend, require_rendering, use_rendering

needs_gl = pytest.mark.skipif(not can_render(), reason="MuJoCo can't draw here: install libegl1 and libgl1-mesa-dri, or libosmesa6")


def cheetah(count, **fields):
    config = Gymnasium(env_id="HalfCheetah-v5", obs_mode="rgb", image_size=48, **fields)
    return config.make(count, max_episode_steps=20, ignore_terminations=False, render=False)


@pytest.fixture
def blind(monkeypatch):
    """A machine without EGL, OSMesa or a display."""
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mujoco, "_library", lambda backend: None)
    mujoco._egl_works.cache_clear()
    yield
    mujoco._egl_works.cache_clear()


@pytest.mark.usefixtures("blind")
def test_a_machine_that_cannot_draw_says_what_to_install():
    pytest.importorskip("mujoco")
    assert gl_backend() is None
    assert not can_render()
    with pytest.raises(ConfigError, match=r"env\.train\.obs_mode: MuJoCo can't draw here.*libosmesa6") as error:
        Gymnasium(env_id="HalfCheetah-v5", obs_mode="rgb").check("env.train")
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("blind")
def test_a_machine_that_cannot_draw_shows_schematics(caplog):
    """MuJoCo must not even try: failing for the second time it ends the process."""
    pytest.importorskip("mujoco")
    pytest.importorskip("PIL")
    for _ in range(2):
        config = Gymnasium(env_id="HalfCheetah-v5")
        env = config.make(1, max_episode_steps=20, ignore_terminations=False, render=True)
        env.reset(seed=[1])
        assert env.render()[0].shape == (320, 320, 3)
        env.close()
    assert "libosmesa6" in caplog.text


def test_the_backend_that_was_asked_for_is_not_replaced(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "smoke-signals")
    with pytest.raises(ConfigError, match="MUJOCO_GL=smoke-signals"):
        require_rendering("env")


@needs_gl
def test_the_backend_is_settled_for_the_process(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    use_rendering("env")
    assert os.environ["MUJOCO_GL"] == gl_backend()


@needs_gl
def test_environments_are_drawn_and_freed_in_their_own_contexts():
    pytest.importorskip("mujoco")
    alone = cheetah(1)
    expected = alone.reset(seed=[3])[0]["main_images"][0]
    alone.close()
    first, second = cheetah(2), cheetah(1)
    observation, _ = first.reset(seed=[3, 4])
    second.reset(seed=[5])
    assert expected.std() > 10, "an empty picture"
    assert np.array_equal(observation["main_images"][0], expected)
    second.close()
    observation, _ = first.reset(seed=[4, 3])
    assert np.array_equal(observation["main_images"][1], expected)
    first.close()


@needs_gl
def test_the_fast_look_is_another_and_a_cheaper_picture():
    pytest.importorskip("mujoco")
    images = {}
    for look in ("fast", "full"):
        env = cheetah(1, look=look)
        images[look] = env.reset(seed=[3])[0]["main_images"][0]
        model = env.unwrapped.envs[0].env.unwrapped.model
        assert (model.vis.quality.offsamples == 0) == (look == "fast")
        env.close()
    assert not np.array_equal(images["fast"], images["full"])


@needs_gl
def test_torch_can_be_used_after_drawing() -> None:
    """Mesa's LLVM and Triton's, which torch's optimizers import, are in one process then."""
    pytest.importorskip("mujoco")
    program = """
from rlinf.envs import Gymnasium
env = Gymnasium(env_id="HalfCheetah-v5", obs_mode="rgb").make(1, max_episode_steps=5, ignore_terminations=False, render=False)
assert env.reset(seed=0)[0]["main_images"].std() > 1
import torch
torch.optim.Adam([torch.zeros(1, requires_grad=True)])
"""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@needs_gl
def test_a_process_ends_without_a_word_of_pictures_that_another_thread_draws() -> None:
    """As workers in one process do, of which one failed."""
    pytest.importorskip("mujoco")
    program = """
import threading
from rlinf.envs import Gymnasium
drawn = threading.Event()
def draw():
    global envs
    config = Gymnasium(env_id="HalfCheetah-v5", obs_mode="rgb")
    envs = config.make(2, max_episode_steps=5, ignore_terminations=False, render=False)
    envs.reset(seed=0)
    drawn.set()
    threading.Event().wait()
threading.Thread(target=draw, daemon=True).start()
drawn.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
