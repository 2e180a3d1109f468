"""Genesis: what is refused without importing it, what is drawn, and (slow) the contract on the real simulator."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.core.testing.env import EnvContract
from rlinf.envs.genesis import Genesis

installed = pytest.mark.skipif(find_spec("genesis") is None, reason="the extra rlinf-envs[genesis] is not installed")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "reach_cub"}, "env.task: there is no 'reach_cub'. Did you mean 'reach_cube'?"),
        ({"reward_mode": "shaped"}, "env.reward_mode: there is no 'shaped'"),
        ({"backend": "cuda"}, "env.backend: there is no 'cuda'"),
    ],
)
def test_wrong_values_are_refused(fields, message):
    with pytest.raises(ConfigError) as error:
        Genesis(**fields).check("env")
    assert message in str(error.value)


def test_a_missing_simulator_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"Install rlinf-envs\[genesis\]: "):
        Genesis().check("env")


@installed
def test_a_check_imports_no_simulator():
    check = "from rlinf.envs.genesis import Genesis; Genesis().check('env')"
    code = f"import sys; {check}; print({{'genesis', 'torch'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "set()"


def test_a_draw_depends_on_its_seed_alone():
    pytest.importorskip("torch")
    from rlinf.envs.genesis._genesis import _draw

    for one, again, other in zip(_draw(3), _draw(3), _draw(4), strict=True):
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)
    joints, cube, target = (np.stack(column) for column in zip(*map(_draw, range(200)), strict=True))
    assert (joints.shape, cube.shape, target.shape) == ((200, 9), (200, 7), (200, 3))
    assert np.allclose(np.linalg.norm(cube[:, 3:], axis=1), 1.0)
    assert np.ptp(target, axis=0).min() > 0.2
    assert (target[:, 2] >= 0.12).all()


def test_genesis_is_started_once_and_on_one_backend(monkeypatch):
    torch = pytest.importorskip("torch")
    from rlinf.envs.genesis._genesis import _started

    cpu, cuda, calls = SimpleNamespace(name="cpu"), SimpleNamespace(name="cuda"), []
    fake = SimpleNamespace(cpu=cpu, cuda=cuda, _initialized=False, backend=None)

    def init(backend, logging_level):
        calls.append(backend.name)
        fake._initialized, fake.backend = True, backend

    fake.init = init
    monkeypatch.setitem(sys.modules, "genesis", fake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"env\.backend: 'gpu' needs a CUDA device"):
        _started("gpu")
    assert _started("cpu") is _started("auto") is fake
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="this process runs Genesis on 'cpu' already"):
        _started("auto")
    assert calls == ["cpu"]


def make(num_envs=3, *, limit=40, ignore=False, render=False, **fields):
    return Genesis(**fields).make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=render)


def towards_target(states):
    """The commanded position goes to the target; what it is ahead of the tool already is taken off."""
    still = 20.0 * states[:, -3:] - 10.0 * states[:, 21:24]
    return np.concatenate([np.clip(still, -1.0, 1.0), np.ones((len(states), 1))], axis=1).astype(np.float32)


def into_cube(states):
    """First down, then against the cube, closed fingers first."""
    way = states[:, 24:27] - states[:, 18:21]
    way[:, :2] *= states[:, 20:21] < 0.06
    return np.concatenate([np.clip(20.0 * way, -1.0, 1.0), -np.ones((len(states), 1))], axis=1).astype(np.float32)


def play(env, policy, states, steps):
    """All that was seen and said in some steps, `[steps, N, 34]`."""
    seen = []
    for _ in range(steps):
        observation, reward, _, _, infos = env.step(policy(states))
        states = observation["states"]
        seen.append(np.concatenate([states, reward[:, None]], axis=1))
    return np.stack(seen), infos


def solves(task, reward_mode):
    env = make(8, limit=50, ignore=True, task=task, reward_mode=reward_mode)
    seen, infos = play(env, towards_target, env.reset(seed=100)[0]["states"], 50)
    env.close()
    assert infos["_episode"].all()
    assert infos["episode"]["success_once"].all()
    assert infos["episode"]["success_at_end"].all()
    rewards, near = seen[:, :, -1], np.linalg.norm(seen[:, :, 30:33], axis=2) < 0.025
    assert np.array_equal(rewards, near) if reward_mode == "sparse" else (rewards[-1] > 0.87).all()


def contacts_leave_no_trace():
    env = make(limit=100, ignore=True)
    start = env.reset(seed=[1, 2, 3])[0]["states"]
    first, _ = play(env, into_cube, start, 60)
    moved = np.abs(first[-1, :, 24:26] - start[:, 24:26]).max(axis=1)
    assert (moved > 0.01).all(), moved
    states = env.reset(seed=[1, 2, 3])[0]["states"]
    half, _ = play(env, into_cube, states, 30)
    restarted, _ = env.reset(seed=[7, 7, 7], options={"reset_mask": np.array([False, True, False])})
    rest, _ = play(env, into_cube, restarted["states"], 30)
    assert np.array_equal(np.concatenate([half, rest])[:, [0, 2]], first[:, [0, 2]]), "a partial reset moved another row"
    again, _ = play(env, into_cube, env.reset(seed=[1, 2, 3])[0]["states"], 60)
    assert np.array_equal(again, first), "contacts left a trace"
    env.close()
    pair = make(2, limit=100, ignore=True)
    two, _ = play(pair, into_cube, pair.reset(seed=[3, 1])[0]["states"], 60)
    pair.close()
    assert np.array_equal(two, first[:, [2, 0]]), "a state depends on the size of the batch"


@installed
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_real_simulator():
    """One test, because the import and the first build take a minute, and minutes where nothing is cached."""
    for task in ("reach", "reach_cube"):
        EnvContract(factory=lambda task=task: make(task=task)).run()
    solves("reach", "dense")
    solves("reach", "sparse")
    solves("reach_cube", "dense")
    contacts_leave_no_trace()
    filmed = make(2, render=True)
    filmed.reset(seed=0)
    frames = filmed.render()
    assert len(frames) == 2
    filmed.close()
