"""`RewardModelActor`: one rank that learns which of two responses was preferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.core.capabilities import TakesPolicyLoss
from rlinf.core.data import Batch, LossOutput, Trajectory, Weights
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Tokenizer
from rlinf.core.metrics import Statistic
from rlinf.core.random import keyed_seed
from rlinf.core.rewards import LearnsPreferences
from rlinf.runners.lazy import torch
from rlinf.runners.reasoning.language import HasTokenizer
from rlinf.runners.sft.pairs import Pair, batches_of, read_pairs, texts_of
from rlinf.runners.sft.schema import RewardModelConfig
from rlinf.runners.sft.worker import FineTuningWorker
from rlinf.runners.training.data_shares import share_of
from rlinf.runners.training.devices import placed

if TYPE_CHECKING:
    from torch import Tensor

_AT_ONCE = 64
"""Pairs of a validation batch where no micro-batch says how many fit."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """How surprising it is to the model which responses were preferred: its own `preference_loss`."""

    def of_policy(self, policy: LearnsPreferences, batch: Batch[Any]) -> LossOutput[Any]:
        """The sum over the pairs that count, and their number."""
        context: Any = batch.trajectory.context
        output = policy.preference_loss(context["chosen"], context["rejected"])
        # A rank that only keeps pace has a batch of which nothing counts.
        return (
            output
            if bool(batch.trajectory.mask.any())
            else replace(output, total=output.total * 0, weight=output.weight * 0, metrics={})
        )


@dataclass(frozen=True, slots=True)
class _State:
    """What a rank works with once it is initialised."""

    tokenizer: Tokenizer
    train: Sequence[Pair]
    validation: Sequence[Pair]
    trainer: TakesPolicyLoss


class RewardModelActor(FineTuningWorker[_State]):
    """One rank of data-parallel training on pairs of responses."""

    cfg: RewardModelConfig

    def init_worker(self) -> int:
        """Reads the pairs and builds the trainer; every rank calls it. Returns how many pairs there are.

        Raises:
            ConfigError: the model or the trainer can't learn from pairs, or there are fewer pairs in a step than ranks.
        """
        self.cfg.check_actors(self.world_size)
        data, model = self.cfg.data, self.cfg.actor.model
        if not isinstance(model.config, HasTokenizer):
            raise ConfigError("actor.model.model_type", f"'{model.model_type}' has no tokenizer", "Choose sequence_reward.")
        tokenizer = model.config.tokenizer(list(texts_of(data, "train")))
        self.start(self._policy())
        trainer = self.policy_trainer()
        train, held_out = read_pairs(data, "train", tokenizer), read_pairs(data, "validation", tokenizer, limit=data.val_problems)
        self._state = _State(tokenizer, train, held_out, trainer)
        return len(train)

    def take_step(self, chosen: Sequence[int], step: int) -> Mapping[str, Statistic]:
        del step  # nothing is drawn
        state = self._ready()
        parts = batches_of([state.train[at] for at in chosen], self.cfg.actor.micro_batch_size)
        return state.trainer.step_policy([self._batch(part) for part in parts], Preferences())

    def validate(self) -> Mapping[str, Statistic]:
        """The loss of the pairs held out over all ranks, and the share that is ordered as people did; every rank calls it."""
        state = self._ready()
        share, shares = share_of(self.cfg.actor.trainer, self.rank, self.world_size)
        mine = state.validation[share::shares]
        parts = [
            self._batch(part) for part in batches_of(mine or state.validation[:1], self.cfg.actor.micro_batch_size or _AT_ONCE)
        ]
        if not mine:
            parts = [replace(part, trajectory=replace(part.trajectory, mask=part.trajectory.mask & False)) for part in parts]
        return state.trainer.measure_policy(parts, Preferences())

    def export(self, folder: str) -> None:
        """Writes model and tokenizer in the layout of Hugging Face, adapters merged; every rank calls it."""
        weights: Weights[Any] = self.trainer.weights()
        if self.rank == 0:
            policy = self._policy()
            policy.load(weights)
            policy.save(Path(folder))
            self._ready().tokenizer.save_pretrained(folder)

    def _batch(self, pairs: Sequence[Pair]) -> Batch[Tensor]:
        """Rows of whole texts, those that were preferred beside the others, padded to one width."""
        width = max(max(len(pair.chosen), len(pair.rejected)) for pair in pairs)
        pad = self._ready().tokenizer.pad_token_id
        sides = {"chosen": [pair.chosen for pair in pairs], "rejected": [pair.rejected for pair in pairs]}
        context = {name: _padded(texts, width, pad) for name, texts in sides.items()}
        shape = (len(pairs), width)
        action = torch.zeros((*shape, 1, 1), dtype=torch.long)
        mask = torch.ones(shape, dtype=torch.bool)
        return Batch.of(Trajectory.of(context=context, action=action, logprob=torch.zeros(shape), mask=mask))

    def _policy(self) -> Any:
        policy = self.cfg.actor.model.build(seed=keyed_seed(self.cfg.runner.seed, "model"))
        if not isinstance(policy, LearnsPreferences):
            found = f"{type(policy).__name__} can't learn from pairs"
            raise ConfigError("actor.model.model_type", found, "Choose sequence_reward.")
        return placed(policy, self)


def _padded(texts: Sequence[Sequence[int]], width: int, pad: int) -> dict[str, Tensor]:
    ids = torch.tensor([[*text, *[pad] * (width - len(text))] for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    return {"input_ids": ids, "segment_ids": (torch.arange(width) < lengths[:, None]).long()}
