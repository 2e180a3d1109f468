"""`PolicySFTActor`: one rank that learns what was demonstrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rlinf.core.capabilities import FitsStatistics, HasSFTLoss, TakesPolicyLoss
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.metrics import Statistic
from rlinf.core.random import keyed_seed
from rlinf.core.trajectory import Batch
from rlinf.runners.embodied_sft.demonstrations import COUNTED, Demonstrations, Imitation, held_out
from rlinf.runners.embodied_sft.schema import EmbodiedSFTConfig
from rlinf.runners.sft.worker import FineTuningWorker
from rlinf.runners.training.data_shares import share_of
from rlinf.runners.training.devices import placed

_AT_ONCE = 64
"""Examples of a validation batch where no micro-batch says how many fit."""


@dataclass(frozen=True, slots=True)
class _State:
    """What a rank works with once it is initialised."""

    tasks: Sequence[str]
    train: Demonstrations
    validation: Demonstrations


class PolicySFTActor(FineTuningWorker):
    """One rank of data-parallel training on demonstrations.

    Args:
        cfg: the configuration of the run.
        spec: the environment that the policy is for; None: what the dataset says of it.
    """

    cfg: EmbodiedSFTConfig

    def __init__(self, cfg: EmbodiedSFTConfig, spec: EnvSpec | None = None) -> None:
        super().__init__(cfg)
        self._spec = spec
        self._state: _State | None = None

    def init_worker(self) -> int:
        """Reads the episodes and builds the trainer; every rank calls it. Returns how many examples there are.

        Raises:
            ConfigError: the policy or the trainer can't learn from demonstrations, or a step has fewer examples than ranks.
        """
        self.check_batch()
        data, model = self.cfg.data, self.cfg.actor.model
        source = data.dataset.open()
        episodes = list(source.episodes())
        tasks = sorted({episode.task for episode in episodes})
        chunk = data.chunk_length or traits_of(model.config).chunk or 1
        split = len(episodes) - held_out(len(episodes), data.val_episodes)
        train, validation = (Demonstrations(part, chunk=chunk, tasks=tasks) for part in (episodes[:split], episodes[split:]))
        spec, seed = self._spec or source.spec, keyed_seed(self.cfg.runner.seed, "model")
        policy = placed(model.build(spec, seed=seed), self)
        if not isinstance(policy, HasSFTLoss):
            raise ConfigError(
                "actor.model.model_type", f"{type(policy).__name__} can't learn from demonstrations", "Choose another."
            )
        self.start(policy, lambda: self._fit(policy, train), lambda section: section.build(spec, seed=seed))
        if not isinstance(self.trainer, TakesPolicyLoss):
            found = f"'{self.cfg.actor.training_backend}' trains on scored decisions only"
            raise ConfigError("actor.training_backend", found, "Use fsdp.")
        self._state = _State(tasks, train, validation)
        return len(train)

    def count(self) -> int:
        """The steps of all episodes that are learned."""
        return len(self._ready().train)

    def take_step(self, chosen: Sequence[int], step: int) -> Mapping[str, Statistic]:
        """See `FineTuningWorker`."""
        state = self._ready()
        size = self.cfg.actor.micro_batch_size or len(chosen)
        parts = [state.train.batch(chosen[begin : begin + size]) for begin in range(0, len(chosen), size)]
        return self._policy_trainer.step_policy(parts, self._loss("sft loss", step))

    def validate(self) -> Mapping[str, Statistic]:
        """The loss of the episodes held out, over all ranks; every rank calls it. What it draws is the same each time."""
        state = self._ready()
        share, shares = share_of(self.cfg.actor.trainer, self.rank, self.world_size)
        mine = list(range(len(state.validation)))[share::shares]
        size = self.cfg.actor.micro_batch_size or _AT_ONCE
        parts = [state.validation.batch(mine[begin : begin + size]) for begin in range(0, len(mine), size)]
        # A rank without an example computes along, and nothing of it counts.
        parts = parts or [_uncounted(state.validation.batch([0]))]
        return self._policy_trainer.measure_policy(parts, self._loss("validation loss", 0))

    def _fit(self, policy: Any, train: Demonstrations) -> None:
        """Gives the policy the statistics of the episodes that are learned, in place of those of the weights it starts from."""
        if self.cfg.data.statistics == "dataset" and isinstance(policy, FitsStatistics):
            policy.fit_statistics(action=train.action, states=train.column("states"))

    @property
    def _policy_trainer(self) -> TakesPolicyLoss:
        assert isinstance(self.trainer, TakesPolicyLoss)  # `init_worker` has seen to it
        return self.trainer

    def _loss(self, purpose: str, step: int) -> Imitation:
        seed = keyed_seed(self.cfg.runner.seed, purpose, step, self.rank)
        return Imitation(self._ready().tasks, torch.Generator().manual_seed(seed))

    def _ready(self) -> _State:
        if self._state is None:
            raise RLinfError(f"actor[{self.rank}]", "has no examples yet", "Call init_worker() first.")
        return self._state


def _uncounted(batch: Batch[Any]) -> Batch[Any]:
    """The batch with a mask that leaves nothing of it."""
    context: dict[str, Any] = dict(batch.trajectory.context)
    context[COUNTED] = np.zeros_like(context[COUNTED])
    return replace(batch, trajectory=replace(batch.trajectory, context=context))
