"""`OffPolicyActor`: receives trajectories, keeps them in a replay buffer, trains on what it draws, and publishes its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from rlinf.core.data import EnvSpec, Trajectory
from rlinf.core.errors import RLinfError, refuse
from rlinf.core.metrics import Metric, Statistic, merge
from rlinf.core.off_policy import HasLatentAction, HasReplayFeatures, OffPolicyTrainer, TrainsOffPolicy
from rlinf.core.protocols import Channel
from rlinf.core.random import keyed_seed
from rlinf.core.replay import ReplayBuffer, Transitions, within_bounds
from rlinf.core.worker import Worker
from rlinf.runners.checkpoints.starting_weights import fitting_model, load_starting_weights
from rlinf.runners.embodied.playing.arrivals import Arrivals
from rlinf.runners.embodied.topology import Topology
from rlinf.runners.lazy import torch
from rlinf.runners.off_policy.demo_buffer import DemoBuffer
from rlinf.runners.off_policy.drawing import Drawing
from rlinf.runners.off_policy.interventions import intervention_buffer, interventions_of
from rlinf.runners.off_policy.schema import OffPolicyConfig
from rlinf.runners.training.devices import placed
from rlinf.runners.training.finite import check_finite
from rlinf.runners.training.products import choose_products
from rlinf.runners.training.publishing import publish

_INTERVENTIONS: Final = "interventions"
"""Their folder beside the replay buffer of a checkpoint."""


class OffPolicyActor(Worker):
    """One rank of data-parallel training, with a replay buffer of its share of the environments."""

    def __init__(self, cfg: OffPolicyConfig) -> None:
        self.cfg = cfg
        self._topology: Topology | None = None
        self._arrivals = Arrivals(self.rank)
        self._trainer: OffPolicyTrainer
        self._latent: HasLatentAction | None = None
        self._featured: HasReplayFeatures | None = None
        self._replay: ReplayBuffer
        self._demonstrations: DemoBuffer | None = None
        self._interventions: ReplayBuffer | None = None
        # A sum over all iterations.
        self._optimizer_steps = cfg.optimizer_steps

    def init_worker(self, topology: Topology) -> None:
        """Builds the policy, its trainer and the replay buffer; every rank calls it.

        Raises:
            ConfigError: a batch can't be parted over the ranks, or a rank has no environments.
        """
        # By default torch takes all cores of the machine, which the workers on it share.
        torch.set_num_threads(self.threads)
        self._replay = self._buffer(topology.spec)
        self._interventions = intervention_buffer(self.cfg, topology.spec, rank=self.rank, world_size=self.world_size)
        self._demonstrations = DemoBuffer.of(
            self.cfg, topology.spec, rank=self.rank, world_size=self.world_size, interventions=self._interventions
        )
        config, seed = self.cfg.actor, self.cfg.runner.seed
        policy = placed(config.model.build(topology.spec, seed=keyed_seed(seed, "model")), self)
        # Why critics with statistics of batches end lower with oneDNN is not known; docs/runners/off-policy.md has the figures.
        choose_products(None if self.cfg.algorithm.objective.judges == "batch_normalized_q_functions" else policy)
        if self.cfg.runner.ckpt_path is not None:
            path = self.cfg.runner.ckpt_path
            load_starting_weights(policy, path, model=config.model, spec=topology.spec)
        judged: object = policy
        self._latent = judged if isinstance(judged, HasLatentAction) else None
        self._featured = judged if isinstance(judged, HasReplayFeatures) else None
        # `rules` refuse any other trainer.
        self._trainer = cast("TrainsOffPolicy", config.trainer).build_off_policy(
            policy,
            self.cfg.algorithm.objective,
            topology.spec,
            seed=seed,
            rank=self.rank,
            world_size=self.world_size,
            rendezvous=self.rendezvous,
            training_steps=max(1, self._optimizer_steps),  # a run that only collects (utd 0) has none
        )
        self._topology = topology

    def sync_model_to_rollout(self) -> int:
        """Publishes the weights to all rollout workers; returns their version."""
        topology = self._ready()
        sync, receivers = self.cfg.actor.weight_syncer.sync, range(topology.rollout_ranks)
        return publish(self._trainer, sync, self.messenger, rank=self.rank, group=topology.rollout, receivers=receivers)

    def recv_rollout_batch(self, trajectories: Channel, env_ranks: int) -> int:
        """Receives this rank's share of an iteration into the replay buffer; returns its number of transitions.

        Args:
            trajectories: where `(env rank, Trajectory, number)` come from, keyed by actor rank.
            env_ranks: how many env workers send.
        """
        self._ready()
        added = 0
        for _ in range(self.cfg.env.train.rollout_epoch):
            with self.worker_timer("wait_for_trajectories"):
                parts = self._arrivals.next(trajectories, env_ranks)
            with self.worker_timer("store"):
                added += sum(self._add(part) for part in parts)
        return added

    def run_training(self, step: int) -> Mapping[str, Statistic]:
        """Updates the weights with what is drawn from the buffer, as often as the update-to-data ratio says.

        Args:
            step: the iteration.
        """
        self._ready()
        share = self.cfg.actor.global_batch_size // self.world_size
        size = self.cfg.actor.micro_batch_size or share
        metrics: list[Mapping[str, Statistic]] = [{"replay_buffer/size": Metric(float(len(self._replay)))}]
        if self._demonstrations is not None:
            metrics.append(self._demonstrations.described())
        for _ in range(self.cfg.updates(step)):
            drawing = Drawing(self._replay, self._beta())
            with self.worker_timer("sample"):
                drawn = self._drawn(drawing, share)
            parts = [drawn.rows(slice(begin, begin + size)) for begin in range(0, share, size)]
            with self.worker_timer("update"):
                metrics.append(self._trainer.update(parts))
                if self._prioritized:
                    drawing.learned(self._trainer.td_error)
        return merge(metrics)

    def receive_ahead(self, epochs: int, trajectories: Channel, env_ranks: int) -> None:
        """Waits for rollout epochs of later iterations, which have been played: a checkpoint has them, too."""
        self._arrivals.wait_for(epochs, trajectories, env_ranks)

    def save_checkpoint(self, folder: str) -> None:
        """Writes this rank's share of a checkpoint into a folder that exists; every rank calls it."""
        self._ready()
        self._trainer.save(Path(folder))
        own = self._replay_folder(folder)
        own.mkdir()
        self._replay.save(own)
        if self._interventions is not None:
            (own / _INTERVENTIONS).mkdir()
            self._interventions.save(own / _INTERVENTIONS)
        self._arrivals.save(Path(folder))

    def load_checkpoint(self, folder: str) -> None:
        """Restores what `save_checkpoint` wrote; every rank calls it."""
        self._ready()
        with fitting_model(Path(folder).parent, self.cfg.source, self.cfg.actor.model):
            self._trainer.load(Path(folder))
        self._replay.load(self._replay_folder(folder))
        if self._interventions is not None:
            self._interventions.load(self._replay_folder(folder) / _INTERVENTIONS)
        self._arrivals.load(Path(folder))

    def close(self) -> None:
        """Leaves the other ranks; every rank calls it, last."""
        self._ready()
        self._trainer.close()

    def _drawn(self, online: Drawing, size: int) -> Transitions[Any]:
        """This rank's share of a batch."""
        if self._demonstrations is None:
            return online.sample(size)
        return self._demonstrations.batch(online, size, self._trainer.version)

    @property
    def _prioritized(self) -> bool:
        return self.cfg.algorithm.replay_buffer.sampling.type == "prioritized"

    def _beta(self) -> float:
        """β of the next update."""
        sampling = self.cfg.algorithm.replay_buffer.sampling
        return sampling.beta_at(self._trainer.version / max(1, self._optimizer_steps)) if self._prioritized else 1.0

    def _add(self, rows: Trajectory[Any]) -> int:
        check_finite("reward", rows.reward, rows, place=f"actor[{self.rank}]", remedy="Look at the reward of env.train.env_type.")
        if self._latent is None:
            # A Gaussian draws beyond the bounds, at which the environment executes that; demonstrations are clipped, too.
            rows = replace(rows, action=within_bounds(rows.action, self._ready().spec.action))
        if self._featured is not None:
            rows = replace(rows, observation=self._featured.replay_features(rows))
        if self._interventions is not None and rows.intervened is not None:
            # Each piece has a decision, so that none so far has a number beyond this count.
            acted = interventions_of(rows, first=self._interventions.added)
            # One ring for all environments: their pieces have numbers of their own, which keeps them apart.
            self._interventions.add(acted, np.zeros(len(acted), np.int64))
        if self._latent is not None:
            rows = replace(rows, action=np.asarray(self._latent.latent_action(rows.context)))
        # The last digits of an episode's number are those of its environment; see `RowCollector`.
        return self._replay.add(rows, rows.episode % self.cfg.env.train.total_num_envs if rows.episode is not None else None)

    def _buffer(self, spec: EnvSpec) -> ReplayBuffer:
        config, train = self.cfg.algorithm, self.cfg.env.train
        refuse(list(self.cfg.unparted(self.world_size)))
        # As `shares` parts them.
        own = sum(group * self.world_size // train.groups == self.rank for group in range(train.groups)) * train.group_size
        return ReplayBuffer(
            capacity=self.cfg.capacity(spec) * own // train.total_num_envs,
            producers=own,
            n_step=config.replay_buffer.n_step,
            gamma=config.gamma,
            sampling=config.replay_buffer.sampling,
            folder=self.cfg.replay_folder,
            seed=keyed_seed(self.cfg.runner.seed, "replay", self.rank),
        )

    def _replay_folder(self, folder: str) -> Path:
        return Path(folder) / f"replay_{self.rank}"

    def _ready(self) -> Topology:
        if self._topology is None:
            raise RLinfError(f"actor[{self.rank}]", "has no trainer yet", "Call init_worker(topology) first.")
        return self._topology
