"""IQL beside d3rlpy's, on one dataset in one run: what each achieves after the same number of updates, and how fast.

    uv run apps/embodied/train.py --config-name pendulum_sac +env.train.data_collection.save_dir=logs/datasets/pendulum \
        +env.train.data_collection.export_format=numpy
    uv pip install --target /tmp/others --no-deps d3rlpy structlog dataclasses-json "marshmallow<4" typing-inspect mypy-extensions \
        colorama gym gym-notices scikit-learn joblib threadpoolctl narwhals
    PYTHONPATH=/tmp/others uv run benchmarks/offline_comparison.py

The task, the dataset and every number are those of a recipe (`pendulum_iql`), with what is named in addition as `key=value`:
networks, learning rate, batch, updates, discount, expectile, inverse temperature and target rate, and one thread for torch. Both
policies act by their means, in the same episodes of the protocol of our run, at the end and on the way (`course`, by iteration).
They differ in what the libraries differ in: d3rlpy squashes the mean of its actions, scales them to ±1, begins with other weights
and leaves out the last step of an episode that was cut; ours is a Gaussian in the units of the environment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "offline_comparison.json"


def main() -> None:
    """Runs both systems, seed by seed, and tells what they achieved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="pendulum_iql")
    parser.add_argument("--dataset", default="logs/datasets/pendulum")
    parser.add_argument("--seeds", default="1,2,3", help="with commas")
    parser.add_argument("--folder", type=Path, default=Path("logs/offline_comparison"), help="of our runs")
    parser.add_argument("--episodes", type=int, default=256, help="of the evaluation")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the recipe")
    parser.add_argument("--out", type=Path, help=f"where all numbers are written, such as {RESULTS}")
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    for seed in map(int, given.seeds.split(",")):
        for system in (ours, d3rlpys):
            found.append(system(given, seed))
            print(json.dumps(found[-1]), flush=True)
    for name in ("rlinf", "d3rlpy"):
        returns = [each["return"] for each in found if each["system"] == name]
        seconds = [each["seconds"] for each in found if each["system"] == name]
        print(f"{name:8} return {statistics.mean(returns):8.1f} ({min(returns):.1f} … {max(returns):.1f})", end="")
        print(f"  {statistics.mean(seconds):.1f} s of updates")
    if given.out is not None:
        given.out.write_text(
            json.dumps({"recipe": given.recipe, "overrides": given.overrides, "episodes": given.episodes, "runs": found}, indent=2)
            + "\n"
        )


def ours(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The recipe as a user starts it."""
    log = given.folder / f"seed_{seed}"
    overrides = (*shared(given, seed), f"runner.logger.log_path={log}")
    script = str(ROOT / "apps/embodied/train.py")
    subprocess.run([sys.executable, script, "--config-name", given.recipe, *overrides], check=True, stdout=subprocess.DEVNULL)
    folder = log / given.recipe
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = sum(row.get("time/actor_training", 0.0) for row in rows)
    achieved = json.loads((folder / "summary.json").read_text())["eval/return"]
    course = {row["step"]: row["eval/return"] for row in rows if "eval/return" in row}
    return {"system": "rlinf", "seed": seed, "return": achieved, "course": course, "seconds": seconds}


def shared(given: argparse.Namespace, seed: int) -> tuple[str, ...]:
    """What both systems are told beside the recipe."""
    return (
        f"runner.seed={seed}",
        f"algorithm.demo_buffer.path={given.dataset}",
        f"env.eval.episodes={given.episodes}",
        f"env.eval.final_episodes={given.episodes}",
        *given.overrides,
    )


def d3rlpys(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """d3rlpy's `IQL` on the episodes of the same dataset."""
    d3rlpy: Any = importlib.import_module("d3rlpy")  # no dependency of ours
    import gymnasium
    import numpy as np
    import torch

    from rlinf.envs.offline import NumpyEpisodes
    from rlinf.runners import compose_recipe
    from rlinf.runners.off_policy.rules import read_off_policy

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    cfg: Any = read_off_policy(compose_recipe(ROOT / "apps/embodied/config", given.recipe, [*shared(given, seed)]).data)
    bounds: Any = gymnasium.make(cfg.env.eval.init_params.env_id).action_space
    episodes = list(NumpyEpisodes(path=given.dataset).open().episodes())
    dataset = d3rlpy.dataset.MDPDataset(
        observations=np.concatenate([each.observation["states"][:-1] for each in episodes]),
        actions=np.concatenate([each.action for each in episodes]).astype(np.float32),
        rewards=np.concatenate([each.reward for each in episodes]),
        terminals=np.concatenate([each.terminated for each in episodes]).astype(np.float32),
        timeouts=np.concatenate([each.truncated for each in episodes]).astype(np.float32),
    )
    model, loss = cfg.actor.model.config, cfg.algorithm.objective
    encoder = d3rlpy.models.VectorEncoderFactory(list(model.hidden_sizes), activation=model.activation)
    judges = d3rlpy.models.VectorEncoderFactory(list(model.q_hidden_sizes), activation="relu")
    learner = d3rlpy.algos.IQLConfig(
        actor_learning_rate=cfg.actor.trainer.optim.lr,
        critic_learning_rate=cfg.actor.trainer.optim.lr,
        actor_encoder_factory=encoder,
        value_encoder_factory=encoder,
        critic_encoder_factory=judges,
        batch_size=cfg.actor.global_batch_size,
        gamma=cfg.algorithm.gamma,
        tau=loss.tau,
        n_critics=model.num_q_heads,
        expectile=loss.expectile,
        weight_temp=loss.beta,
        max_weight=loss.max_weight,
        action_scaler=d3rlpy.preprocessing.MinMaxActionScaler(minimum=bounds.low, maximum=bounds.high),
    ).create(device="cpu:0")
    learner.build_with_dataset(dataset)
    seconds, course = 0.0, dict[int, float]()
    for step in range(1, cfg.runner.max_steps + 1):
        began = time.monotonic()
        for _ in range(cfg.updates(step - 1)):
            learner.update(dataset.sample_transition_batch(cfg.actor.global_batch_size))
        seconds += time.monotonic() - began
        if step % cfg.runner.val_check_interval == 0:
            course[step] = achieved(learner, cfg, final=False)
    found = {"system": "d3rlpy", "seed": seed, "return": achieved(learner, cfg, final=True)}
    return {**found, "course": course, "seconds": seconds}


def achieved(learner: Any, cfg: Any, *, final: bool) -> float:
    """The mean return of a policy's best actions in the episodes of the recipe's evaluations on the way, or of its last one."""
    import gymnasium
    import numpy as np

    from rlinf.runners.embodied.evaluation import episode_protocol

    seeds = [episode.env_seed for episode in episode_protocol(cfg, final=final).work_list()]
    env: Any = gymnasium.make_vec(cfg.env.eval.init_params.env_id, num_envs=len(seeds), vectorization_mode="sync")
    seen, _ = env.reset(seed=seeds)
    total, going = np.zeros(len(seeds)), np.ones(len(seeds), bool)
    while going.any():
        # What is played after the first end is another episode.
        seen, reward, terminated, truncated, _ = env.step(learner.predict(np.asarray(seen, np.float32)))
        total += np.where(going, reward, 0.0)
        going &= ~(terminated | truncated)
    return float(total.mean())


if __name__ == "__main__":
    main()
