"""PPO beside Stable-Baselines3's and CleanRL's, on one task in one run: how fast, and how soon 95 % of the episodes succeed.

    uv pip install --target /tmp/others --no-deps stable-baselines3 cloudpickle cleanrl==1.2.0
    PYTHONPATH=/tmp/others uv run benchmarks/ppo_comparison.py
    PYTHONPATH=/tmp/others uv run benchmarks/ppo_comparison.py --systems sb3 --seeds 1 --max-steps 4000 --interval 2400  # a trial

The task is that of a recipe (`maniskill_ppo_mlp`: PushCube-v1). All systems have its number of environments, steps of a rollout,
minibatches, epochs, discount, λ and learning rate, and one thread for torch. The systems:

- `rlinf`: `apps/embodied/train.py` with the recipe as it is, on Ray; two processes simulate.
- `sb3`: `stable_baselines3.PPO` on `as_sb3_vec_env`, with the environments of `rlinf.envs` in two processes (`Parallel`); its
  networks have the recipe's sizes, all else is the library's default.
- `sb3_tuned`: the same with what else of the recipe the library has a setting for: the initial standard deviation, normalised
  observations (`VecNormalize`), Adam's ε, a learning rate that falls linearly.
- `cleanrl`: CleanRL's `ppo_continuous_action.py` as installed, with its own networks (64 × 64) and normalisation. It simulates in
  its own process, one environment after another.

Each run is a process of its own, and the systems take turns, seed by seed. Every `--interval` steps a run's mean action is
evaluated by the protocol that the recipe gives, the same for all but for the seed; the clock stands still meanwhile, and begins
with the first step, so that imports and building count apart (`start_s`). A run that is in `--folder` already is not repeated, so
that the whole can be done in pieces; the table and `--out` are written from all that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# Before torch is imported, here and in what is started.
os.environ["OMP_NUM_THREADS"] = "1"

from comparison.course import Measured, Sizes, config
from comparison.systems import SYSTEMS

RESULTS = Path(__file__).parent / "results" / "ppo_comparison.json"
GOAL = 0.95
TO_GOAL = ("seconds_to_goal", "steps_to_goal")


def main() -> None:
    """Runs what is missing, in turns, and tells what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="rlinf,sb3,sb3_tuned,cleanrl", help="by name, with commas")
    parser.add_argument("--seeds", default="1,2,3", help="with commas")
    parser.add_argument("--recipe", default="maniskill_ppo_mlp")
    parser.add_argument("--max-steps", type=int, default=160_000, help="environment steps of each run")
    parser.add_argument("--interval", type=int, default=8_000, help="environment steps between evaluations")
    parser.add_argument("--episodes", type=int, default=128, help="of each evaluation")
    parser.add_argument("--folder", type=Path, default=Path("logs/ppo_comparison"), help="where each run leaves its numbers")
    parser.add_argument("--out", type=Path, help=f"where all numbers are written, such as {RESULTS}")
    parser.add_argument("--one", metavar="SYSTEM", choices=SYSTEMS, help="used by the script itself")
    parser.add_argument("--began", type=float, default=0.0, help="used by the script itself")
    given = parser.parse_args()
    sizes = Sizes(recipe=given.recipe, max_steps=given.max_steps, interval=given.interval, episodes=given.episodes)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    if given.one is not None:
        measured = SYSTEMS[given.one](config(sizes, seeds[0]), sizes, given.began)
        write(given.folder, given.one, seeds[0], sizes, measured)
        return
    systems = given.systems.split(",")
    if unknown := set(systems) - set(SYSTEMS):
        parser.error(f"unknown systems: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    wanted = [(system, seed) for seed in seeds for system in systems]
    for system, seed in wanted:
        if found(given.folder, system, seed, sizes) is None:
            print(f"\n{system}, seed {seed}", flush=True)
            run_one(given, system, seed)
    runs = [run for system, seed in wanted if (run := found(given.folder, system, seed, sizes)) is not None]
    tell(runs)
    if given.out is not None:
        given.out.write_text(json.dumps({"sizes": asdict(sizes), "runs": runs}, indent=1) + "\n")


def run_one(given: argparse.Namespace, system: str, seed: int) -> None:
    """One run in a process of its own."""
    options = [
        f"--{name}={getattr(given, name.replace('-', '_'))}" for name in ("recipe", "max-steps", "interval", "episodes", "folder")
    ]
    command = [sys.executable, __file__, f"--one={system}", f"--seeds={seed}", f"--began={time.time()}", *options]
    subprocess.run(command, check=True)


def write(folder: Path, system: str, seed: int, sizes: Sizes, measured: Measured) -> None:
    """Leaves the numbers of a run, with what they depend on."""
    crossed = next((each for each in measured.evaluations if each[2] >= GOAL), None)
    run = {
        "system": system,
        "seed": seed,
        "sizes": asdict(sizes),
        "steps": measured.steps,
        "seconds": round(measured.seconds, 2),
        "steps_per_s": round(measured.steps / measured.seconds, 1),
        "start_s": round(measured.start_s, 1),
        "goal": GOAL,
        "steps_to_goal": crossed and crossed[0],
        "seconds_to_goal": crossed and round(crossed[1], 1),
        "success": measured.evaluations[-1][2],
        "evaluations": [(steps, round(seconds, 2), success) for steps, seconds, success in measured.evaluations],
        "protocol": measured.protocol,
        **circumstances(),
    }
    path_of(folder, system, seed).write_text(json.dumps(run, indent=1) + "\n")


def found(folder: Path, system: str, seed: int, sizes: Sizes) -> dict[str, Any] | None:
    """The numbers of a run that was done before with the same sizes."""
    path = path_of(folder, system, seed)
    run = json.loads(path.read_text()) if path.is_file() else None
    return run if run is not None and run["sizes"] == asdict(sizes) else None


def path_of(folder: Path, system: str, seed: int) -> Path:
    """Where a run leaves its numbers."""
    return folder / f"{system}_{seed}.json"


def circumstances() -> dict[str, Any]:
    """What else a figure depends on."""
    load = [round(load, 1) for load in os.getloadavg()]
    return {"load": load, "cores": os.cpu_count(), "processor": processor(), "versions": versions()}


def versions() -> dict[str, str]:
    """Of what can change a result."""
    packages = ("rlinf-runners", "rlinf-envs", "stable-baselines3", "cleanrl", "torch", "ray", "gymnasium", "mani-skill", "numpy")
    known = {"python": platform.python_version()}
    for package in packages:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            continue
    return known


def processor() -> str:
    """The name of the processor, where the system tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def tell(runs: Sequence[Mapping[str, Any]]) -> None:
    """The table: medians over seeds, and each system's as multiples of `rlinf`'s."""
    print(f"\n{'system':10} {'seeds':>5} {'steps/s':>8} {'start s':>8} {'success':>8} {f's to {GOAL:.0%}':>22} {'steps':>24}  load")
    rates: dict[str, float] = {}
    for system in dict.fromkeys(run["system"] for run in runs):
        own = [run for run in runs if run["system"] == system]
        rates[system] = statistics.median(run["steps_per_s"] for run in own)
        columns = [", ".join("never" if run[key] is None else f"{run[key]:,.0f}" for run in own) for key in TO_GOAL]
        start, success = (statistics.median(run[key] for run in own) for key in ("start_s", "success"))
        load = max(run["load"][0] for run in own)
        print(
            f"{system:10} {len(own):5} {rates[system]:8,.0f} {start:8.1f} {success:8.1%} {columns[0]:>22} {columns[1]:>24}  {load}"
        )
    for system, rate in rates.items():
        if "rlinf" in rates and system != "rlinf":
            print(f"rlinf's rate is {rates['rlinf'] / rate:.2f} × that of {system}")


if __name__ == "__main__":
    main()
