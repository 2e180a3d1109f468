from __future__ import annotations

import mmap
import subprocess
import sys

import pytest

from rlinf.core.errors import ConfigError, ContractError, UnknownName
from rlinf.core.testing.env import CHECKS
from rlinf.core.testing.env.cost import measure, resident
from rlinf.envs.commands import check_env
from rlinf.envs.gymnasium import Gymnasium

STRANGER = """
import gymnasium, numpy as np
from gymnasium.vector import SyncVectorEnv, AutoresetMode
from rlinf.envs.assembly import assemble

class Cart(gymnasium.Env):
    def __init__(self):
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict({"states": box(-np.inf, np.inf, (1,), np.float32)})
        self.action_space = box(-1, 1, (1,), np.float32)
        self.metadata = {"waived": {"instances": "they share a hall"}}

    def reset(self, *, seed=None, options=None):
        self.at = np.random.default_rng(seed).normal(size=1)
        return {"states": self.at.astype(np.float32)}, {}

    def step(self, action):
        self.at = self.at + action
        return {"states": self.at.astype(np.float32)}, -abs(float(self.at[0])), False, False, {"success": bool(self.at[0] < 0.1)}

class Drunk(Cart):
    def step(self, action):
        return super().step(action + np.random.default_rng().normal(size=1))

def single():
    return Cart()

def number():
    return 3


def carts(num_envs):
    return assemble([Cart] * num_envs, max_episode_steps=20, camera=None)

def drunk():
    return assemble([Drunk] * 2, max_episode_steps=20, camera=None)

def raises():
    env = drunk()
    env.env.step = lambda actions: {}["lost"]
    return env

def unplugged():
    raise OSError("no arm at the other end")

def gymnasiums_own():
    return SyncVectorEnv([Cart] * 2)
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A module of somebody else's."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("stranger", None)


def test_a_registered_environment(capsys):
    assert check_env(["rlinf.envs.gymnasium:Gymnasium", "env_id=Pendulum-v1", "--steps", "30"]) == 0
    out = capsys.readouterr().out
    assert out.count("ok ") == len(CHECKS) - 1 + 2
    assert "its configuration survives pickling" in out
    assert "steps/s, " in out
    assert "CPU-ms per step (30 steps and 0 resets)" in out
    assert "MiB of memory" in out


def test_a_shorter_limit(capsys):
    name = "rlinf.envs.gymnasium:Gymnasium"
    assert check_env([name, "env_id=Pendulum-v1", "--max-episode-steps", "7", "--steps", "48", "--num-envs", "4"]) == 0
    assert "(48 steps and 4 resets)" in capsys.readouterr().out


@pytest.mark.usefixtures("stranger")
def test_a_strangers_factory(capsys):
    assert check_env(["stranger:carts", "--num-envs", "5", "--steps", "10"]) == 0
    out = capsys.readouterr().out
    assert "--   two instances share no state (waived: they share a hall)" in out
    assert "--   a task that is asked for is played (it takes no 'task')" in out
    assert out.count("ok ") == len(CHECKS) - 2 + 1
    assert "for 5 environments" in out


def test_a_bare_class_is_examined_as_a_run_would_take_it(capsys):
    words = ["gymnasium.envs.classic_control:PendulumEnv", 'kwargs={"g": 9.0}', "--max-episode-steps", "9", "--steps", "9"]
    assert check_env(words) == 0
    assert "FAIL" not in capsys.readouterr().out


@pytest.mark.usefixtures("stranger")
def test_every_broken_line_is_told(capsys):
    assert check_env(["stranger:drunk"]) == 1
    out = capsys.readouterr().out
    assert out.count("FAIL ") >= 4
    assert "differs at step 1" in out
    assert "lines are broken" in out
    assert "steps/s" not in out


@pytest.mark.usefixtures("stranger")
def test_an_exception_of_the_environment_is_told_with_its_place(capsys):
    assert check_env(["stranger:raises"]) == 1
    assert "KeyError: 'lost' (" in capsys.readouterr().out


@pytest.mark.usefixtures("stranger")
def test_what_can_not_be_built_is_told_once_and_without_a_traceback(capsys):
    assert check_env(["stranger:unplugged"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAIL it can be built\n     OSError: no arm at the other end (")
    assert out.count("\n") == 2


@pytest.mark.usefixtures("stranger")
def test_another_librarys_environment_is_told_what_it_lacks(capsys):
    assert check_env(["stranger:gymnasiums_own"]) == 1
    assert "expected AutoresetMode.DISABLED, found NEXT_STEP" in capsys.readouterr().out


@pytest.mark.usefixtures("stranger")
def test_a_function_that_returns_one_environment_is_examined_as_a_run_would_take_it(capsys):
    assert check_env(["stranger:single", "--max-episode-steps", "9", "--steps", "9", "success_key=success"]) == 0
    assert "FAIL" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"'single' has no step limit of its own\. Set max_episode_steps"):
        check_env(["stranger:single"])


@pytest.mark.usefixtures("stranger")
def test_what_is_no_vector_environment():
    with pytest.raises(ContractError, match=r"check-env: expected 'stranger:number' to return an environment, found int"):
        check_env(["stranger:number"])
    with pytest.raises(ConfigError, match="takes no parameters"):
        check_env(["stranger:carts", "size=3"])


def test_a_parameter_that_does_not_exist():
    with pytest.raises(ConfigError, match="env_idd"):
        check_env(["rlinf.envs.gymnasium:Gymnasium", "env_idd=Pendulum-v1"])


def test_words_that_are_no_parameters():
    with pytest.raises(ConfigError, match="key=value"):
        check_env(["rlinf.envs.gymnasium:Gymnasium", "Pendulum-v1"])


def test_an_unknown_environment():
    with pytest.raises(UnknownName, match="no environment named 'maniskil'"):
        check_env(["maniskil"])


def test_a_leak_shows(counters):
    env = counters(10**6, 10**6, limit=10)
    step, kept = env.step, []

    def leaky(actions):
        # Pages of its own: what other tests have freed can't hide them.
        kept.append(mmap.mmap(-1, 2**19))
        kept[-1].write(b"x" * 2**19)
        return step(actions)

    env.step = leaky
    cost = measure(env, 400)
    assert (cost.steps, cost.resets) == (400, 40)
    assert cost.growth > 40 * 2**20
    assert cost.resident >= cost.growth
    assert cost.seconds > 0
    assert cost.processor > 0


@pytest.mark.skipif(sys.platform != "linux", reason="children are known by /proc")
def test_memory_of_children_counts():
    before = resident()
    code = "import sys; kept = bytearray(b'x' * 2**26); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        assert resident() - before > 2**26


def test_an_unverified_adapter_is_announced_as_such(capsys, monkeypatch):
    monkeypatch.setattr("rlinf.envs.commands.is_unverified", lambda path: path == Gymnasium.__module__)
    assert check_env(["rlinf.envs.gymnasium:Gymnasium", "env_id=Pendulum-v1", "--steps", "6"]) in (0, 1)
    assert capsys.readouterr().out.startswith("     'rlinf.envs.gymnasium:Gymnasium' is unverified: written to documentation")
