"""Workers of a reasoning run that wait at a place of their own, so that a test can end them there.

Who waits writes its process id to `<folder>/<place>`, and goes on when `<folder>/go` is there. It happens once in a run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from toy_reasoning import TinyLM

from rlinf.engines import BucketWeightSync, FullWeightSync


def wait_here(folder: str, place: str) -> None:
    mark, go = Path(folder) / place, Path(folder) / "go"
    if mark.exists():
        return
    unfinished = mark.with_suffix(".part")
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(mark)
    while not go.exists():
        time.sleep(0.05)


def is_worker(group: str, rank: int) -> bool:
    return os.environ.get("GROUP_NAME") == group and os.environ.get("RANK") == str(rank)


@dataclass(frozen=True)
class HeldLM(TinyLM):
    """One worker waits: rollout 1 where it is built (`at: init`) or in its first pass with weights that learned (`pass`), the
    actor in its first pass with a graph (`train`), inference in its first one (`refer`). Rollout 1 says which process it is."""

    folder: str = ""
    at: str = ""

    def build(self, *, seed: int) -> Any:
        model = super().build(seed=seed)
        if is_worker("rollout", 1):
            Path(self.folder, "rollout-1").write_text(str(os.getpid()))
            if self.at == "init":
                wait_here(self.folder, "init")
        for group, rank, place in (("rollout", 1, "pass"), ("actor", 0, "train"), ("inference", 0, "refer")):
            if self.at == place and is_worker(group, rank):
                self._hold(model.network)
        return model

    def _hold(self, network: Any) -> None:
        weight = network.get_output_embeddings().weight
        before = weight.detach().clone()
        due = {"pass": lambda: not torch.equal(weight, before), "train": torch.is_grad_enabled, "refer": lambda: True}[self.at]

        def wait(*_: Any) -> None:
            if due():
                wait_here(self.folder, self.at)

        network.base_model.register_forward_pre_hook(wait)


@dataclass(frozen=True)
class HeldReward:
    """The first score waits."""

    folder: str

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        wait_here(self.folder, "score")
        return [float(text == answer) for text, answer in zip(completions, answers, strict=True)]


class _Listening:
    """A messenger that waits before it receives for the n-th time."""

    def __init__(self, messenger: Any, nth: int, folder: str) -> None:
        self._messenger, self._left, self._folder = messenger, nth, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messenger, name)

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if not self._left:
            wait_here(self._folder, "sync")
        return self._messenger.recv(*args, **kwargs)


@dataclass(frozen=True)
class HeldSync:
    """Rollout 1 waits in the midst of replacing weights of that version."""

    folder: str
    way: str = "full"
    nth: int = 1
    version: int = 0

    def send(self, comm: Any, weights: Any, group: str, ranks: Sequence[int]) -> None:
        self._sync().send(comm, weights, group, ranks)

    def recv(self, comm: Any, current: Any, group: str, rank: int) -> Any:
        held = is_worker("rollout", 1) and current.version == self.version
        return self._sync().recv(_Listening(comm, self.nth, self.folder) if held else comm, current, group, rank)

    def _sync(self) -> Any:
        return BucketWeightSync() if self.way == "bucket" else FullWeightSync()
