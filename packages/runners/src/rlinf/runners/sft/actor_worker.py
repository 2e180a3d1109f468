"""`SFTActor`: one rank that learns worked solutions by heart, and says how well it knows those held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.data import Weights
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.metrics import Metric, Statistic, merge
from rlinf.core.problems import Tokenizer
from rlinf.core.protocols import Trainer
from rlinf.core.random import keyed_seed
from rlinf.core.trajectory import Batch
from rlinf.core.worker import Worker
from rlinf.runners.checkpoints.export import export_network
from rlinf.runners.checkpoints.starting_weights import load_starting_weights
from rlinf.runners.reasoning.language import build_image_processor, build_tokenizer
from rlinf.runners.sft.examples import CrossEntropy, Example, drawn, laid_out, packed, read_examples
from rlinf.runners.sft.schema import SFTConfig
from rlinf.runners.training.data_shares import share_of
from rlinf.runners.training.devices import placed


@dataclass(frozen=True, slots=True)
class _State:
    """What a rank works with once it is initialised."""

    tokenizer: Tokenizer
    trainer: Trainer
    train: Sequence[Example]
    validation: Sequence[Example]


class SFTActor(Worker):
    """One rank of data-parallel training."""

    def __init__(self, cfg: SFTConfig) -> None:
        self.cfg = cfg
        self._state: _State | None = None

    def init_worker(self) -> int:
        """Reads the examples and builds the trainer; every rank calls it. Returns how many examples there are.

        Raises:
            ConfigError: the model writes no text, or there are fewer examples in a step than ranks.
        """
        torch.set_num_threads(self.threads)
        batch = self.cfg.actor.global_batch_size
        if batch < self.world_size:
            problem = f"{batch} examples can't be parted over {self.world_size} ranks"
            raise ConfigError("actor.global_batch_size", problem, "Raise it.")
        tokenizer = build_tokenizer(cast("Any", self.cfg))
        policy = self._policy()
        if self.cfg.runner.ckpt_path is not None:
            load_starting_weights(policy, self.cfg.runner.ckpt_path)
        data = self.cfg.data
        trainer = self.cfg.actor.trainer.build(
            policy,
            rank=self.rank,
            world_size=self.world_size,
            rendezvous=self.rendezvous,
            training_steps=self.cfg.optimizer_steps,
        )
        model, longest = self.cfg.actor.model.config, data.max_length
        train = read_examples(data.task, "train", tokenizer, max_length=longest, model=model)
        held_out = read_examples(data.task, "validation", tokenizer, max_length=longest, limit=data.val_problems, model=model)
        self._state = _State(tokenizer, trainer, train, held_out)
        return len(train)

    def train_steps(self, first: int, count: int) -> Mapping[str, Statistic]:
        """Takes optimizer steps; every rank calls it.

        Args:
            first: the step, counted from 0 over the whole run, which says what is learned in it.
            count: how many.
        """
        state, size = self._ready(), self.cfg.actor.global_batch_size
        share, shares = share_of(self.cfg.actor.trainer, self.rank, self.world_size)
        metrics: list[Mapping[str, Statistic]] = []
        for step in range(first, first + count):
            chosen = [state.train[at] for at in drawn(len(state.train), step, size, self.cfg.runner.seed)]
            metrics.append(state.trainer.step(self._batches(chosen[share::shares]), CrossEntropy()))
        return merge(metrics)

    def validate(self) -> Mapping[str, Statistic]:
        """The loss of the examples held out, over all ranks; every rank calls it."""
        state = self._ready()
        share, shares = share_of(self.cfg.actor.trainer, self.rank, self.world_size)
        # Evaluating needs all ranks: one without an example, or with fewer batches, computes along and is not counted.
        mine = state.validation[share::shares] or state.validation[:1]
        batches = self._batches(mine)
        counts = torch.zeros(self.world_size)
        counts[self.rank] = len(batches)
        rounds = int(state.trainer.all_reduce(counts).max())
        # Float32 would lose digits over many tokens. Where ranks share a model, their equal sums cancel in the mean.
        sums = torch.zeros(2, dtype=torch.float64)
        for turn in range(rounds):
            batch = batches[min(turn, len(batches) - 1)]
            logprob, mask = state.trainer.evaluate(batch).logprob.cpu().double(), batch.trajectory.mask
            if turn < len(batches) and share < len(state.validation):
                sums += torch.stack([-logprob[mask].sum(), mask.sum().double()])
        total, weight = state.trainer.all_reduce(sums).tolist()
        return {"nll": Metric(total, weight)}

    def save_checkpoint(self, folder: str) -> None:
        """Writes this rank's share of a checkpoint into a folder that exists; every rank calls it."""
        self._ready().trainer.save(Path(folder))

    def load_checkpoint(self, folder: str) -> None:
        """Restores what `save_checkpoint` wrote; every rank calls it."""
        self._ready().trainer.load(Path(folder))

    def export(self, folder: str) -> None:
        """Writes model and tokenizer in the layout of Hugging Face, adapters merged; every rank calls it."""
        state = self._ready()
        weights: Weights[Any] = state.trainer.weights()
        if self.rank == 0:
            processor = build_image_processor(self.cfg.actor.model.config, self.cfg.data.task.problems("train"))
            export_network(self._policy(), weights, state.tokenizer, processor, Path(folder))

    def close(self) -> None:
        """Leaves the other ranks; every rank calls it, last."""
        self._ready().trainer.close()

    def _batches(self, examples: Sequence[Example]) -> list[Batch[torch.Tensor]]:
        """Micro-batches of rows."""
        data, pad = self.cfg.data, self._ready().tokenizer.pad_token_id
        # By length, so that rows of one batch need little padding.
        rows = packed(examples, data.max_length) if data.packing else [[each] for each in sorted(examples, key=len)]
        size = self.cfg.actor.micro_batch_size or len(rows)
        return [laid_out(rows[begin : begin + size], pad_id=pad) for begin in range(0, len(rows), size)]

    def _policy(self) -> Any:
        policy = self.cfg.actor.model.build(seed=keyed_seed(self.cfg.runner.seed, "model"))
        if not isinstance(policy, LanguageModelPolicy):
            raise ConfigError("actor.model.model_type", f"{type(policy).__name__} writes no text", "Choose a language model.")
        if policy.temperature != 1.0:
            found = f"expected 1 for learning from examples, found {policy.temperature:g}"
            raise ConfigError("actor.model.temperature", found, "Leave it out.")
        return placed(policy, self)

    def _ready(self) -> _State:
        if self._state is None:
            raise RLinfError(f"actor[{self.rank}]", "has no trainer yet", "Call init_worker() first.")
        return self._state
