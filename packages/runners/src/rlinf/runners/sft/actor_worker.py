"""`SFTActor`: one rank that learns worked solutions by heart, and says how well it knows those held out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.data import Batch, Weights
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Tokenizer
from rlinf.core.metrics import Metric, Statistic
from rlinf.core.random import keyed_seed
from rlinf.runners.checkpoints.export import export_network
from rlinf.runners.lazy import torch
from rlinf.runners.reasoning.language import build_image_processor, build_tokenizer, problems_of
from rlinf.runners.sft.examples import CrossEntropy, Example, laid_out, packed, read_examples
from rlinf.runners.sft.schema import SFTConfig
from rlinf.runners.sft.worker import FineTuningWorker
from rlinf.runners.training.agreement import evaluated, of_ranks
from rlinf.runners.training.data_shares import share_of
from rlinf.runners.training.devices import placed


@dataclass(frozen=True, slots=True)
class _State:
    """What a rank works with once it is initialised."""

    tokenizer: Tokenizer
    train: Sequence[Example]
    validation: Sequence[Example]


class SFTActor(FineTuningWorker[_State]):
    """One rank of data-parallel training on worked solutions."""

    cfg: SFTConfig

    def init_worker(self) -> int:
        """Reads the examples and builds the trainer; every rank calls it. Returns how many examples there are.

        Raises:
            ConfigError: the model writes no text, or there are fewer examples in a step than ranks.
        """
        self.cfg.check_actors(self.world_size)
        tokenizer = build_tokenizer(self.cfg.actor.model, self.cfg.data.task)
        self.start(self._policy())
        data = self.cfg.data
        read = partial(
            read_examples,
            data.task,
            tokenizer=tokenizer,
            max_length=data.max_length,
            model=self.cfg.actor.model.config,
            use=data.agent,
            mask_history=data.mask_history,
        )
        train, held_out = read("train"), read("validation", limit=data.val_problems)
        self._state = _State(tokenizer, train, held_out)
        return len(train)

    def take_step(self, chosen: Sequence[int], step: int) -> Mapping[str, Statistic]:
        del step  # nothing is drawn
        train = self._ready().train
        return self.trainer.step(self._batches([train[at] for at in chosen]), CrossEntropy())

    def validate(self) -> Mapping[str, Statistic]:
        """The loss of the examples held out, over all ranks, in nats a token, and its exponential; every rank calls it."""
        state = self._ready()
        share, shares = share_of(self.cfg.actor.trainer, self.rank, self.world_size)
        # A rank without an example computes along and is not counted.
        batches = self._batches(state.validation[share::shares] or state.validation[:1])
        rounds = max(of_ranks(self.trainer, len(batches), rank=self.rank, world_size=self.world_size))
        found = evaluated(self.trainer.evaluate, batches, lambda batch: batch, rounds=rounds)
        # Float32 would lose digits over many tokens. Where ranks share a model, their equal sums cancel in the mean.
        sums = torch.zeros(2, dtype=torch.float64)
        for batch, rescored in zip(batches, found, strict=True) if share < len(state.validation) else ():
            mask = batch.trajectory.mask
            sums += torch.stack([-rescored.logprob.cpu().double()[mask].sum(), mask.sum().double()])
        total, weight = self.trainer.all_reduce(sums).tolist()
        # `exp` overflows above 709.
        return {"loss": Metric(total, weight), "perplexity": Metric(math.exp(min(total / weight, 700.0)))}

    def export(self, folder: str) -> None:
        """Writes model and tokenizer in the layout of Hugging Face, adapters merged; every rank calls it."""
        state = self._ready()
        weights: Weights[Any] = self.trainer.weights()
        if self.rank == 0:
            images = build_image_processor(self.cfg.actor.model.config, problems_of(self.cfg.data.task, "train"))
            export_network(self._policy(), weights, state.tokenizer, images, Path(folder))

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
