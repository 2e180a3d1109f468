"""A simulator in an interpreter of its own: the contract, its numbers, its memory, and how it is started."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from remote_envs import Numbers

from rlinf.core.errors import ConfigError, RLinfError, ShapeError, UnknownName
from rlinf.core.registry import ENVS
from rlinf.core.testing.env import EnvContract
from rlinf.envs.remote import Remote
from rlinf.envs.remote.memory import SLOTS
from rlinf.envs.wrappers.contract import EnvMisuse

HERE = str(Path(__file__).parent)


def make(num_envs=2, *, env="remote_envs:Numbers", limit=6, **params):
    config = Remote(python=sys.executable, env=env, params=params, paths=(HERE,))
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=False, render=False)


@pytest.fixture
def walks():
    env = make()
    yield env
    env.close()


def here(num_envs=2, *, limit=6, **params):
    return Numbers(**params).make(num_envs, max_episode_steps=limit, ignore_terminations=False, render=False)


def play(env, steps, seed=3):
    """Everything an environment says, as bytes, with resets of ended episodes."""
    env.action_space.seed(0)
    observation, _ = env.reset(seed=seed, options={"task": ["push the cube", None]})
    told = [{key: array.tobytes() for key, array in observation.items()}]
    for step in range(steps):
        observation, *flags, infos = env.step(env.action_space.sample())
        told.append({key: array.tobytes() for key, array in observation.items()})
        episode = {key: array.tolist() for key, array in infos["episode"].items()}
        told.append([*(array.tobytes() for array in flags), episode, infos["_episode"].tolist(), infos["success"].tolist()])
        done = flags[1] | flags[2]
        if done.any():
            observation, _ = env.reset(seed=50 + step, options={"reset_mask": done})
            told.append({key: array.tobytes() for key, array in observation.items()})
    return told


def test_contract():
    EnvContract(factory=lambda: make(2, limit=8, ends=4.0), steps=4).run()


def test_the_same_numbers_as_here(walks):
    local = here()
    assert play(walks, 20) == play(local, 20)
    assert walks.observation_space == local.observation_space
    assert walks.action_space == local.action_space
    for key in ("tasks", "reset_options", "max_episode_steps", "autoreset_mode"):
        assert walks.metadata[key] == local.metadata[key]


def test_discrete_actions():
    env, local = make(discrete=True), here(discrete=True)
    assert play(env, 8) == play(local, 8)
    env.close()


def test_an_observation_is_a_view_that_stays_as_it_is(walks):
    kept = [walks.reset(seed=1)[0]]
    copies = [{key: array.copy() for key, array in kept[0].items()}]
    for _ in range(3 * SLOTS):
        if len(kept) % 6 == 0:
            walks.reset(seed=len(kept))
        kept.append(walks.step(np.full((2, 2), 0.5, np.float32))[0])
        copies.append({key: array.copy() for key, array in kept[-1].items()})
    assert sum(is_mapped(observation["states"]) for observation in kept) == SLOTS - 1
    for observation, copy in zip(kept, copies, strict=True):
        assert all(np.array_equal(observation[key], copy[key]) for key in copy)
    del kept, observation
    gc.collect()
    walks.reset(seed=1)
    fresh = [walks.step(np.zeros((2, 2), np.float32))[0] for _ in range(SLOTS - 2)]
    assert all(is_mapped(observation["states"]) for observation in fresh)


def is_mapped(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is not None


def test_an_observation_outlives_its_environment():
    env = make()
    observation, _ = env.reset(seed=1)
    before = observation["states"].copy()
    env.close()
    del env
    assert np.array_equal(observation["states"], before)


def test_errors_of_the_simulator_come_across():
    env = make(fails="raises")
    env.reset(seed=0)
    with pytest.raises(RLinfError, match="ValueError: the gripper is stuck") as caught:
        env.step(np.full((2, 2), 0.25, np.float32))
    assert "remote_envs.py" in caught.value.__notes__[0]
    env.close()
    with pytest.raises(ConfigError, match=r"expected .* to return a gymnasium\.Env, found int"):
        make(env="remote_envs:not_an_environment")
    with pytest.raises(UnknownName, match=r"no environment at 'remote_envs:Numberz'"):
        make(env="remote_envs:Numberz")


def test_misuse_is_found_on_this_side(walks):
    with pytest.raises(EnvMisuse, match="never reset"):
        walks.step(np.zeros((2, 2), np.float32))
    walks.reset(seed=0)
    with pytest.raises(ShapeError):
        walks.step(np.zeros((3, 2), np.float32))


def test_check(tmp_path):
    with pytest.raises(ConfigError, match=r"env\.train\.python: no interpreter at '/no/python'"):
        Remote(python="/no/python", env="maniskill").check("env.train")
    with pytest.raises(ConfigError, match=r"env\.train\.params\.task_idd: unknown key"):
        Remote(python=sys.executable, env="maniskill", params={"task_idd": "PushCube-v1"}).check("env.train")
    with pytest.raises(UnknownName, match=r"env\.train\.env: no environment named 'maniskil'\. Did you mean 'maniskill'"):
        Remote(python=sys.executable, env="maniskil").check("env.train")
    Remote(python="/no/python", env="maniskill").check_films("films", "leave them out")  # `check` says it
    Remote(python="python", env="registered_only_there").check("env.train")
    Remote(python=sys.executable, env="a_module_that_only_it_has:Thing").check("env.train")
    with pytest.raises(ConfigError, match=r"deadlines\.step: expected more than 0"):
        ENVS.build("rlinf.envs.remote:Remote", {"python": "python", "env": "x", "deadlines": {"step": 0}}, place="env")


def test_only_rlinf_is_lent(tmp_path):
    """A bare interpreter sees gymnasium and NumPy where it is told to, and nothing else of ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = tmp_path / "site"
    site.mkdir()
    for name in ("gymnasium", "numpy", "numpy.libs", "cloudpickle", "typing_extensions.py", "farama_notifications"):
        for folder in map(Path, sys.path):
            if (folder / name).exists():
                (site / name).symlink_to(folder / name)
                break
    python = str(tmp_path / "venv" / "bin" / "python")
    found = subprocess.run([python, "-c", "import torch"], capture_output=True, env={"PYTHONPATH": str(site)}, check=False)
    assert b"ModuleNotFoundError" in found.stderr
    config = Remote(python=python, env="tabletop", paths=(str(site),))
    with pytest.raises(ConfigError, match=r"^films: .* need PIL, imageio, imageio_ffmpeg, which it can't import.*leave them out"):
        config.check_films("films", "leave them out")
    env = config.make(2, max_episode_steps=5, ignore_terminations=False, render=False)
    assert np.isfinite(env.reset(seed=0)[0]["states"]).all()
    environment = Path(f"/proc/{env.unwrapped.processes[0]}/environ").read_bytes().split(b"\0")
    import_path = next(v for v in environment if v.startswith(b"PYTHONPATH=")).decode().partition("=")[2].split(os.pathsep)
    assert sorted(os.listdir(import_path[0])) == ["rlinf"]
    assert sorted(os.listdir(f"{import_path[0]}/rlinf")) == ["core", "envs"]
    assert import_path[1:] == [str(site)]
    env.close()
    assert not os.path.exists(import_path[0])


@pytest.mark.slow
def test_another_numpy(tmp_path):
    """An interpreter with NumPy 1.26 and without torch; fetches two packages."""
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, tmp_path / "venv"], check=True)
    subprocess.run(["uv", "pip", "install", "-q", "--python", python, "numpy==1.26.4", "gymnasium"], check=True)
    env = Remote(python=python, env="tabletop").make(2, max_episode_steps=9, ignore_terminations=False, render=False)
    assert env.unwrapped.versions["numpy"] == "1.26.4"
    assert np.__version__ != "1.26.4"
    observation, _ = env.reset(seed=0)
    assert observation["states"].dtype == np.float32
    env.close()
    config = Remote(python=python, env="tabletop", params={"task": "slots"})
    EnvContract(factory=lambda: config.make(2, max_episode_steps=9, ignore_terminations=False, render=False)).run()
