"""How many steps a second Genesis simulates, by the size of the batch: `python benchmarks/env_genesis.py --backend gpu 1024 8192`.

Genesis needs an environment of its own: docs/envs/genesis-tasks.md. Random actions, no resets within a round; the median of three
rounds of twelve steps after three that don't count, then a reset of all. Building compiles kernels, which the next sizes use, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from rlinf.envs.genesis import Genesis


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="+", help="environments of a batch")
    parser.add_argument("--backend", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--task", choices=["reach", "reach_cube"], default="reach_cube")
    given = parser.parse_args()
    for size in given.sizes:
        began = time.perf_counter()
        env = Genesis(task=given.task, backend=given.backend).make(
            size, max_episode_steps=50, ignore_terminations=True, render=False
        )
        env.reset(seed=1)
        built = time.perf_counter() - began
        actions = np.random.default_rng(0).uniform(-1, 1, (8, size, 4)).astype(np.float32)
        steps(env, actions, 3)
        rates = [12 * size / steps(env, actions, 12) for _ in range(3)]
        began = time.perf_counter()
        env.reset(seed=2)
        reset = time.perf_counter() - began
        print(f"{size} environments: {statistics.median(rates):,.0f} steps/s, a reset of all {reset:.2f} s; built in {built:.0f} s")
        env.close()


def steps(env: Any, actions: np.ndarray, count: int) -> float:
    """The seconds of so many steps."""
    began = time.perf_counter()
    for number in range(count):
        env.step(actions[number % len(actions)])
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
