"""Pendulum and a weight sync whose workers write down which process they are, so that a test can end it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from faulty import WatchedPendulum, locate

from rlinf.engines import FullWeightSync


def mark(folder: str) -> None:
    """Writes `<group>-<rank>` with the process id of this worker."""
    locate(f"{folder}/{os.environ['GROUP_NAME']}-{os.environ['RANK']}")


@dataclass(frozen=True)
class MarkedPendulum(WatchedPendulum):
    """Pendulum, as fast as a slow simulator."""

    folder: str
    step_s: float = 0.0

    def watch(self) -> Callable[[], None]:
        mark(self.folder)
        return lambda: time.sleep(self.step_s)


@dataclass(frozen=True)
class MarkedSync:
    """The actor writes down which process it is when it sends weights."""

    folder: str

    def send(self, comm: Any, weights: Any, group: str, ranks: Sequence[int]) -> None:
        mark(self.folder)
        FullWeightSync().send(comm, weights, group, ranks)

    def recv(self, comm: Any, current: Any, group: str, rank: int) -> Any:
        return FullWeightSync().recv(comm, current, group, rank)
