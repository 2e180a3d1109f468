"""A stranger's distribution, built and installed like any other, brings a loss, an advantage and a reward by entry points alone."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)
LIMIT_S = 120

PYPROJECT = """
[project]
name = "stranger-things"
version = "1.2.3"
requires-python = ">=3.11"
dependencies = ["rlinf-algorithms"]

[project.entry-points."rlinf.losses"]
Stranger_Loss = "stranger_things:StrangerLoss"
stranger_function = "stranger_things:function"

[project.entry-points."rlinf.advantages"]
stranger_advantage = "stranger_things:StrangerAdvantage"

[project.entry-points."rlinf.rewards"]
stranger_reward = "stranger_things:StrangerReward"

[build-system]
requires = ["{requires}"]
build-backend = "{backend}"
"""
MODULE = '''
"""What somebody else wrote, who read the README of rlinf-algorithms and nothing more."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.algorithms.advantages.estimator import Estimator
from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.algorithms.losses.policy_loss import PolicyLoss
from rlinf.algorithms.losses.terms import Terms


@dataclass(frozen=True, slots=True)
class StrangerLoss(PolicyLoss):
    """-scale * advantage * logprob."""

    scale: float = 1.0

    def policy_terms(self, x: LossInputs) -> Terms:
        gain = x.need("advantage", by="StrangerLoss") * x.need("logprob", by="StrangerLoss")
        loss = torch.where(x.mask, -self.scale * gain, 0.0)
        return Terms(loss, {"stranger": loss.detach()})


def function(*, logprob: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, float]]:
    return logprob[mask].sum(), {"seen": float(mask.sum())}


@dataclass(frozen=True, slots=True)
class StrangerAdvantage(Estimator):
    """reward + shift."""

    shift: float = 0.0

    def of(self, x: CreditInputs, *, all_reduce: object = None) -> tuple[Tensor, None]:
        return x.need("reward", by="StrangerAdvantage") + self.shift, None


@dataclass(frozen=True, slots=True)
class StrangerReward:
    """Counts a letter."""

    letter: str = "e"

    def __call__(self, completions: list[str], answers: list[str]) -> list[float]:
        return [float(text.count(self.letter)) for text in completions]
'''
SCRIPT = """
import torch
import stranger_things
from rlinf.algorithms.compat import calculate_adv_and_returns, get_adv_and_returns, get_policy_loss, get_reward_class, policy_loss
from rlinf.core.errors import RLinfError
from rlinf.core.registry import LOSSES, REWARDS

x, mask = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]])
loss, metrics = policy_loss(loss_type="Stranger_Loss", logprob=x, advantage=2 * x, mask=mask, scale=0.5)
assert (loss.item(), metrics["stranger"]) == (-5.0, -5.0), (loss, metrics)
assert policy_loss(loss_type="STRANGER_LOSS", logprob=x, advantage=x, mask=mask)[0].item() == -5.0
loss, metrics = policy_loss(loss_type="Stranger_Function", logprob=x, mask=mask)
assert (loss.item(), metrics) == (4.0, {"seen": 2.0})
assert get_policy_loss("stranger_loss") is stranger_things.StrangerLoss
assert LOSSES.owner("stranger_loss") == "stranger_things:StrangerLoss"

advantage, target = calculate_adv_and_returns(adv_type="Stranger_Advantage", rewards=x, shift=1.0)
assert (advantage.tolist(), target) == ([[2.0, 4.0, 10.0]], None)
assert get_adv_and_returns("STRANGER_advantage") is stranger_things.StrangerAdvantage

assert get_reward_class("Stranger_Reward") is stranger_things.StrangerReward
assert REWARDS.build("stranger_reward", {"letter": "t"}, place="reward")(["tt", "", "e"], ["", "", ""]) == [2.0, 0.0, 0.0]

for ask in (
    lambda: policy_loss(loss_type="stranger_los", logprob=x, mask=mask),
    lambda: policy_loss(loss_type="stranger_loss", logprob=x, advantage=x, mask=mask, scael=1.0),
    lambda: policy_loss(loss_type="stranger_function", mask=mask),
    lambda: calculate_adv_and_returns(adv_type="strange_advantage", reward=x),
    lambda: get_reward_class("stranger_rewards"),
):
    try:
        ask()
    except RLinfError as error:
        print(error)
    else:
        raise SystemExit("accepted")
"""


def run(*command, cwd, **environment):
    """The standard output of a command that must succeed."""
    hidden = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH", "PYTHONHOME")
    env = {**{key: value for key, value in os.environ.items() if key not in hidden}, **environment}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder where the stranger's wheel is installed, alone."""
    home = tmp_path_factory.mktemp("stranger")
    source, wheels, target = home / "source", home / "wheels", home / "target"
    (source / "src" / "stranger_things").mkdir(parents=True)
    (source / "src" / "stranger_things" / "__init__.py").write_text(MODULE, encoding="utf-8")
    uv = shutil.which("uv")
    requires, backend = ("uv_build>=0.8,<1", "uv_build") if uv else ("setuptools>=61", "setuptools.build_meta")
    (source / "pyproject.toml").write_text(PYPROJECT.format(requires=requires, backend=backend), encoding="utf-8")
    if uv:
        run(uv, "build", "--quiet", "--wheel", "--no-config", "--python", sys.executable, "--out-dir", wheels, source, cwd=home)
    else:
        pip = (sys.executable, "-m", "pip")
        run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source, cwd=home)
    (wheel,) = wheels.glob("*.whl")
    assert wheel.name == "stranger_things-1.2.3-py3-none-any.whl"
    assert "stranger_things-1.2.3.dist-info/entry_points.txt" in zipfile.ZipFile(wheel).namelist()
    if uv:
        run(
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-config",
            "--no-deps",
            "--python",
            sys.executable,
            "--target",
            target,
            wheel,
            cwd=home,
        )
    else:
        run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel, cwd=home)
    assert (target / "stranger_things" / "__init__.py").is_file()
    return target


def test_a_strangers_wheel_registers_by_entry_points(installed, tmp_path):
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    said = run(sys.executable, "-c", SCRIPT, cwd=tmp_path, PYTHONPATH=path).splitlines()
    assert said[0].startswith("loss_type: no policy loss named 'stranger_los'. Did you mean 'stranger_loss'? Installed: ")
    assert "ppo_clip" in said[0]
    assert "stranger_loss" in said[0].split("Installed: ")[1]
    assert said[1].startswith("policy_loss(stranger_loss).scael: unknown argument. Did you mean 'scale'?")
    assert said[2].startswith("policy_loss(stranger_function).logprob: missing")
    assert said[3].startswith("adv_type: no advantage named 'strange_advantage'. Did you mean 'stranger_advantage'?")
    assert said[4].startswith("reward_type: no reward named 'stranger_rewards'. Did you mean 'stranger_reward'?")


def test_it_is_not_there_for_others(installed):
    script = "from rlinf.core.registry import REWARDS; print(*REWARDS.names())"
    assert "stranger_reward" not in run(sys.executable, "-c", script, cwd=Path(installed).parent)
