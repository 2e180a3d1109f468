"""A stand-in for Isaac Lab 2.3 with torch tensors on the CPU, that behaves as its documents say.

`install` puts the modules `isaaclab.app`, `isaaclab.envs`, `isaaclab_tasks` and `isaaclab_tasks.utils` in place. The tasks are
points that are pulled to a goal. As documented: everything random comes from global generators, which `seed` seeds; `step` resets
what has ended inside of itself and returns the observations after the reset; buffers are live; the app must be launched first.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import ClassVar

import gymnasium
import numpy as np
import torch
from fake_modules import put_module


class AppLauncher:
    launched: ClassVar[list[dict]] = []

    def __init__(self, **arguments):
        assert not self.launched, "Isaac Sim can be started once in a process"
        self.launched.append(arguments)


class _Base(gymnasium.Env):
    def __init__(self, cfg, render_mode=None):
        assert AppLauncher.launched, "the app must be launched first"
        self.cfg, self.num_envs, self.device = cfg, cfg.num_envs, cfg.device
        self.single_action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.at, self.goal = torch.zeros(self.num_envs, 2), torch.zeros(self.num_envs, 2)
        self.image = torch.zeros(self.num_envs, 4, 4, 3, dtype=torch.uint8)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.reward_buf = torch.zeros(self.num_envs)
        self.extras = {}
        self.resets, self.written = [], 0
        self.scene = SimpleNamespace(write_data_to_sim=self._write)
        self.sim = SimpleNamespace(forward=lambda: None)

    @property
    def max_episode_length(self):
        return int(np.ceil(round(self.cfg.episode_length_s / (self.cfg.decimation * self.cfg.sim.dt), 6)))

    @staticmethod
    def seed(seed=-1):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        return seed

    def _write(self):
        self.written += 1

    def _reset_idx(self, env_ids):
        self.resets.append(env_ids.tolist())
        self.at[env_ids] = torch.rand(len(env_ids), 2)
        self.goal[env_ids] = torch.as_tensor(np.random.rand(len(env_ids), 2), dtype=torch.float32)
        self.episode_length_buf[env_ids] = 0

    def _observe(self):
        self.image[:] = (self.at[:, :1, None, None] * 50).clamp(0, 255).to(torch.uint8)
        # A little noise, as observation terms may have.
        noisy = self.at + self.cfg.noise * torch.randn_like(self.at)
        if self.cfg.observations.policy.concatenate_terms:
            return {"policy": torch.cat([noisy, self.goal], dim=1)}
        return {"policy": {"at": noisy, "goal": self.goal, "camera": self.image}}

    def step(self, action):
        self.at += 0.1 * action + 0.1 * self.cfg.noise * torch.randn_like(self.at)
        self.episode_length_buf += 1
        distance = (self.at - self.goal).norm(dim=1)
        self.terminated, self.time_outs = distance < 0.1, self.episode_length_buf >= self.max_episode_length
        self.reward_buf[:] = -distance
        ended = (self.terminated | self.time_outs).nonzero().squeeze(-1)
        self.extras["reached"] = self.terminated
        if len(ended) > 0:
            self._reset_idx(ended)
            self._write()
        self.obs_buf = self._observe()
        return self.obs_buf, self.reward_buf, self.terminated, self.time_outs, self.extras

    def close(self):
        self.closed = True


class ManagerBasedRLEnv(_Base):
    def __init__(self, cfg, render_mode=None):
        super().__init__(cfg, render_mode)
        self.termination_manager = SimpleNamespace(
            active_terms=["reached", "time_out"], get_term=lambda name: self.extras["reached"]
        )

    def reset(self, seed=None, env_ids=None, options=None):
        env_ids = torch.arange(self.num_envs) if env_ids is None else env_ids
        if seed is not None:
            self.seed(seed)
        self._reset_idx(env_ids)
        self._write()
        self.obs_buf = self._observe()
        return self.obs_buf, self.extras


class DirectRLEnv(_Base):
    def reset(self, seed=None, options=None):
        if seed is not None:
            self.seed(seed)
        self._reset_idx(torch.arange(self.num_envs))
        self._write()
        return self._get_observations(), self.extras

    def _get_observations(self):
        return self._observe()


class Stubborn(ManagerBasedRLEnv):
    """Resets without `_reset_idx`."""

    def step(self, action):
        inner, self._reset_idx = self._reset_idx, super()._reset_idx
        try:
            return super().step(action)
        finally:
            self._reset_idx = inner


def parse_env_cfg(task_name, device="cuda:0", num_envs=None):
    policy = SimpleNamespace(concatenate_terms=True)
    sim = SimpleNamespace(dt=0.01, device=device)
    observations = SimpleNamespace(policy=policy)
    return SimpleNamespace(
        num_envs=num_envs, device="cpu", decimation=2, sim=sim, episode_length_s=0.5, observations=observations, noise=0.01
    )


def install(monkeypatch):
    """Puts the modules in place, and forgets that an app was launched."""
    modules = {
        "isaaclab": {},
        "isaaclab.app": {"AppLauncher": AppLauncher},
        "isaaclab.envs": {"ManagerBasedRLEnv": ManagerBasedRLEnv, "DirectRLEnv": DirectRLEnv},
        "isaaclab_tasks": {},
        "isaaclab_tasks.utils": {"parse_env_cfg": parse_env_cfg},
    }
    for name, content in modules.items():
        put_module(monkeypatch, name, content)
    from rlinf.envs.unverified.isaaclab import _isaaclab

    monkeypatch.setattr(_isaaclab, "_apps", {})
    monkeypatch.setattr(AppLauncher, "launched", [])
    for name, cls in (("Managed", ManagerBasedRLEnv), ("Direct", DirectRLEnv), ("Stubborn", Stubborn)):
        gymnasium.registry.pop(f"Isaac-{name}-v0", None)
        gymnasium.register(f"Isaac-{name}-v0", cls, disable_env_checker=True)
