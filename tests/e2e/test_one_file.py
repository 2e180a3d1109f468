"""A `gymnasium.Env` and a `torch.nn.Module` of one's own, in one file beside the run: nothing is registered, nothing is edited."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

MYSTUFF = """
import gymnasium, numpy as np, torch
from torch.distributions import Independent, Normal
from rlinf.core import Decision, Rescored
from rlinf.models import BasePolicy

class Dot(gymnasium.Env):  # a dot that should move to the middle
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.at, {}

    def step(self, action):
        self.at = np.clip(self.at + 0.5 * action, -1, 1).astype(np.float32)
        return self.at, -float(np.abs(self.at).max()), False, False, {}

class Net(BasePolicy):  # a module of torch that decides, and scores what it decided
    def __init__(self, spec, *, seed):
        super().__init__()
        torch.manual_seed(seed)
        size, actions = spec.observation["states"].shape[0], spec.action.shape[0]
        self.actor, self.critic = torch.nn.Linear(size, actions), torch.nn.Linear(size, 1)
        torch.nn.init.zeros_(self.actor.weight), torch.nn.init.zeros_(self.actor.bias)

    def predict_action_batch(self, env_obs, mode="train", *, generator=None):
        with torch.no_grad():
            states = torch.as_tensor(env_obs["states"]).clone()
            mean = self.actor(states)
            action = mean + 0.3 * torch.randn(mean.shape, generator=generator) if mode == "train" else mean
            found = self.score(states, action)
        context = {"states": states}
        return Decision(action=action[:, None], logprob=found.logprob, value=found.value, context=context, version=self.version)

    def default_forward(self, batch):
        return self.score(batch.trajectory.context["states"], batch.trajectory.action.squeeze(-2))

    def score(self, states, action):
        normal = Independent(Normal(self.actor(states), 0.3), 1)
        return Rescored(logprob=normal.log_prob(action), entropy=normal.entropy(), value=self.critic(states).squeeze(-1))
"""


def test_an_environment_and_a_module_of_ones_own_learn(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (app.logs / "mystuff.py").write_text(MYSTUFF)
    monkeypatch.chdir(app.logs)
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = ("env.train.env_type=mystuff:Dot", "actor.model.model_type=mystuff:Net", "actor.optim.lr=0.05")
    short = ("env.train.max_episode_steps=10", "env.train.max_steps_per_rollout_epoch=10", "env.eval.max_episode_steps=10")
    here = ("cluster.backend=local", 'cluster.component_placement.actor="0"', "actor.global_batch_size=80", "runner.max_steps=20")
    code, said = app.train_here(*own, *short, *here, "runner.val_check_interval=0")
    assert code == 0, said
    assert "TypeError" not in said, "an environment that draws nothing is no fault"
    summary = json.loads((app.logs / "maniskill_ppo_mlp/summary.json").read_text())
    assert summary["eval/return"] > -2.5, "to stand still gives -6.7 in the mean"
