"""An environment and losses that fail on purpose, or say where they run; named in configurations as `faulty:Faulty`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from rlinf.core.data import EnvSpec, LossOutput
from rlinf.envs.gymnasium import Gymnasium


def locate(file: str) -> None:
    """Writes the process id of this process so that a reader finds all of it or no file: a loss does so many times."""
    unfinished = Path(f"{file}.{os.getpid()}")
    unfinished.write_text(str(os.getpid()))
    unfinished.replace(file)


class WatchedPendulum:
    """Pendulum, with something that happens where it is built and before each step."""

    def check(self, place: str) -> None:
        pass

    def make(self, num_envs: int, **options: Any) -> Any:
        before_step = self.watch()
        env: Any = Gymnasium(env_id="Pendulum-v1").make(num_envs, **options)
        stepped = self.watched(env)
        original = stepped.step

        def step(action: Any) -> Any:
            before_step()
            return original(action)

        stepped.step = step
        return env

    def watched(self, env: Any) -> Any:
        """That before whose steps something happens: all environments together, or one of them."""
        return env

    def describe(self, env: Any) -> EnvSpec:
        return Gymnasium(env_id="Pendulum-v1").describe(env)

    def watch(self) -> Callable[[], None]:
        """Called where it is built; returns what is called before each step."""
        raise NotImplementedError


@dataclass(frozen=True)
class Faulty(WatchedPendulum):
    """Writes its process id to `pid_file` and raises at step `raise_at`, in environment `raise_in` if there is one."""

    pid_file: str | None = None
    raise_at: int | None = None
    raise_in: int | None = None

    def watched(self, env: Any) -> Any:
        return env if self.raise_in is None else env.unwrapped.envs[self.raise_in]

    def watch(self) -> Callable[[], None]:
        if self.pid_file is not None:
            locate(self.pid_file)
        steps = count() if self.raise_at is None else iter(range(self.raise_at))

        def before() -> None:
            if next(steps, None) is None:
                raise ValueError("the gripper fell off")

        return before


@dataclass(frozen=True)
class NoGradient:
    """A loss whose gradient is no number."""

    def __call__(self, batch: Any, evaluation: Any) -> LossOutput[Any]:
        total = (evaluation.logprob * float("nan")).sum()
        return LossOutput(total=total, weight=torch.tensor(float(len(batch))))


@dataclass(frozen=True)
class Located:
    """A loss that teaches nothing, and writes the process id of the actor to `pid_file`."""

    pid_file: str

    def __call__(self, batch: Any, evaluation: Any) -> LossOutput[Any]:
        locate(self.pid_file)
        return LossOutput(total=(evaluation.logprob * 0).sum(), weight=torch.tensor(float(len(batch))))
