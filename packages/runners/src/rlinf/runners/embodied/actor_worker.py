"""`EmbodiedFSDPActor`: receives trajectories, gives credit, trains, and publishes its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from rlinf.core.capabilities import HasReference, PolicyLoss, RecurrentPolicy, TakesPolicyLoss
from rlinf.core.data import Batch, Rescored, Trajectory
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.metrics import Metric, Statistic, merge
from rlinf.core.protocols import Channel, HasObservationStatistics, Loss, Policy, Trainer
from rlinf.core.random import keyed_generator, keyed_seed
from rlinf.core.worker import Worker
from rlinf.runners.checkpoints.starting_weights import fitting_model, load_starting_weights
from rlinf.runners.embodied.filtering import without_cut_off, without_filtered
from rlinf.runners.embodied.playing.arrivals import Arrivals, joined
from rlinf.runners.embodied.playing.rows import group_metrics
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.embodied.topology import Topology
from rlinf.runners.embodied_sft.co_training import CoTraining
from rlinf.runners.lazy import torch
from rlinf.runners.training.agreement import coarsest, decision_logprobs, scores_of
from rlinf.runners.training.data_shares import uncounted
from rlinf.runners.training.devices import build_trainer, device_of, placed
from rlinf.runners.training.finite import check_credit, check_finite, check_logprobs
from rlinf.runners.training.offloading import Offloading
from rlinf.runners.training.products import choose_products
from rlinf.runners.training.publishing import publish
from rlinf.runners.training.reference import frozen, keeping_reference
from rlinf.runners.training.tensors import to_torch

Ask: TypeAlias = "Callable[[Batch[Any]], Rescored[torch.Tensor]]"
"""Says of decisions how likely they are."""


class EmbodiedFSDPActor(Worker):
    """One rank of data-parallel training."""

    def __init__(self, cfg: EmbodiedConfig) -> None:
        self.cfg = cfg
        self._topology: Topology | None = None
        self._policy: Any = None
        self._trainer: Trainer | None = None
        self._arrivals = Arrivals(self.rank)
        self._trajectory: Trajectory[torch.Tensor] | None = None
        self._batch: Batch[torch.Tensor] | None = None
        self._metrics: list[Mapping[str, Statistic]] = []
        """Of optimizer steps that were taken while trajectories arrived."""
        self._epochs_taken = 0
        """How many update epochs of the iteration these were."""
        self._reference: Ask | None = None
        self._co_training: CoTraining | None = None
        self._checked = False

    def init_worker(self, topology: Topology) -> None:
        """Builds the policy and its trainer; every rank calls it."""
        # By default torch takes all cores of the machine, which the workers on it share.
        torch.set_num_threads(self.threads)
        self._topology = topology
        self._policy = self._starting_policy(topology)
        keeping = keeping_reference(self.cfg.actor.trainer, self.cfg.reference)
        trainer = build_trainer(keeping or self.cfg.actor.trainer, self._policy, self, self.cfg.optimizer_steps)
        if isinstance(self.cfg.algorithm.loss, PolicyLoss) and not isinstance(trainer, TakesPolicyLoss):
            found = f"'{self.cfg.actor.training_backend}' trains on scores alone, '{self.cfg.algorithm.loss_type}' asks for more"
            raise ConfigError("actor.training_backend", found, "Use fsdp.")
        self._trainer = trainer
        if self.cfg.algorithm.co_training is not None:
            self._co_training = CoTraining(self.cfg, self._policy, trainer, rank=self.rank, world_size=self.world_size)
        if keeping is not None:
            self._reference = lambda batch: Rescored(logprob=cast("HasReference", trainer).reference(batch))
        elif self.cfg.reference.source != "none":
            own, model = self._starting_policy(topology), self.cfg.actor.model
            policy: Policy = frozen(own, self.cfg.reference, device_of(self), model, topology.spec)
            self._reference = torch.no_grad()(policy.default_forward)
        self._offloading = Offloading(trainer, self.cfg.actor, self)

    def sync_model_to_rollout(self) -> int:
        """Publishes the weights to all rollout workers; returns their version."""
        topology, trainer = self._ready()
        sync, receivers = self.cfg.actor.weight_syncer.sync, range(topology.rollout_ranks)
        with self._offloading.onloaded("parameters"):
            return publish(trainer, sync, self.messenger, rank=self.rank, group=topology.rollout, receivers=receivers)

    def recv_rollout_batch(self, trajectories: Channel, env_ranks: int) -> int:
        """Receives this rank's share of an iteration; returns its number of decisions.

        Args:
            trajectories: where `(env rank, Trajectory, number)` come from, keyed by actor rank.
            env_ranks: how many env workers send.
        """
        return self._keep(list(self._rollout_epochs(trajectories, env_ranks)))

    def train_on_arrival(self, step: int, trajectories: Channel, env_ranks: int) -> int:
        """Receives as `recv_rollout_batch`, and takes the first update epoch of the iteration meanwhile.

        Each rollout epoch is scored, credited and trained on as soon as all env workers have sent it, while they play the next one;
        the rollout keeps the weights with which the iteration began. What an advantage takes over a batch, such as a mean to
        normalise with, it takes over one rollout epoch then. Later update epochs see the whole iteration, as without.

        Args:
            step: the iteration, which keys the order of the decisions.
            trajectories: as for `recv_rollout_batch`.
            env_ranks: as for `recv_rollout_batch`.

        Returns:
            The number of decisions.
        """
        _, trainer = self._ready()
        arrived: list[Trajectory[torch.Tensor]] = []
        for number, rows in enumerate(self._rollout_epochs(trajectories, env_ranks)):
            with self.worker_timer("train_on_arrival"):
                # What was received is measured once, over the whole iteration, by `compute_advantages_and_returns`.
                kept, _ = self._prepared(trainer, rows)
                self._metrics += self._update_epoch(trainer, self._credited(trainer, kept), step, 0, number)
            # What a frozen policy says of decisions holds for later update epochs, too.
            arrived.append(replace(rows, reference=kept.reference))
        self._epochs_taken = 1
        return self._keep(arrived)

    def compute_advantages_and_returns(self) -> Mapping[str, Statistic]:
        """Gives credit to the decisions received last."""
        if self._trajectory is None:
            raise RLinfError(f"actor[{self.rank}]", "there is no rollout batch", "Call recv_rollout_batch(…) first.")
        _, trainer = self._ready()
        trajectory, metrics = self._prepared(trainer, self._trajectory)
        self._batch, self._trajectory = self._credited(trainer, trajectory), None
        if self._batch.credit.target is not None:
            target = self._batch.credit.target[self._batch.trajectory.mask]
            metrics["returns_mean"] = Metric(float(target.sum()), target.numel())
        return metrics

    def run_training(self, step: int) -> Mapping[str, Statistic]:
        """Updates the weights with the decisions received last; every rank takes the same number of optimizer steps.

        Args:
            step: the iteration, which keys the order of the decisions.

        Returns:
            The metrics of all updates of the iteration, those of `train_on_arrival` too.
        """
        _, trainer = self._ready()
        if self._batch is None:
            problem = "decisions have no credit yet"
            raise RLinfError(f"actor[{self.rank}]", problem, "Call compute_advantages_and_returns() first.")
        batch, self._batch = self._batch, None
        metrics, self._metrics = self._metrics, []
        first, self._epochs_taken = self._epochs_taken, 0
        with self._offloading.onloaded():
            for epoch in range(first, self.cfg.algorithm.update_epoch):
                metrics += self._update_epoch(trainer, batch, step, epoch)
            # After the updates, which compare with what was decided by the statistics of before.
            if metrics and isinstance(self._policy, HasObservationStatistics):
                self._policy.observe(batch, all_reduce=self._all_reduce(trainer))
        return merge(metrics)

    def receive_ahead(self, epochs: int, trajectories: Channel, env_ranks: int) -> None:
        """Waits for rollout epochs of later iterations, which have been played: a checkpoint has them, too."""
        self._arrivals.wait_for(epochs, trajectories, env_ranks)

    def save_checkpoint(self, folder: str) -> None:
        """Writes this rank's share of a checkpoint into a folder that exists; every rank calls it."""
        trainer = self._ready()[1]
        with self._offloading.onloaded():
            trainer.save(Path(folder))
        self._arrivals.save(Path(folder))

    def load_checkpoint(self, folder: str) -> None:
        """Restores what `save_checkpoint` wrote; every rank calls it."""
        trainer = self._ready()[1]
        with self._offloading.onloaded(), fitting_model(Path(folder).parent, self.cfg.source, self.cfg.actor.model):
            trainer.load(Path(folder))
        # What was played ahead was decided by weights that are gone; the gate was passed before.
        self._checked = self._arrivals.load(Path(folder))

    def close(self) -> None:
        """Leaves the other ranks; every rank calls it, last."""
        self._ready()[1].close()

    def _rollout_epochs(self, trajectories: Channel, env_ranks: int) -> Iterator[Trajectory[torch.Tensor]]:
        """This rank's share of each rollout epoch, as soon as all env workers have sent it."""
        for _ in range(self.cfg.env.train.rollout_epoch):
            with self.worker_timer("wait_for_trajectories"):
                parts = self._arrivals.next(trajectories, env_ranks)
            yield Trajectory.concat(parts)

    def _keep(self, epochs: Sequence[Trajectory[torch.Tensor]]) -> int:
        """Keeps the rows of an iteration for credit and training; returns its number of decisions."""
        self._trajectory = joined(epochs, groups=self.cfg.env.train.groups)
        return int(self._trajectory.mask.sum())

    def _prepared(self, trainer: Trainer, rows: Trajectory[torch.Tensor]) -> tuple[Trajectory[torch.Tensor], dict[str, Statistic]]:
        """What is trained on, with the scores that the algorithm needs, and metrics of what was received."""
        place, remedy = f"actor[{self.rank}]", "Look at the reward of env.train.env_type."
        check_finite("reward", rows.reward, rows, place=place, remedy=remedy)
        reward = rows.reward[rows.mask]
        metrics: dict[str, Statistic] = {"rewards": Metric(float(reward.sum()), reward.numel())}
        if self.cfg.env.train.group_size > 1:
            metrics |= group_metrics(rows)
        whole, cut_off = without_cut_off(rows, self.cfg)
        kept, filtered = without_filtered(whole, self.cfg.algorithm)
        with self.worker_timer("score"):
            return self._scored(trainer, kept), metrics | cut_off | filtered

    def _credited(self, trainer: Trainer, trajectory: Trajectory[torch.Tensor]) -> Batch[torch.Tensor]:
        """The trajectory with credit, in rows as they are trained on."""
        check_logprobs(trajectory, place=f"actor[{self.rank}]")
        credit = self.cfg.algorithm.advantage(trajectory, all_reduce=self._all_reduce(trainer))
        check_credit(credit, trajectory, place=f"actor[{self.rank}]")
        return self._parted(Batch(trajectory=trajectory, credit=credit))

    def _update_epoch(self, trainer: Trainer, batch: Batch[torch.Tensor], *key: int) -> list[Mapping[str, Statistic]]:
        """Uses each decision once, in an order of that key; every rank takes the same number of optimizer steps."""
        steps = self._steps(trainer, batch)
        # Every group was filtered, on all ranks.
        if not steps:
            return []
        metrics: list[Mapping[str, Statistic]] = [self._pass_gate(trainer, batch, math.ceil(len(batch) / steps))]
        order = keyed_generator(self.cfg.runner.seed, "shuffle", self.rank, *key).permutation(len(batch))
        for at, chosen in enumerate(np.array_split(order, steps)):
            if self._co_training is not None:
                metrics.append(self._co_training.add(*key, at))
            # A rank that has fewer decisions than there are steps takes the step all the same.
            part = batch.rows(to_torch(chosen)) if len(chosen) else uncounted(batch)
            size = self._size(part, len(part))
            metrics.append(_optimizer_step(trainer, list(part.micro_batches(size)), self.cfg.algorithm.loss))
        return metrics

    def _all_reduce(self, trainer: Trainer) -> Callable[[Any], Any] | None:
        return trainer.all_reduce if self.world_size > 1 else None

    def _scored(self, trainer: Trainer, trajectory: Trajectory[torch.Tensor]) -> Trajectory[torch.Tensor]:
        """The trajectory with what the algorithm needs of scores: those of the trainer itself, and of the reference policy."""
        asked: dict[str, Ask] = {}
        if self.cfg.algorithm.recompute_logprobs:
            asked["proximal"] = trainer.evaluate
        if self._reference is not None and trajectory.reference is None:
            asked["reference"] = self._reference
        if not asked:
            return trajectory
        batch = self._parted(Batch.of(trajectory))
        size = self._size(batch, math.ceil(len(batch) / max(1, self._steps(trainer, batch))))
        found: dict[str, Any] = {}
        for name, ask in asked.items():
            with self._offloading.onloaded("parameters"):
                logprob = self._logprobs(ask, trainer, batch, size)
            kept = torch.zeros_like(trajectory.logprob)
            # Both masks go through decisions row by row, whether or not each has a row of its own.
            kept[trajectory.mask] = logprob[batch.trajectory.mask].to(kept)
            found[name] = kept
        return replace(trajectory, **found)

    def _logprobs(self, ask: Ask, trainer: Trainer, batch: Batch[torch.Tensor], size: int) -> torch.Tensor:
        return decision_logprobs(ask, batch, trainer, size=size, rank=self.rank, world_size=self.world_size)

    def _parted(self, batch: Batch[torch.Tensor]) -> Batch[torch.Tensor]:
        """A row for each decision; for a policy with a memory for each piece of an episode.

        A memory is replayed from the state with which a row began, so that gradients flow back through time; see `_size`.
        """
        if isinstance(self._policy, RecurrentPolicy):
            return batch
        return batch.decisions() if batch.trajectory.mask.any() else uncounted(batch).columns(1)

    def _steps(self, trainer: Trainer, batch: Batch[torch.Tensor]) -> int:
        """Optimizer steps of an epoch; every rank calls it."""
        total = int(trainer.all_reduce(batch.trajectory.mask.sum().float()))
        # From the total: shares differ in size, and a rank that took fewer steps would keep the others waiting in theirs.
        return math.ceil(total / self.cfg.actor.global_batch_size)

    def _starting_policy(self, topology: Topology) -> Any:
        """The policy with the weights that the run starts from."""
        path, model = self.cfg.runner.ckpt_path, self.cfg.actor.model
        policy = placed(model.build(topology.spec, seed=keyed_seed(self.cfg.runner.seed, "model")), self)
        choose_products(policy)
        if path is not None:
            load_starting_weights(policy, path, model=model, spec=topology.spec)
        return policy

    def _pass_gate(self, trainer: Trainer, batch: Batch[Any], most: int) -> Mapping[str, Statistic]:
        """Before the first update, the trainer must score the rollout's decisions as the rollout did.

        Args:
            trainer: that of this rank.
            batch: what is trained on.
            most: rows of a forward pass that is not parted into micro-batches.
        """
        if self._checked:
            return {}
        size = self._size(batch, max(1, most))
        scores = scores_of(batch.trajectory, self._logprobs(trainer.evaluate, trainer, batch, size), version=trainer.version)
        precision = coarsest(self.cfg.actor.model.config, self.cfg.actor.trainer, self.cfg.rollout)
        measured = self.cfg.actor.build_gate(precision).check(scores, place=f"actor[{self.rank}]")
        self._checked = True
        return measured

    def _size(self, batch: Batch[Any], whole: int) -> int:
        """Rows of a micro-batch: of one decision each, or for a policy with a memory of a piece of an episode.

        A piece is at most `env.train.max_steps_per_rollout_epoch` decisions, which is how far gradients go back through time:
        what lies before enters as the state that was recorded, as in Mnih et al., "Asynchronous Methods for Deep Reinforcement
        Learning" (2016), arXiv:1602.01783.
        """
        size = self.cfg.actor.micro_batch_size
        return whole if size is None else max(1, size // batch.trajectory.horizon)

    def _ready(self) -> tuple[Topology, Trainer]:
        if self._topology is None or self._trainer is None:
            raise RLinfError(f"actor[{self.rank}]", "has no trainer yet", "Call init_worker(topology) first.")
        return self._topology, self._trainer


def _optimizer_step(trainer: Trainer, micro_batches: Sequence[Batch[Any]], loss: Loss | PolicyLoss) -> Mapping[str, Statistic]:
    """A step of a loss of what the policy says of its decisions, or of one that asks the policy for more."""
    if isinstance(loss, PolicyLoss):
        return cast("TakesPolicyLoss", trainer).step_policy(micro_batches, loss)
    return trainer.step(micro_batches, loss)
