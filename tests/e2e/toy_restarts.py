"""Pendulum and a weight sync whose workers write down which process they are, so that a test can end it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf.core.data import EnvSpec
from rlinf.engines import FullWeightSync
from rlinf.envs.gymnasium import Gymnasium


def mark(folder: str) -> None:
    """Writes `<group>-<rank>` with the process id of this worker."""
    name = f"{os.environ['GROUP_NAME']}-{os.environ['RANK']}"
    unfinished = Path(folder, f"{name}.part")
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(Path(folder, name))


@dataclass(frozen=True)
class MarkedPendulum:
    """Pendulum, as fast as a slow simulator."""

    folder: str
    step_s: float = 0.0

    def check(self, place: str) -> None:
        pass

    def make(self, num_envs: int, **options: Any) -> Any:
        mark(self.folder)
        env: Any = Gymnasium(env_id="Pendulum-v1").make(num_envs, **options)
        original = env.step

        def step(action: Any) -> Any:
            time.sleep(self.step_s)
            return original(action)

        env.step = step
        return env

    def describe(self, env: Any) -> EnvSpec:
        return Gymnasium(env_id="Pendulum-v1").describe(env)


@dataclass(frozen=True)
class MarkedSync:
    """The actor writes down which process it is when it sends weights."""

    folder: str

    def send(self, comm: Any, weights: Any, group: str, ranks: Sequence[int]) -> None:
        mark(self.folder)
        FullWeightSync().send(comm, weights, group, ranks)

    def recv(self, comm: Any, current: Any, group: str, rank: int) -> Any:
        return FullWeightSync().recv(comm, current, group, rank)
