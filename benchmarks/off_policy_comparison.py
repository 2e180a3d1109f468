"""SAC, TD3, DQN and CrossQ beside those of Stable-Baselines3, with the same settings in one run: what they reach, and how fast.

    uv pip install --target /tmp/others --no-deps stable-baselines3 sb3-contrib cloudpickle
    PYTHONPATH=/tmp/others uv run benchmarks/off_policy_comparison.py
    PYTHONPATH=/tmp/others uv run benchmarks/off_policy_comparison.py --recipes pendulum_sac --seeds 1 --max-steps 3200   # a trial
    … off_policy_comparison.py --recipes pendulum_sac --max-steps 12800 --override env.train.init_params.env_id=Reacher-v5

A recipe (`apps/embodied/config`) gives the task, the number of environments, the steps between updates and their number, batch,
networks, learning rate, discount, target and noise; `comparison/off_policy.py` says which setting of the library is which. What the
library lacks is left out of both: the double Q-learning of DQN, normalised critics of SAC and TD3, learning rates that fall. Its
CrossQ, of sb3-contrib, normalises actors, too. Each run is a process of its own with one
thread for torch, and the systems take turns, seed by seed. A run is evaluated at its end by the protocol of the recipe, by its mean
action; the clock (`seconds`) stands still meanwhile and begins with the first step. A run that is in `--folder` already is not
repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Before torch is imported, here and in what is started.
os.environ["OMP_NUM_THREADS"] = "1"

from comparison.course import APP, Sizes, config
from comparison.off_policy import SAME, sb3
from comparison.systems import rlinf
from ppo_comparison import circumstances
from rlinf.runners import OffPolicyConfig, compose_recipe, read_off_policy

RESULTS = Path(__file__).parent / "results" / "off_policy_comparison.json"
CONSTANT = "actor.optim.lr_scheduler=constant"


def main() -> None:
    """Runs what is missing, in turns, and tells what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="pendulum_sac,pendulum_td3,cartpole_dqn", help="with commas")
    parser.add_argument("--systems", default="rlinf,sb3", help="with commas")
    parser.add_argument("--seeds", default="1,2,3", help="with commas")
    parser.add_argument("--max-steps", type=int, help="environment steps of each run (default: the recipe's)")
    parser.add_argument("--override", action="append", default=[], help="a key=value of all recipes; give it a --folder")
    parser.add_argument("--episodes", type=int, default=64, help="of the evaluation")
    parser.add_argument("--folder", type=Path, default=Path("logs/off_policy_comparison"), help="where runs leave their numbers")
    parser.add_argument("--out", type=Path, help=f"where all numbers are written, such as {RESULTS}")
    parser.add_argument("--one", metavar="SYSTEM", choices=("rlinf", "sb3"), help="used by the script itself")
    parser.add_argument("--began", type=float, default=0.0, help="used by the script itself")
    given = parser.parse_args()
    seeds, systems, recipes = (getattr(given, name).split(",") for name in ("seeds", "systems", "recipes"))
    if given.one is not None:
        one(given, recipes[0], int(seeds[0]))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    for recipe in recipes:
        for seed in map(int, seeds):
            for system in systems:
                sizes = sizes_of(recipe, given.max_steps, given.episodes)
                path = given.folder / f"{recipe}_{system}_{seed}.json"
                if not path.is_file() or json.loads(path.read_text())["sizes"] != asdict(sizes):
                    print(f"\n{recipe}, {system}, seed {seed}", flush=True)
                    run_one(given, recipe, system, seed)
                runs.append(json.loads(path.read_text()))
    tell(runs)
    if given.out is not None:
        given.out.write_text(json.dumps(runs, indent=1) + "\n")


def sizes_of(recipe: str, max_steps: int | None, episodes: int) -> Sizes:
    """The sizes of the runs of a recipe, which are evaluated at their end."""
    cfg = read_off_policy(compose_recipe(APP / "config", recipe, []).data)
    steps = max_steps or cfg.runner.max_steps * cfg.decisions_per_iteration
    return Sizes(recipe=recipe, max_steps=steps, interval=steps, episodes=episodes)


def run_one(given: argparse.Namespace, recipe: str, system: str, seed: int) -> None:
    """One run in a process of its own."""
    options = [f"--recipes={recipe}", f"--seeds={seed}", f"--episodes={given.episodes}", f"--folder={given.folder}"]
    options += [f"--override={each}" for each in given.override]
    if given.max_steps is not None:
        options.append(f"--max-steps={given.max_steps}")
    subprocess.run([sys.executable, __file__, f"--one={system}", f"--began={time.time()}", *options], check=True)


def one(given: argparse.Namespace, recipe: str, seed: int) -> None:
    """This process is a run: leaves its numbers."""
    sizes = sizes_of(recipe, given.max_steps, given.episodes)
    loss = read_off_policy(compose_recipe(APP / "config", recipe, []).data).algorithm.loss_type
    further = (*SAME[loss], CONSTANT, *given.override)
    cfg: OffPolicyConfig = config(sizes, seed, further)
    if given.one == "sb3":
        measured = sb3(cfg, sizes, given.began)
    else:
        measured = rlinf(cfg, sizes, given.began, metric="return", further=further)
    run = {
        "recipe": recipe,
        "system": given.one,
        "seed": seed,
        "sizes": asdict(sizes),
        "overrides": given.override,
        "return": measured.evaluations[-1][2],
        "seconds": round(measured.seconds, 2),
        "start_s": round(measured.start_s, 1),
        "steps": measured.steps,
        "protocol": measured.protocol,
        **circumstances(),
    }
    (given.folder / f"{recipe}_{given.one}_{seed}.json").write_text(json.dumps(run, indent=1) + "\n")


def tell(runs: Sequence[Mapping[str, Any]]) -> None:
    """The table: returns of all seeds, their mean, seconds, and the ratio of the medians."""
    print(f"\n{'recipe':18} {'system':7} {'return by seed':>32} {'mean':>8} {'seconds':>8}  load")
    for recipe in dict.fromkeys(run["recipe"] for run in runs):
        seconds: dict[str, float] = {}
        for system in dict.fromkeys(run["system"] for run in runs):
            own = [run for run in runs if (run["recipe"], run["system"]) == (recipe, system)]
            seconds[system] = statistics.median(run["seconds"] for run in own)
            returns = [run["return"] for run in own]
            each, load = ", ".join(f"{one:.0f}" for one in returns), max(run["load"][0] for run in own)
            print(f"{recipe:18} {system:7} {each:>32} {statistics.mean(returns):8.1f} {seconds[system]:8.1f}  {load}")
        if len(seconds) > 1:
            print(f"{recipe}: rlinf takes {seconds['rlinf'] / seconds['sb3']:.2f} of the time of sb3")


if __name__ == "__main__":
    main()
