"""`ReasoningActor`: receives groups of responses, gives credit, trains, and publishes its weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlinf.core.data import Evaluation
from rlinf.core.errors import RLinfError
from rlinf.core.metrics import Metric, Statistic, merge
from rlinf.core.protocols import Channel, Trainer
from rlinf.core.random import keyed_generator
from rlinf.core.trajectory import Batch, Trajectory
from rlinf.core.worker import Worker
from rlinf.runners.reasoning.language import build_policy, check_temperature
from rlinf.runners.reasoning.reference import ReferencePolicy
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.reasoning.scoring import Rows, padded_to, pieces, scattered, trimmed, widths, without_credit
from rlinf.runners.reasoning.wiring import ReasoningWiring
from rlinf.runners.tensors import to_torch


class ReasoningActor(Worker):
    """One rank of data-parallel training."""

    def __init__(self, cfg: ReasoningConfig) -> None:
        self.cfg = cfg
        self._wiring: ReasoningWiring | None = None
        self._trainer: Trainer | None = None
        self._reference: ReferencePolicy | None = None
        self._has_critic = False
        self._trajectory: Trajectory[Tensor] | None = None
        self._batch: Batch[Tensor] | None = None
        self._checked = False

    def init_worker(self, wiring: ReasoningWiring) -> None:
        """Builds the policy and its trainer; every rank calls it."""
        torch.set_num_threads(self.threads)
        self._wiring = wiring
        policy = build_policy(self.cfg, starting_weights=True)
        check_temperature(policy, self.cfg.rollout.sampling_params)
        self._trainer = self.cfg.actor.trainer.build(
            policy,
            rank=self.rank,
            world_size=self.world_size,
            rendezvous=self.rendezvous,
            training_steps=self.cfg.runner.max_steps * self.cfg.optimizer_steps_per_iteration,
        )
        if self.cfg.reference.source != "none" and not wiring.inference_ranks:
            self._reference = ReferencePolicy(self.cfg)

    def sync_model_to_rollout(self, ranks: Sequence[int] | None = None) -> int:
        """Publishes the weights to rollout workers, all if None; returns their version."""
        wiring, trainer = self._ready()
        weights = trainer.weights()
        if self.rank == 0:
            receivers = range(wiring.rollout_ranks) if ranks is None else ranks
            self.cfg.actor.weight_syncer.sync.send(self.messenger, weights, wiring.rollout, receivers)
        return weights.version

    def recv_rollout_batch(self, trajectories: Channel) -> int:
        """Receives this rank's share of an iteration; returns its number of tokens.

        Args:
            trajectories: where `(reward rank, Trajectory or None)` come from, keyed by actor rank.
        """
        wiring, _ = self._ready()
        received = [cast("tuple[int, Any]", trajectories.get(key=self.rank)) for _ in range(wiring.reward_ranks)]
        parts = [part for _, part in received if part is not None]
        if not parts:
            problem = "no responses for this rank: there are fewer groups than actors"
            raise RLinfError(f"actor[{self.rank}]", problem, "Raise data.rollout_batch_size or place fewer actors.")
        whole = Trajectory.concat(parts)
        self._trajectory = whole.rows(np.argsort(whole.group, kind="stable")).map(to_torch)
        return int(self._trajectory.mask.sum())

    def compute_advantages_and_returns(self) -> Mapping[str, Statistic]:
        """Scores what was received as far as the algorithm needs it, and gives credit."""
        if self._trajectory is None:
            raise RLinfError(f"actor[{self.rank}]", "there is no rollout batch", "Call recv_rollout_batch(…) first.")
        _, trainer = self._ready()
        with self.worker_timer("score"):
            trajectory, metrics = self._scored(trainer, self._trajectory)
        all_reduce = trainer.all_reduce if self.world_size > 1 else None
        credit = self.cfg.algorithm.advantage(trajectory, all_reduce=all_reduce)
        self._trajectory, self._batch = None, Batch(trajectory=trajectory, credit=credit)
        count = float(trajectory.mask.sum())
        metrics["advantages_abs"] = Metric(float(credit.advantage.abs().sum()), count)
        if credit.target is not None:
            metrics["returns_mean"] = Metric(float((credit.target * trajectory.mask).sum()), count)
        return metrics

    def run_training(self, step: int) -> Mapping[str, Statistic]:
        """Updates the weights with the responses received last; every rank takes the same number of optimizer steps.

        Args:
            step: the iteration, which keys the order of the responses.
        """
        _, trainer = self._ready()
        if self._batch is None:
            problem = "responses have no credit yet"
            raise RLinfError(f"actor[{self.rank}]", problem, "Call compute_advantages_and_returns() first.")
        batch, self._batch = self._batch, None
        width = widths(batch.trajectory)
        total = int(trainer.all_reduce(torch.tensor(float(len(batch)))))
        steps = math.ceil(total / self.cfg.actor.global_batch_size)
        metrics: list[Mapping[str, Statistic]] = []
        for epoch in range(self.cfg.algorithm.update_epoch):
            order = keyed_generator(self.cfg.runner.seed, "shuffle", self.rank, step, epoch).permutation(len(batch))
            for chosen in np.array_split(order, steps):
                parts = [trimmed(batch, rows, width) for rows in self._pieces(chosen, width)]
                metrics.append(trainer.step(parts, self.cfg.algorithm.loss))
        return merge(metrics)

    def save_checkpoint(self, folder: str) -> None:
        """Writes this rank's share of a checkpoint into a folder that exists; every rank calls it."""
        self._ready()[1].save(Path(folder))

    def load_checkpoint(self, folder: str) -> None:
        """Restores what `save_checkpoint` wrote; every rank calls it."""
        self._ready()[1].load(Path(folder))

    def close(self) -> None:
        """Leaves the other ranks; every rank calls it, last."""
        self._ready()[1].close()

    def _scored(self, trainer: Trainer, trajectory: Trajectory[Tensor]) -> tuple[Trajectory[Tensor], dict[str, Statistic]]:
        """The trajectory with what the algorithm needs of scores, and how far rollout and trainer are apart.

        Where nothing but that distance is asked for, one forward pass measures it.
        """
        wants_all = self.cfg.algorithm.recompute_logprobs or self._has_critic or not self._checked
        parts = self._pieces(np.arange(len(trajectory)), widths(trajectory))
        found = list(self._evaluated(trainer, trajectory, parts if wants_all else parts[:1]))
        metrics = self._drift(trainer, trajectory, found)
        if wants_all:
            logprob, value = scattered(trajectory, iter(found))
            self._has_critic = value is not None
            if value is not None:
                trajectory = with_values(trajectory, value)
            if self.cfg.algorithm.recompute_logprobs:
                trajectory = dataclasses.replace(trajectory, proximal=logprob)
        if self._reference is not None:
            trajectory = dataclasses.replace(trajectory, reference=self._reference.logprob(trajectory))
        return trajectory, metrics

    def _evaluated(
        self, trainer: Trainer, trajectory: Trajectory[Tensor], parts: Sequence[Rows]
    ) -> Iterator[tuple[Rows, Evaluation[Tensor]]]:
        """What the trainer says of some pieces; every rank evaluates equally often, as it must."""
        batch, width = without_credit(trajectory), widths(trajectory)
        counts = torch.zeros(self.world_size)
        counts[self.rank] = len(parts)
        for rows in padded_to(parts, int(trainer.all_reduce(counts).max())):
            evaluation = trainer.evaluate(trimmed(batch, parts[0] if rows is None else rows, width))
            if rows is not None:
                yield rows, evaluation

    def _drift(
        self, trainer: Trainer, trajectory: Trajectory[Tensor], found: Sequence[tuple[Rows, Evaluation[Tensor]]]
    ) -> dict[str, Statistic]:
        """How far the trainer's log-probabilities are from the rollout's, for tokens of the very weights that it has.

        Before the first update they must be equal but for rounding.
        """
        tolerance = self.cfg.actor.logprob_tolerance
        total, largest, count, outside = 0.0, 0.0, 0, 0
        for rows, evaluation in found:
            index, horizon = to_torch(rows), evaluation.logprob.shape[1]
            same = trajectory.mask[index, :horizon] & (trajectory.version[index, :horizon] == trainer.version)
            apart = (evaluation.logprob.cpu() - trajectory.logprob[index, :horizon]).abs()[same]
            total, count = total + float(apart.sum()), count + apart.numel()
            outside += int((~(apart <= tolerance)).sum())
            largest = max(largest, float(apart.max()) if apart.numel() else 0.0)
        if not self._checked and outside > self.cfg.actor.logprob_outliers * count:
            raise RLinfError(
                f"actor[{self.rank}]",
                f"the trainer's log-probabilities differ from the rollout's by up to {largest:.2g} before any update, "
                f"those of {outside} of {count} tokens by more than {tolerance:g}",
                "Usual suspects: weights not synchronised, another precision or temperature in rollout, dropout left on. "
                "For engines of low precision set actor.logprob_tolerance.",
            )
        self._checked = True
        return {"logprob_drift": Metric(total, float(count)), "logprob_drift_max": Metric(largest)}

    def _pieces(self, rows: Rows, width: Rows) -> list[Rows]:
        actor = self.cfg.actor
        return pieces(rows, width, size=actor.micro_batch_size, tokens=actor.max_tokens_per_mbs) if len(rows) else []

    def _ready(self) -> tuple[ReasoningWiring, Trainer]:
        if self._wiring is None or self._trainer is None:
            raise RLinfError(f"actor[{self.rank}]", "has no trainer yet", "Call init_worker(wiring) first.")
        return self._wiring, self._trainer


def with_values(trajectory: Trajectory[Tensor], value: Tensor) -> Trajectory[Tensor]:
    """The trajectory with a critic's values `[B, T]` of what each column has seen; what follows a response is worth 0."""
    kept = value * trajectory.mask
    return dataclasses.replace(trajectory, value=torch.cat([kept, torch.zeros_like(kept[:, :1])], dim=1))
