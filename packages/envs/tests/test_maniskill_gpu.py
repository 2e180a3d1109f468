"""The batched path of ManiSkill against a fake `BaseEnv`, with tensors on the CPU, that behaves as ManiSkill 3.0.1 documents."""

from __future__ import annotations

from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.testing.env import EnvContract
from rlinf.envs import ManiSkill

torch = pytest.importorskip("torch")
if find_spec("mani_skill") is None:
    pytest.skip("the extra rlinf-envs[maniskill] is not installed", allow_module_level=True)


class FakePush(gymnasium.Env):
    """Points on a line, pushed to goals.

    As documented: it resets nothing by itself; `reset` takes a list of seeds and `options["env_idx"]`; goals are drawn from torch's
    generator, which is seeded with the first seed of the list, and starts from NumPy generators, one for each environment; actions
    are clipped; `info["elapsed_steps"]`, the observation and the reward are live tensors.
    """

    def __init__(self, num_envs, obs_mode, control_mode, reward_mode, sim_backend, render_backend, **further):
        assert sim_backend == "physx_cuda"
        self.num_envs, self.obs_mode, self.reward_mode = num_envs, obs_mode, reward_mode
        self.device = torch.device("cpu")
        self.single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.at, self.goal = torch.zeros(num_envs, 2), torch.zeros(num_envs, 2)
        self.reward = torch.zeros(num_envs)
        self.elapsed_steps = torch.zeros(num_envs, dtype=torch.int32)
        self.calls = []
        self.closed = 0

    def get_info(self):
        return {"success": torch.zeros(self.num_envs, dtype=torch.bool)}

    def get_obs(self):
        self.live = torch.cat([self.at, self.goal], dim=1)
        if self.obs_mode == "state":
            return self.live
        image = (self.at[:, :1, None, None] * 100).expand(-1, 8, 8, 3).to(torch.uint8)
        camera = {"rgb": image, "depth": torch.full((self.num_envs, 8, 8, 1), 1500, dtype=torch.int16)}
        agent = {"qpos": self.at, "qvel": torch.zeros_like(self.at)}
        return {"agent": agent, "extra": {"goal": self.goal}, "sensor_data": {"base_camera": camera, "hand_camera": camera}}

    def reset(self, seed=None, options=None):
        where = (options or {}).get("env_idx", torch.arange(self.num_envs))
        self.calls.append((list(seed), where.tolist()))
        seeds = list(seed) if len(seed) == self.num_envs else [seed[0]] * self.num_envs
        with torch.random.fork_rng():
            torch.manual_seed(seeds[0])
            self.goal[where] = torch.rand(len(where), 2)
        if "episode_id" in (options or {}):
            self.goal[where] = options["episode_id"][:, None].float()
        starts = [np.random.RandomState(seeds[int(i)]).rand(2) for i in where]
        self.at[where] = torch.as_tensor(np.stack(starts), dtype=torch.float32)
        self.elapsed_steps[where] = 0
        return self.get_obs(), {"elapsed_steps": self.elapsed_steps, "reconfigure": False}

    def step(self, action):
        self.at += 0.1 * action.clamp(-1, 1)
        self.elapsed_steps += 1
        distance = (self.at - self.goal).norm(dim=1)
        self.reward[:] = 1 - distance
        success = distance < 0.05
        info = {"elapsed_steps": self.elapsed_steps, "success": success}
        return self.get_obs(), self.reward, success, torch.zeros(self.num_envs, dtype=torch.bool), info

    def close(self):
        self.closed += 1


gymnasium.register("FakePush-v1", FakePush, max_episode_steps=12, disable_env_checker=True)


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def make(num_envs=3, *, ignore=True, **fields):
    fields = {"sim_backend": "gpu", "arrays": "torch"} | fields
    config = ManiSkill(task_id=f"{__name__}:FakePush-v1", **fields)
    return config.make(num_envs, max_episode_steps=None, ignore_terminations=ignore, render=False)


def simulation(env):
    return env.unwrapped.batch.simulation


@pytest.mark.parametrize("ignore", [True, False])
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_contract(arrays, ignore):
    EnvContract(factory=lambda: make(arrays=arrays, ignore=ignore), steps=6).run()


def test_observations_stay_on_the_device_and_are_not_live():
    env = make()
    assert env.metadata["waived"] == {}
    observation, _ = env.reset(seed=1)
    first = env.step(torch.full((3, 2), 0.5))
    kept = [first[0]["states"].clone(), first[1].copy(), first[4]["episode"]["episode_len"].copy()]
    env.step(torch.full((3, 2), 0.5))
    assert isinstance(observation["states"], torch.Tensor)
    assert torch.equal(first[0]["states"], kept[0])
    assert np.array_equal(first[1], kept[1])
    assert kept[2].tolist() == first[4]["episode"]["episode_len"].tolist() == [1, 1, 1]


def test_a_partial_reset_resets_those_alone():
    env = make(num_envs=4)
    before, _ = env.reset(seed=[3, 4, 5, 6])
    for _ in range(12):
        last = env.step(torch.ones(4, 2))
    simulation(env).calls.clear()
    after, _ = env.reset(seed=[9, 4, 9, 6], options={"reset_mask": np.array([False, True, False, True])})
    assert simulation(env).calls == [([4] * 4, [1]), ([6] * 4, [3])]
    assert torch.equal(after["states"][[1, 3]], before["states"][[1, 3]])
    assert torch.equal(after["states"][[0, 2]], last[0]["states"][[0, 2]])
    with pytest.raises(Exception, match=r"the episodes of environments \[0, 2\] have ended"):
        env.step(torch.zeros(4, 2))


def test_a_reset_in_one_call_says_what_it_does_not_keep():
    env = make(exact_resets=False)
    env.reset(seed=1)
    assert set(env.metadata["waived"]) == {"partial_reset", "place", "seeds"}
    mask = np.array([False, True, True])
    states = [env.reset(seed=[7, 8, 9], options={"reset_mask": mask})[0]["states"].clone() for _ in range(2)]
    assert len(simulation(env).calls) == 3
    assert torch.equal(*states)
    other, _ = env.reset(seed=[7, 8, 10], options={"reset_mask": mask})
    assert not torch.equal(other["states"][1], states[0][1])


def test_numbered_initial_states(monkeypatch):
    from rlinf.envs.maniskill import _gpu

    monkeypatch.setattr(_gpu, "numbered_states", lambda simulation: 24)
    env = make()
    assert set(env.metadata["waived"]) == {"partial_reset"}
    observation, _ = env.reset(seed=1, options={"init_id": [7, None, 23]})
    assert observation["states"][[0, 2], 2].tolist() == [7, 23]
    assert simulation(env).calls == [([0, 0, 0], [0, 1, 2])]
    drawn = [env.reset(seed=seed)[0]["states"][:, 2].tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(ConfigError, match=r"there is no initial state 24\. The task has 24, counted from 0"):
        env.reset(options={"init_id": 24})
    EnvContract(factory=make, steps=6).run()


def test_images_and_depths_by_embodied_key(monkeypatch):
    from rlinf.envs.maniskill import _maniskill, maniskill

    _maniskill._import_simulator()
    # The fake needs no Vulkan; the real one would.
    monkeypatch.setattr(maniskill, "has_vulkan_driver", lambda: True)
    monkeypatch.setattr(_maniskill, "_import_simulator", lambda: "sapien_cuda")
    env = make(obs_mode="rgbd", task_description="push it")
    observation, _ = env.reset(seed=1)
    assert observation["main_images"].shape == observation["wrist_images"].shape == (3, 8, 8, 3)
    assert observation["main_images"].dtype == torch.uint8
    assert torch.equal(observation["main_depths"], torch.full((3, 8, 8), 1.5))
    assert observation["states"].shape == (3, 6)
    assert observation["task_descriptions"].tolist() == ["push it"] * 3
    assert set(observation) == set(env.observation_space.spaces)


def test_auto_takes_the_gpu_for_several():
    assert simulation(make(sim_backend="auto", arrays="numpy")).num_envs == 3


def test_what_the_gpu_path_refuses(monkeypatch):
    with pytest.raises(ConfigError, match="tensors are for the GPU path"):
        make(sim_backend="cpu")
    with pytest.raises(ConfigError, match="videos are made of NumPy arrays"):
        ManiSkill(task_id=f"{__name__}:FakePush-v1", sim_backend="gpu", arrays="torch").make(
            1, max_episode_steps=None, ignore_terminations=True, render=True
        )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="'gpu' needs a CUDA device, found none"):
        make()
