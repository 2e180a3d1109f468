"""What an environment costs: time, processor and memory, of this process and of those that it started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf.core.process.resident import family, of_process, resident


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a number of steps cost, resets of ended episodes included."""

    steps: int
    """Summed over the sub-environments."""
    resets: int
    """Summed over the sub-environments; the first reset of all is not counted."""
    seconds: float
    """Wall time."""
    processor: float
    """CPU seconds of this process and its children; those of children are known to a hundredth of a second."""
    resident: int
    """Bytes of memory in use at the end, children included; memory that processes share counts for each."""
    growth: int
    """By how many bytes that grew after the first quarter of the steps: a leak shows when it goes up with the steps."""


def measure(env: Any, count: int) -> Cost:
    """Takes at least `count` steps with random actions.

    Args:
        env: a vector environment that keeps the contract; it stays open.
        count: steps, summed over its sub-environments.
    """
    env.action_space.seed(0)
    env.reset(seed=0)
    rounds = max(-(-count // env.num_envs), 1)
    actions = [env.action_space.sample() for _ in range(rounds)]
    resets, warm = 0, resident()
    wall, processor = time.perf_counter(), _processor()
    for turn, action in enumerate(actions):
        if turn == rounds // 4:
            warm = resident()
        _, _, terminated, truncated, _ = env.step(action)
        done: Any = np.asarray(terminated | truncated)
        if done.any():
            env.reset(seed=turn, options={"reset_mask": done})
            resets += int(done.sum())
    seconds, processor = time.perf_counter() - wall, _processor() - processor
    now = resident()
    return Cost(steps=rounds * env.num_envs, resets=resets, seconds=seconds, processor=processor, resident=now, growth=now - warm)


class Measured:
    """A factory that knows how much memory its first environment took, the simulator's libraries included.

    Args:
        factory: builds a vector environment.
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self.built: int | None = None

    def __call__(self) -> Any:
        """Builds an environment."""
        before = resident()
        env = self._factory()
        if self.built is None:
            self.built = resident() - before
        return env


def _processor() -> float:
    """CPU seconds of this process and its living descendants."""
    ticks = 0
    for pid in family(os.getpid()):
        # The command's name, in parentheses, may hold anything; user and system time are the 12th and 13th field after it.
        fields = of_process(pid, "stat").rpartition(")")[2].split()
        ticks += sum(int(field) for field in fields[11:13]) if pid != os.getpid() else 0
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
