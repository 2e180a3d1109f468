"""What the environment adapter costs beside the bare simulator, in one run: `uv run benchmarks/env_throughput.py`.

Steps the same actions through `gymnasium.make(task).step` of ManiSkill, one simulation after the other, and through `rlinf.envs`;
the two alternate, so that a busy machine disturbs both alike. Prints CPU-milliseconds per environment step and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch

from rlinf.envs import ManiSkill


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="PushCube-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50, help="steps of each environment in a round")
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    torch.set_num_threads(1)

    ours = ManiSkill(task_id=given.task).make(given.num_envs, max_episode_steps=given.steps, ignore_terminations=True, render=False)
    settings: dict[str, Any] = {"obs_mode": "state", "control_mode": "pd_joint_delta_pos", "reward_mode": "normalized_dense"}
    settings |= {"sim_backend": "physx_cpu", "render_backend": "none"}
    bare: list[Any] = [cast("Any", gymnasium.make(given.task, **settings)) for _ in range(given.num_envs)]
    space = cast("Any", ours).action_space
    space.seed(0)
    actions = np.stack([space.sample() for _ in range(given.steps)])

    simulator: list[float] = []
    adapter: list[float] = []
    for seed in range(given.rounds):
        simulator.append(step_bare(bare, actions, seed))
        adapter.append(step_ours(ours, actions, seed))
    a, b = statistics.median(simulator), statistics.median(adapter)
    print(f"{given.task}, {given.num_envs} environments, {given.rounds} rounds of {given.steps} steps; CPU-ms per environment step")
    print(f"  simulator, gymnasium.make(…).step   {a:.3f}")
    print(f"  rlinf.envs, env.step                {b:.3f}")
    print(f"  ratio                               {b / a:.3f}")


def step_bare(envs: list[Any], actions: np.ndarray, seed: int) -> float:
    """CPU-ms per step of single environments, without their reset."""
    for index, env in enumerate(envs):
        env.reset(seed=seed + index)
    start = time.process_time()
    for action in actions:
        for index, env in enumerate(envs):
            env.step(action[index])
    return (time.process_time() - start) / (len(actions) * len(envs)) * 1e3


def step_ours(env: Any, actions: np.ndarray, seed: int) -> float:
    """CPU-ms per step of the vector environment, without its reset."""
    env.reset(seed=seed)
    start = time.process_time()
    for action in actions:
        env.step(action)
    return (time.process_time() - start) / (len(actions) * env.num_envs) * 1e3


if __name__ == "__main__":
    main()
