"""`PolicySFTActor`: one rank that learns what was demonstrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlinf.core.capabilities import FitsStatistics, HasSFTLoss
from rlinf.core.data import Batch, EnvSpec
from rlinf.core.data.offline import ADVANTAGE_LABELS, OfflineEpisode, OfflineSource
from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError
from rlinf.core.metrics import Statistic
from rlinf.core.protocols import WeightSync
from rlinf.core.random import keyed_seed
from rlinf.core.rewards import LearnsOffsets, LearnsReturns
from rlinf.runners.embodied_sft.dataset import grown
from rlinf.runners.embodied_sft.demonstrations import COUNTED, RETURNS, Demonstrations, Imitation, Progress, Valuation, held_out
from rlinf.runners.embodied_sft.labels import labels_of
from rlinf.runners.embodied_sft.returns import returns_of, solved_of
from rlinf.runners.embodied_sft.schema import EmbodiedSFTConfig
from rlinf.runners.lazy import torch
from rlinf.runners.sft.worker import FineTuningWorker
from rlinf.runners.training.data_shares import share_of
from rlinf.runners.training.devices import placed
from rlinf.runners.training.publishing import publish

_AT_ONCE = 64
"""Examples of a validation batch where no micro-batch says how many fit."""


@dataclass(frozen=True, slots=True)
class _State:
    """What a rank works with once it is initialised."""

    tasks: Sequence[str]
    train: Demonstrations
    validation: Demonstrations


class PolicySFTActor(FineTuningWorker[_State]):
    """One rank of data-parallel training on demonstrations.

    Args:
        cfg: the configuration of the run.
        spec: the environment that the policy is for; None: what the dataset says of it.
    """

    cfg: EmbodiedSFTConfig

    def __init__(self, cfg: EmbodiedSFTConfig, spec: EnvSpec | None = None) -> None:
        super().__init__(cfg)
        self._spec = spec

    def init_worker(self) -> int:
        """Reads the episodes and builds the trainer; every rank calls it. Returns how many examples there are.

        Raises:
            ConfigError: the policy or the trainer can't learn from demonstrations, or a step has fewer examples than ranks.
        """
        self.cfg.check_actors(self.world_size)
        model, state = self.cfg.actor.model, self._read()
        spec, seed = self._spec or self._source().spec, keyed_seed(self.cfg.runner.seed, "model")
        policy = placed(model.build(spec, seed=seed), self)
        learns = {None: HasSFTLoss, "states": LearnsReturns, "pairs of states": LearnsOffsets}
        if not isinstance(policy, learns[self._judges]):
            raise ConfigError(
                "actor.model.model_type", f"{type(policy).__name__} can't learn from demonstrations", "Choose another."
            )
        self.start(policy, lambda: self._fit(policy, state.train), spec)
        self._state, self._policy_trainer = state, self.policy_trainer()
        return len(state.train)

    def read_examples(self) -> None:
        """Reads the episodes again, as there are more; every rank calls it."""
        self._state = self._read()

    def sync_model_to_rollout(self, sync: WeightSync, group: str, ranks: int) -> int:
        """Publishes the weights to rollout workers; returns their version.

        Args:
            sync: how weights travel.
            group: the name of the workers' group.
            ranks: its size.
        """
        return publish(self.trainer, sync, self.messenger, rank=self.rank, group=group, receivers=range(ranks))

    def take_step(self, chosen: Sequence[int], step: int) -> Mapping[str, Statistic]:
        state = self._ready()
        size = self.cfg.actor.micro_batch_size or len(chosen)
        pairs = self._pairs("pairs", step)
        parts = [state.train.batch(chosen[begin : begin + size], pairs=pairs) for begin in range(0, len(chosen), size)]
        return self._policy_trainer.step_policy(parts, self._loss("sft loss", step))

    def validate(self) -> Mapping[str, Statistic]:
        """The loss of the episodes held out, over all ranks; every rank calls it. What it draws is the same each time."""
        state = self._ready()
        share, shares = share_of(self.cfg.actor.trainer, self.rank, self.world_size)
        mine = list(range(len(state.validation)))[share::shares]
        size = self.cfg.actor.micro_batch_size or _AT_ONCE
        pairs = self._pairs("validation pairs", 0)
        parts = [state.validation.batch(mine[begin : begin + size], pairs=pairs) for begin in range(0, len(mine), size)]
        # A rank without an example computes along, and nothing of it counts.
        parts = parts or [_uncounted(state.validation.batch([0], pairs=pairs))]
        return self._policy_trainer.measure_policy(parts, self._loss("validation loss", 0))

    def _source(self) -> OfflineSource:
        """What is learned: `data`, or the dataset that begins with it and grows."""
        return (self.cfg.data.dataset if self.cfg.dagger is None else grown(self.cfg)).open()

    def _read(self) -> _State:
        data, episodes = self.cfg.data, list(self._source().episodes())
        if self._judges == "pairs of states":
            episodes = list(solved_of(episodes))
        tasks = sorted({episode.task for episode in episodes})
        chunk = data.chunk_length or traits_of(self.cfg.actor.model.config).chunk or 1
        # What is held out stays the same while a dataset grows: the last demonstrations.
        given = len(episodes) if self.cfg.dagger is None else len(data.dataset.open())
        split = given - held_out(given, data.val_episodes)
        only = self.cfg.dagger is not None and self.cfg.dagger.learn == "interventions"
        columns = self._columns(episodes)

        def examples(rows: Sequence[int]) -> Demonstrations:
            known = {name: [column[row] for row in rows] for name, column in columns.items()}
            return Demonstrations([episodes[row] for row in rows], chunk=chunk, tasks=tasks, columns=known, interventions=only)

        learned = [*range(split), *range(given, len(episodes))]
        return _State(tasks, examples(learned), examples(range(split, given)))

    def _columns(self, episodes: Sequence[OfflineEpisode]) -> Mapping[str, Sequence[Any]]:
        """What else is learned of each step: its return, or whether its action was good."""
        data = self.cfg.data
        if self._judges == "states":
            return {RETURNS: returns_of(episodes, failure_penalty=data.failure_penalty)}
        if data.labels is None:
            return {}
        return {ADVANTAGE_LABELS: [labels.astype(np.int64) for labels in labels_of(data.labels, episodes)]}

    @property
    def _judges(self) -> str | None:
        """What is judged by a model that does not act, which is trained; None of a policy."""
        return traits_of(self.cfg.actor.model.config).judges

    def _pairs(self, purpose: str, step: int) -> np.random.Generator | None:
        """Draws the second frame of each example, where pairs of them are judged."""
        if self._judges != "pairs of states":
            return None
        return np.random.default_rng(keyed_seed(self.cfg.runner.seed, purpose, step, self.rank))

    def _fit(self, policy: Any, train: Demonstrations) -> None:
        """Gives the policy the statistics of the episodes that are learned, in place of those of the weights it starts from."""
        if self.cfg.data.statistics == "dataset" and isinstance(policy, FitsStatistics):
            policy.fit_statistics(action=train.action, states=train.column("states"))

    def _loss(self, purpose: str, step: int) -> Imitation | Valuation | Progress:
        if self._judges is not None:
            return (Valuation if self._judges == "states" else Progress)(self._ready().tasks)
        seed = keyed_seed(self.cfg.runner.seed, purpose, step, self.rank)
        return Imitation(self._ready().tasks, torch.Generator().manual_seed(seed))


def _uncounted(batch: Batch[Any]) -> Batch[Any]:
    """The batch with a mask that leaves nothing of it."""
    context: dict[str, Any] = dict(batch.trajectory.context)
    # The loss of demonstrations counts by this, not by the mask of the trajectory.
    context[COUNTED] = np.zeros_like(context[COUNTED])
    return replace(batch, trajectory=replace(batch.trajectory, context=context))
