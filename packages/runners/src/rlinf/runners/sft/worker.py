"""`FineTuningWorker`: what a rank does that learns from examples, whatever they are examples of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rlinf.core.capabilities import TakesPolicyLoss
from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.metrics import Statistic, merge
from rlinf.core.protocols import Trainer
from rlinf.core.worker import Worker
from rlinf.runners.checkpoints.starting_weights import fitting_model, load_starting_weights
from rlinf.runners.lazy import torch
from rlinf.runners.sft.examples import drawn
from rlinf.runners.sft.schema import FineTuningConfig
from rlinf.runners.training.data_shares import share_of
from rlinf.runners.training.devices import build_trainer


class HasExamples(Protocol):
    """What a rank works with once it is initialised."""

    @property
    def train(self) -> Sized:
        """What it learns from."""
        ...


S = TypeVar("S", bound=HasExamples)


class FineTuningWorker(Worker, ABC, Generic[S]):
    """One rank of data-parallel training; `S` is what it works with once it is initialised.

    Args:
        cfg: the configuration of the run.
    """

    def __init__(self, cfg: FineTuningConfig) -> None:
        self.cfg = cfg
        self._trainer: Trainer | None = None
        self._state: S | None = None

    @abstractmethod
    def init_worker(self) -> int:
        """Reads the examples and builds the trainer with `start`; every rank calls it. Returns how many examples there are."""

    @abstractmethod
    def take_step(self, chosen: Sequence[int], step: int) -> Mapping[str, Statistic]:
        """One optimizer step on this rank's share of the examples of a step.

        Args:
            chosen: the numbers of the examples.
            step: counted from 0 over the whole run.
        """

    @abstractmethod
    def validate(self) -> Mapping[str, Statistic]:
        """The `loss` of the examples held out, over all ranks, which all say the same; every rank calls it."""

    def count(self) -> int:
        """How many examples there are to learn from: solutions or pairs that are short enough, or steps of demonstrations."""
        return len(self._ready().train)

    def start(self, policy: Any, prepare: Callable[[], None] | None = None, spec: EnvSpec | None = None) -> None:
        """Loads the weights that the run starts from, and builds the trainer; every rank calls it.

        Args:
            policy: what is trained.
            prepare: changes the policy between the two.
            spec: what the policy acts in; None of one that does not act.
        """
        torch.set_num_threads(self.threads)
        if self.cfg.runner.ckpt_path is not None:
            load_starting_weights(policy, self.cfg.runner.ckpt_path, model=self.cfg.actor.model, spec=spec)
        if prepare is not None:
            prepare()
        self._trainer = build_trainer(self.cfg.actor.trainer, policy, self, self.cfg.optimizer_steps)

    def train_steps(self, first: int, count: int) -> Mapping[str, Statistic]:
        """Takes optimizer steps; every rank calls it.

        Args:
            first: the step, counted from 0 over the whole run, which says what is learned in it.
            count: how many.
        """
        size, seed = self.cfg.actor.global_batch_size, self.cfg.runner.seed
        share, shares = share_of(self.cfg.actor.trainer, self.rank, self.world_size)
        metrics: list[Mapping[str, Statistic]] = []
        for step in range(first, first + count):
            # Every rank draws the whole batch, and takes its share of it.
            chosen = list(drawn(self.count(), step, size, seed))
            metrics.append(self.take_step(chosen[share::shares], step))
        return merge(metrics)

    def save_checkpoint(self, folder: str) -> None:
        """Writes this rank's share of a checkpoint into a folder that exists; every rank calls it."""
        self.trainer.save(Path(folder))

    def load_checkpoint(self, folder: str) -> None:
        """Restores what `save_checkpoint` wrote; every rank calls it."""
        with fitting_model(Path(folder).parent, self.cfg.source, self.cfg.actor.model):
            self.trainer.load(Path(folder))

    def close(self) -> None:
        """Leaves the other ranks; every rank calls it, last."""
        self.trainer.close()

    def _ready(self) -> S:
        if self._state is None:
            raise RLinfError(f"actor[{self.rank}]", "has no examples yet", "Call init_worker() first.")
        return self._state

    @property
    def trainer(self) -> Trainer:
        """Owns the weights; there is one after `start`."""
        if self._trainer is None:
            raise RLinfError(f"actor[{self.rank}]", "has no trainer yet", "Call init_worker() first.")
        return self._trainer

    def policy_trainer(self) -> TakesPolicyLoss:
        """The trainer, for losses that ask the policy for more than scores.

        Raises:
            ConfigError: it takes none.
        """
        trainer = self.trainer
        if not isinstance(trainer, TakesPolicyLoss):
            found = f"'{self.cfg.actor.training_backend}' trains on scored decisions only"
            raise ConfigError("actor.training_backend", found, "Use fsdp.")
        return trainer
