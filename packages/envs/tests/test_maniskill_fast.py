"""The shorter ways through ManiSkill give the numbers of ManiSkill itself, to the bit."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from rlinf.envs import ManiSkill
from rlinf.envs.maniskill._postponed import little_garbage

if find_spec("mani_skill") is None:
    pytest.skip("the extra rlinf-envs[maniskill] is not installed", allow_module_level=True)

CASES = [
    ("PushCube-v1", "pd_joint_delta_pos"),
    ("PushCube-v1", "pd_joint_pos"),
    ("PushCube-v1", "pd_joint_target_delta_pos"),
    ("PushCube-v1", "pd_joint_vel"),
    ("PushCube-v1", "pd_ee_delta_pose"),
    ("PickCube-v1", "pd_joint_delta_pos"),
    ("RollBall-v1", "pd_joint_delta_pos"),
    ("MS-CartpoleBalance-v1", None),
    ("TriFingerRotateCubeLevel0-v1", None),
]


def make(task_id, control_mode):
    config = ManiSkill(task_id=task_id, control_mode=control_mode)
    return config.make(1, max_episode_steps=50, ignore_terminations=True, render=False)


def ordinary(task_id, control_mode, reward_mode):
    import gymnasium

    settings = {} if control_mode is None else {"control_mode": control_mode}
    return gymnasium.make(
        task_id, obs_mode="state", sim_backend="physx_cpu", render_backend="none", reward_mode=reward_mode, **settings
    ).unwrapped


def targets(simulation):
    """What the controllers of joint positions aim at, which a reset and other readers of a controller find there."""
    found = [getattr(each, "_target_qpos", None) for each in simulation.agent.controller.controllers.values()]
    return [None if target is None else target.tolist() for target in found]


def drawn(simulation):
    """What its generators draw next, and the seeds that it remembers."""
    batched = (simulation._batched_main_rng, simulation._batched_episode_rng)
    numbers = [simulation._main_rng.randint(2**31), *(int(each.randint(2**31)[0]) for each in batched)]
    return numbers, simulation._episode_rng.randn(), list(simulation._main_seed), list(simulation._episode_seed)


@pytest.fixture
def collected_little():
    """ManiSkill's own environment collects garbage whenever it is built, which takes more than its steps."""
    with little_garbage():
        yield


@pytest.mark.usefixtures("collected_little")
@pytest.mark.parametrize(("task_id", "control_mode"), CASES)
def test_the_same_numbers_as_without(task_id, control_mode):
    import torch

    env = make(task_id, control_mode)
    plain = ordinary(task_id, control_mode, env.unwrapped.envs[0].simulation.reward_mode)
    generator = np.random.default_rng(0)
    space = env.single_action_space
    with torch.inference_mode():
        # The second one begins with what the first one left in controllers.
        for seed in (3, 4):
            states, _ = env.reset(seed=[seed])
            # Rebuilt, as ours forgets the contacts of earlier episodes.
            expected, _ = plain.reset(seed=seed, options={"reconfigure": True})
            assert states["states"].tobytes() == expected.numpy().tobytes()
            assert drawn(env.unwrapped.envs[0].simulation) == drawn(plain), "generators are seeded alike"
            for step in range(12):
                action = generator.uniform(space.low, space.high).astype(np.float32)
                states, reward, *_ = env.step(action[None])
                expected, rewarded, *_ = plain.step(action)
                found = states["states"].tobytes() + np.float32(reward).tobytes()
                assert found == expected.numpy().tobytes() + rewarded.numpy().astype(np.float32).tobytes(), (
                    f"seed {seed}, step {step}"
                )
            assert targets(env.unwrapped.envs[0].simulation) == targets(plain)
    env.close()
    plain.close()


@pytest.mark.parametrize(("control_mode", "shorter"), [("pd_joint_delta_pos", True), ("pd_joint_target_delta_pos", False)])
def test_ways_are_shorter_only_where_they_are_known(control_mode, shorter):
    """Targets that go on from the last target are computed in another way, which stays as it is."""
    env = make("PushCube-v1", control_mode)
    simulation = env.unwrapped.envs[0].simulation
    kinds = {type(controller).__module__.partition(".")[0] for controller in simulation.agent.controller.controllers.values()}
    assert kinds == ({"rlinf"} if shorter else {"rlinf", "mani_skill"})
    assert ("_step_action" in vars(simulation)) is shorter
    assert "_flatten_raw_obs" in vars(simulation)
    env.close()
