"""How much of the simulator's speed a whole PPO iteration keeps, in one run: `uv run benchmarks/ppo_throughput.py`.

Measures, one after the other and the bare simulator before and after the rest, so that a busy machine disturbs all alike:

- the bare simulator: as many processes as env workers, each stepping its share of environments through `gymnasium.make(task).step`
  with random actions, as fast as it can;
- end to end: `apps/embodied/train.py`, iterations as a whole (weights, rollout, advantages, training, resets; no evaluation).

Prints env-steps per second of both, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

TRAIN = Path(__file__).parents[1] / "apps/embodied/train.py"
EXPERIMENT = "ppo_throughput"
WARM_UP = 3


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-name", default="maniskill_ppo_mlp")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement of the bare simulator")
    parser.add_argument("--processes", type=int, default=2, help="env workers of the recipe")
    parser.add_argument("--num-envs", type=int, default=16, help="environments of the recipe")
    given = parser.parse_args()
    share = given.num_envs // given.processes
    before = bare_simulator(given.processes, share, given.seconds)
    rows = end_to_end(given.config_name, given.iterations)
    after = bare_simulator(given.processes, share, given.seconds)
    bare = (before + after) / 2
    steps = rows[-1]["env/steps"] - rows[WARM_UP - 1]["env/steps"]
    whole = steps / sum(row["time/step"] for row in rows[WARM_UP:])
    print(f"bare simulator   {bare:7.0f} env-steps/s   ({before:.0f} before, {after:.0f} after; {given.processes} processes)")
    print(f"end to end       {whole:7.0f} env-steps/s   ({len(rows) - WARM_UP} iterations of {given.config_name})")
    print(f"ratio            {whole / bare:7.2f}")
    for name in ("sync_weights", "generate_rollouts", "cal_adv_and_returns", "actor_training", "step"):
        median = statistics.median(row[f"time/{name}"] for row in rows[WARM_UP:])
        print(f"  time/{name:20} {median * 1e3:7.1f} ms")


def bare_simulator(processes: int, envs: int, seconds: float) -> float:
    """Env-steps per second over all processes."""
    context = multiprocessing.get_context("spawn")
    ready, counts = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=step_alone, args=(envs, seconds, ready, counts)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    total = sum(counts.get(timeout=seconds + 120) for _ in workers)
    for worker in workers:
        worker.join(timeout=30)
    return total / seconds


def step_alone(envs: int, seconds: float, ready: Any, counts: Any) -> None:
    """Steps single environments in turn with random actions, and reports how many steps were made."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import gymnasium
    import torch

    from rlinf.envs import ManiSkill

    torch.set_num_threads(1)
    # Making and closing one of ours makes ManiSkill importable where there is no Vulkan.
    ManiSkill().make(1, max_episode_steps=None, ignore_terminations=True, render=False).close()
    settings: dict[str, Any] = {"obs_mode": "state", "control_mode": "pd_joint_delta_pos", "reward_mode": "normalized_dense"}
    settings |= {"sim_backend": "physx_cpu", "render_backend": "none"}
    bare = [cast("Any", gymnasium.make("PushCube-v1", **settings)) for _ in range(envs)]
    for seed, env in enumerate(bare):
        env.reset(seed=seed)
    ready.wait(timeout=120)
    steps, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        for env in bare:
            env.step(env.action_space.sample())
        steps += envs
    counts.put(steps)


def end_to_end(recipe: str, iterations: int) -> list[dict[str, float]]:
    """What each iteration of a short training run logged."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"runner.logger.log_path={folder}",
            f"runner.experiment_name={EXPERIMENT}",
            f"runner.max_steps={iterations + WARM_UP}",
            "runner.val_check_interval=0",
            "env.eval.final_episodes=16",
            "env.eval.video_cfg.save_video=false",
        ]
        subprocess.run([sys.executable, str(TRAIN), "--config-name", recipe, *overrides], check=True)
        lines = (Path(folder) / EXPERIMENT / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "time/step" in row]


if __name__ == "__main__":
    main()
