"""What the env server costs beside the same environment in this process: `uv run benchmarks/env_server.py`.

16 environments with an image of 128 × 128 and a state, stepped one after the other, as any single environments are. Two cases: a
step of all 16 takes 1 ms in sum, and a step of each takes 1 ms; both are processor time, spent by computing. Both sides get the
same actions in alternating rounds, so that a busy machine disturbs both alike. Wall time is the median of all steps, and the
median of the ratios of neighbouring rounds. Processor time, of this process and the server's together, tells more on a machine that
is not quiet: the two never compute at the same time, so that on a quiet one it differs from the wall time only by the two wake-ups.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np

from rlinf.core.data import EnvSpec
from rlinf.envs.assembly import assemble
from rlinf.envs.remote import Remote
from rlinf.envs.spaces import describe

Told = tuple[dict[str, Any], float, bool, bool, dict[str, Any]]


class Working(gymnasium.Env[dict[str, Any], Any]):
    """Computes for a given time and shows an image that changes."""

    def __init__(self, seconds: float, pixels: int) -> None:
        image = gymnasium.spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)
        states = gymnasium.spaces.Box(-np.inf, np.inf, (32,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"main_images": image, "states": states})
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.seconds, self.steps, self._image = seconds, 0, (pixels, pixels, 3)

    def _see(self) -> dict[str, Any]:
        image = np.full(self._image, self.steps % 256, np.uint8)
        return {"main_images": image, "states": np.full(32, self.steps, np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Counts from 0."""
        self.steps = 0
        return self._see(), {}

    def step(self, action: Any) -> Told:
        """Computes."""
        until = time.thread_time() + self.seconds
        self.steps += 1
        seen = self._see()
        while time.thread_time() < until:
            pass
        return seen, 0.0, False, False, {"success": False}


@dataclass(frozen=True, kw_only=True)
class WorkingEnv:
    """The configuration, which the server's process finds as `env_server:WorkingEnv`."""

    seconds: float
    pixels: int = 128

    def check(self, place: str) -> None:
        """Nothing can be missing."""

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Any:
        task = lambda: Working(self.seconds, self.pixels)  # noqa: E731
        return assemble([task] * num_envs, max_episode_steps=max_episode_steps or 10**6, camera=None)

    def describe(self, env: Any) -> EnvSpec:
        return describe(env)


def processor_seconds(pid: int | str = "self") -> float:
    """The processor time of a process so far, to the nanosecond."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) * 1e-9


def timed(env: Any, actions: Any, steps: int) -> tuple[list[float], float]:
    """The seconds of each of some steps, and the processor seconds that all of them cost here and in the environment's process."""
    walls: list[float] = []
    processes = ["self", *getattr(env.unwrapped, "processes", [])]
    processor = sum(map(processor_seconds, processes))
    for _ in range(steps):
        begun = time.perf_counter()
        observation = env.step(actions)[0]
        observation["main_images"][0, 0, 0, 0]
        walls.append(time.perf_counter() - begun)
    return walls, sum(map(processor_seconds, processes)) - processor


def compare(seconds: float, label: str, given: argparse.Namespace) -> None:
    """Measures one case and prints it."""
    settings: dict[str, Any] = {"max_episode_steps": None, "ignore_terminations": False, "render": False}
    local: Any = WorkingEnv(seconds=seconds).make(given.num_envs, **settings)
    params = {"seconds": seconds}
    remote: Any = Remote(python=sys.executable, env="env_server:WorkingEnv", params=params, paths=(str(Path(__file__).parent),))
    remote = remote.make(given.num_envs, **settings)
    actions = np.zeros((given.num_envs, 7), np.float32)
    for env in (local, remote):
        env.reset(seed=0)
        timed(env, actions, 5)
    walls: dict[Any, list[float]] = {local: [], remote: []}
    ratios: list[float] = []
    costs: dict[Any, list[float]] = {local: [], remote: []}
    for turn in range(given.rounds):
        medians: dict[Any, float] = {}
        for env in (local, remote) if turn % 2 else (remote, local):
            taken, processor = timed(env, actions, given.steps)
            walls[env] += taken
            medians[env] = statistics.median(taken)
            costs[env].append(processor / given.steps * 1e3)
        ratios.append(medians[remote] / medians[local])
    here, there = (statistics.median(walls[env]) * 1e3 for env in (local, remote))
    best_here, best_there = (statistics.quantiles(walls[env], n=20)[0] * 1e3 for env in (local, remote))
    print(f"{label}: {here:.3f} ms in this process, {there:.3f} ms through the server: {there / here - 1:+.1%}")
    print(
        f"    rounds: median {statistics.median(ratios) - 1:+.1%}; 5th percentile of the steps: {best_there / best_here - 1:+.1%}"
    )
    cost_here, cost_there = (statistics.median(costs[env]) for env in (local, remote))
    least_here, least_there = (min(costs[env]) for env in (local, remote))
    print(f"    processor time: {cost_here:.3f} ms and {cost_there:.3f} ms: {cost_there / cost_here - 1:+.1%}")
    print(f"    in the best round: {least_here:.3f} ms and {least_there:.3f} ms: {least_there / least_here - 1:+.1%}")
    local.close()
    remote.close()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    compare(1e-3 / given.num_envs, f"1 ms for all {given.num_envs}", given)
    given.steps = max(given.steps // 8, 5)
    compare(1e-3, "1 ms for each", given)


if __name__ == "__main__":
    main()
