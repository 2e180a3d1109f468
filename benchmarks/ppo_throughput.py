"""How much of the simulator's speed a whole PPO iteration keeps: `uv run benchmarks/ppo_throughput.py`.

Measures in turns, so that a machine whose speed drifts disturbs all alike, and gives the ratio of each round:

- end to end: `apps/embodied/train.py`, iterations as a whole (weights, rollout, advantages, training, resets; no evaluation);
- the bare simulator: as many processes as env workers, each stepping its share of environments through `gymnasium.make(task).step`,
  as fast as it can. It replays what the trained policy does, because a step in contact costs more than one in the air;
- the same through `rlinf.envs`.

Prints env-steps per second of each, medians over the rounds, and the ratio of the first to the second.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from rlinf.core import Weights
from rlinf.envs import ManiSkill
from rlinf.runners import read_checkpoint, read_embodied

TRAIN = Path(__file__).parents[1] / "apps/embodied/train.py"
EXPERIMENT = "ppo_throughput"
WARM_UP = 3
Play = tuple[list[int], np.ndarray]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-name", default="maniskill_ppo_mlp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=20, help="of each round")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement of a simulator")
    parser.add_argument("--processes", type=int, default=2, help="env workers of the recipe")
    given = parser.parse_args()
    found = [one_round(given) for _ in range(given.rounds)]
    bare, ours, whole = (statistics.median(each[name] for each in found) for name in ("bare", "ours", "whole"))
    print(f"bare simulator   {bare:7.0f} env-steps/s   ({given.processes} processes)")
    print(f"rlinf.envs       {ours:7.0f} env-steps/s")
    print(
        f"end to end       {whole:7.0f} env-steps/s   ({given.rounds} times {given.iterations} iterations of {given.config_name})"
    )
    ratios = sorted(each["whole"] / each["bare"] for each in found)
    print(
        f"end to end / bare simulator   {statistics.median(ratios):.2f}   (rounds: {', '.join(f'{each:.2f}' for each in ratios)})"
    )
    for name in (name for name in found[0] if name.startswith("time/") and not name.endswith("per_s")):
        print(f"  {name:34} {statistics.median(each[name] for each in found) * 1e3:7.1f} ms")


def one_round(given: argparse.Namespace) -> dict[str, float]:
    """Env-steps per second of the whole, of the bare simulator (mean of before and after ours) and of ours, and median seconds."""
    with tempfile.TemporaryDirectory() as folder:
        rows = end_to_end(given.config_name, given.iterations, Path(folder))
        play = played(Path(folder) / EXPERIMENT, given.processes)
    bare, ours, again = (together(given.processes, step, play, given.seconds) for step in (step_bare, step_ours, step_bare))
    steps = rows[-1]["env/steps"] - rows[WARM_UP - 1]["env/steps"]
    whole = steps / sum(row["time/step"] for row in rows[WARM_UP:])
    times = {name: statistics.median(row[name] for row in rows[WARM_UP:]) for name in rows[-1] if name.startswith("time/")}
    return {**times, "bare": (bare + again) / 2, "ours": ours, "whole": whole}


def played(run: Path, processes: int) -> Play:
    """Seeds `[n]` and actions `[T, n, A]` of what the policy of a run does in one episode of each process's environments."""
    checkpoint = read_checkpoint(run)
    cfg = read_embodied(checkpoint.config)
    train = cfg.env.train
    envs = train.total_num_envs // processes
    env = train.init_params.make(envs, max_episode_steps=None, ignore_terminations=True, render=False)
    policy = cfg.actor.model.build(train.init_params.describe(env), seed=0)
    policy.load(Weights(tensors=load_file(checkpoint.model_file), version=0))
    seeds = list(range(envs))
    obs, _ = env.reset(seed=seeds)
    generator, actions = torch.Generator().manual_seed(0), list[Any]()
    for _ in range(train.max_steps_per_rollout_epoch):
        decided = policy.predict_action_batch(obs, "train", generator=generator).action[:, 0].numpy()
        actions.append(decided.clip(env.single_action_space.low, env.single_action_space.high))
        obs, *_ = env.step(actions[-1])
    env.close()
    return seeds, np.stack(actions)


def together(processes: int, step: Callable[..., None], play: Play, seconds: float) -> float:
    """Env-steps per second over all processes, each calling `step`."""
    context = multiprocessing.get_context("spawn")
    ready, counts = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=step, args=(play, seconds, ready, counts)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    total = sum(counts.get(timeout=seconds + 120) for _ in workers)
    for worker in workers:
        worker.join(timeout=30)
    return total


def step_bare(play: Play, seconds: float, ready: Any, counts: Any) -> None:
    """Replays in single environments of ManiSkill, one after the other; reports steps per second."""
    import gymnasium

    # Making and closing one of ours makes ManiSkill importable where there is no Vulkan.
    ManiSkill().make(1, max_episode_steps=None, ignore_terminations=True, render=False).close()
    settings: dict[str, Any] = {"obs_mode": "state", "control_mode": "pd_joint_delta_pos", "reward_mode": "normalized_dense"}
    settings |= {"sim_backend": "physx_cpu", "render_backend": "none"}
    seeds, actions = play
    bare = [cast("Any", gymnasium.make("PushCube-v1", **settings)) for _ in seeds]

    def episode() -> None:
        for env, seed in zip(bare, seeds, strict=True):
            env.reset(seed=seed)
        for action in actions:
            for env, own in zip(bare, action, strict=True):
                env.step(own)

    counts.put(rate(episode, actions, seconds, ready))


def step_ours(play: Play, seconds: float, ready: Any, counts: Any) -> None:
    """Replays in a vector environment of `rlinf.envs`; reports steps per second."""
    seeds, actions = play
    env: Any = ManiSkill().make(len(seeds), max_episode_steps=None, ignore_terminations=True, render=False)

    def episode() -> None:
        env.reset(seed=seeds)
        for action in actions:
            env.step(action)

    counts.put(rate(episode, actions, seconds, ready))


def rate(episode: Callable[[], None], actions: np.ndarray, seconds: float, ready: Any) -> float:
    """Env-steps per second of repeated episodes."""
    torch.set_num_threads(1)
    episode()
    ready.wait(timeout=120)
    episodes, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        episode()
        episodes += 1
    return episodes * actions.shape[0] * actions.shape[1] / (time.monotonic() - began)


def end_to_end(recipe: str, iterations: int, folder: Path) -> list[dict[str, float]]:
    """What each iteration of a short training run logged."""
    overrides = [
        f"runner.logger.log_path={folder}",
        f"runner.experiment_name={EXPERIMENT}",
        f"runner.max_steps={iterations + WARM_UP}",
        "runner.val_check_interval=0",
        "env.eval.final_episodes=16",
        "env.eval.video_cfg.save_video=false",
    ]
    subprocess.run([sys.executable, str(TRAIN), "--config-name", recipe, *overrides], check=True)
    lines = (folder / EXPERIMENT / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "time/step" in row]


if __name__ == "__main__":
    main()
