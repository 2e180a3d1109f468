"""`ReasoningActor`: receives groups of responses, gives credit, trains, and publishes its weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.data import Batch, Rescored, Trajectory
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.metrics import Metric, Statistic, merge
from rlinf.core.protocols import Channel, Gate, Trainer
from rlinf.core.random import keyed_generator
from rlinf.core.worker import Worker
from rlinf.runners.checkpoints.export import export_network
from rlinf.runners.checkpoints.starting_weights import fitting_model
from rlinf.runners.lazy import torch
from rlinf.runners.reasoning.inference_worker import ReferencePolicy
from rlinf.runners.reasoning.language import (
    build_image_processor,
    build_policy,
    build_tokenizer,
    check_temperature,
    problems_of,
)
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.reasoning.scoring import (
    Found,
    Rescorer,
    Rows,
    compared,
    cut_off,
    episode_members,
    pieces,
    scattered,
    trimmed,
    widths,
    without_cut_off,
)
from rlinf.runners.reasoning.topology import ReasoningTopology
from rlinf.runners.training.agreement import coarsest
from rlinf.runners.training.data_shares import uncounted
from rlinf.runners.training.devices import build_trainer, device_of, placed
from rlinf.runners.training.finite import check_credit, check_finite, check_logprobs
from rlinf.runners.training.offloading import Offloading
from rlinf.runners.training.publishing import publish
from rlinf.runners.training.reference import keeping_reference
from rlinf.runners.training.tensors import to_torch


@dataclass(frozen=True, slots=True)
class _State:
    """What a rank works with once it is initialised."""

    topology: ReasoningTopology
    trainer: Trainer
    policy: LanguageModelPolicy
    """The one that is trained."""
    rescorer: Rescorer
    reference: ReferencePolicy | None
    """A frozen copy; None where the trainer knows the reference, or nobody needs it here."""
    refers: bool
    """Whether the trainer knows it."""

    def of_shares(self, value: int) -> list[int]:
        """A number of each share, which is that of its ranks; every rank calls it."""
        found = [0] * self.topology.shares
        for rank, number in enumerate(self.rescorer.of_ranks(value)):
            found[self.topology.share(rank)] = max(found[self.topology.share(rank)], number)
        return found


class ReasoningActor(Worker):
    """One rank of training; ranks of one share train on the same responses."""

    def __init__(self, cfg: ReasoningConfig) -> None:
        self.cfg = cfg
        self._state: _State | None = None
        self._has_critic = False
        self._trajectory: Trajectory[torch.Tensor] | None = None
        self._batch: Batch[torch.Tensor] | None = None
        self._checked = False

    def init_worker(self, topology: ReasoningTopology) -> None:
        """Builds the policy and its trainer; every rank calls it.

        Raises:
            ConfigError: an optimizer step has fewer responses than shares, so that the last ones would have none at all.
        """
        if (size := self.cfg.actor.global_batch_size) < topology.shares:
            problem = f"{size} responses of an optimizer step can't be parted over {topology.shares} shares"
            raise ConfigError("actor.global_batch_size", problem, f"Use at least {topology.shares}, or place fewer actors.")
        torch.set_num_threads(self.threads)
        policy = placed(build_policy(self.cfg, starting_weights=True), self)
        check_temperature(policy, self.cfg.rollout.sampling_params)
        keeping = None if topology.inference_ranks else keeping_reference(self.cfg.actor.trainer, self.cfg.reference)
        trainer = build_trainer(keeping or self.cfg.actor.trainer, policy, self, self.cfg.optimizer_steps)
        wants = self.cfg.reference.source != "none" and not topology.inference_ranks and keeping is None
        frozen = ReferencePolicy(self.cfg, device_of(self)) if wants else None
        rescorer = Rescorer(trainer, self.rank, self.world_size)
        self._state = _State(topology, trainer, policy, rescorer, frozen, keeping is not None)
        # Last: what is built above still needs the weights where they are.
        self._offloading = Offloading(trainer, self.cfg.actor, self)

    def sync_model_to_rollout(self, ranks: Sequence[int] | None = None) -> int:
        """Publishes the weights to rollout workers, all if None; every rank calls it. Returns their version.

        Whoever receives them needs its devices, too, so that nobody takes their lock.
        """
        state, sync = self._ready(), self.cfg.weight_sync
        receivers = range(state.topology.rollout_ranks) if ranks is None else ranks
        with self._onloaded("parameters"):
            return publish(state.trainer, sync, self.messenger, rank=self.rank, group=state.topology.rollout, receivers=receivers)

    def recv_rollout_batch(self, trajectories: Channel) -> int:
        """Receives this rank's share of an iteration; returns its number of tokens.

        Args:
            trajectories: where `(reward rank, Trajectory or None)` come from, keyed by actor rank.
        """
        topology = self._ready().topology
        received = [cast("tuple[int, Any]", trajectories.get(key=self.rank)) for _ in range(topology.reward_ranks)]
        parts = [part for _, part in received if part is not None]
        if not parts:
            problem = "no responses for this rank: there are fewer groups than actors"
            raise RLinfError(f"actor[{self.rank}]", problem, "Raise data.rollout_batch_size or place fewer actors.")
        whole = Trajectory.concat(parts)
        # By group, whichever reward worker came first; stable, so that the members of a group keep their order.
        self._trajectory = whole.rows(np.argsort(whole.group, kind="stable")).map(to_torch)
        return int(self._trajectory.mask.sum())

    def compute_advantages_and_returns(self) -> Mapping[str, Statistic]:
        """Scores what was received as far as the algorithm needs it, and gives credit."""
        if self._trajectory is None:
            raise RLinfError(f"actor[{self.rank}]", "there is no rollout batch", "Call recv_rollout_batch(…) first.")
        state, place = self._ready(), f"actor[{self.rank}]"
        check_finite("reward", self._trajectory.reward, self._trajectory, place=place, remedy="Look at reward.reward_type.")
        with self._phase("parameters"), self.worker_timer("score"):
            trajectory, metrics = self._scored(state, self._trajectory)
        all_reduce = state.trainer.all_reduce if state.topology.shares > 1 else None
        check_logprobs(trajectory, place=place)
        credit = self.cfg.algorithm.advantage(trajectory, all_reduce=all_reduce)
        check_credit(credit, trajectory, place=place)
        # After credit was given: a response that was cut off still counts in the comparison with its group.
        if self.cfg.algorithm.overlong_filtering:
            metrics["overlong_filtered"] = Metric(float(cut_off(trajectory).sum()), float(len(trajectory)))
            trajectory, credit = without_cut_off(trajectory, credit)
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
        state = self._ready()
        if self._batch is None:
            problem = "responses have no credit yet"
            raise RLinfError(f"actor[{self.rank}]", problem, "Call compute_advantages_and_returns() first.")
        batch, self._batch = self._batch, None
        width, share = widths(batch.trajectory), state.topology.share(self.rank)
        # An episode of several agents is one response, however many rows it has, and its rows stay together.
        episodes = episode_members(batch.trajectory)
        # Ranks of one share hold the same responses, which count once.
        total = sum(state.of_shares(len(episodes)))
        steps = math.ceil(total / self.cfg.actor.global_batch_size)
        metrics: list[Mapping[str, Statistic]] = []
        with self._phase():
            for epoch in range(self.cfg.algorithm.update_epoch):
                # Keyed by share, not by rank: ranks that hold parts of one model must compute the same rows.
                order = keyed_generator(self.cfg.runner.seed, "shuffle", share, step, epoch).permutation(len(episodes))
                for drawn in np.array_split(order, steps):
                    # `concatenate` needs one array, also where a share has no episode for a step.
                    chosen = np.concatenate([np.zeros(0, np.intp), *(episodes[int(number)] for number in drawn)])
                    parts = [trimmed(batch, rows, width) for rows in self._parts(chosen, width)]
                    # A share that has fewer episodes than there are steps takes the step all the same.
                    metrics.append(state.trainer.step(parts or [uncounted(batch)], self.cfg.algorithm.loss))
        return merge(metrics)

    def save_checkpoint(self, folder: str) -> None:
        """Writes this rank's share of a checkpoint into a folder that exists; every rank calls it."""
        with self._onloaded():
            self._ready().trainer.save(Path(folder))

    def load_checkpoint(self, folder: str) -> None:
        """Restores what `save_checkpoint` wrote; every rank calls it."""
        with self._onloaded(), fitting_model(Path(folder).parent, self.cfg.source, self.cfg.actor.model):
            self._ready().trainer.load(Path(folder))

    def export(self, folder: str) -> None:
        """Writes model and tokenizer in the layout of Hugging Face, adapters merged; every rank calls it."""
        with self._onloaded("parameters"):
            weights = self._ready().trainer.weights()
        # Only now: every rank takes part in putting the weights together.
        if self.rank == 0:
            # A policy of its own, as adapters are merged into it.
            policy = build_policy(self.cfg, starting_weights=False)
            model, task = self.cfg.actor.model, self.cfg.data.task
            processor = build_image_processor(model.config, problems_of(task, "train"))
            export_network(policy, weights, build_tokenizer(model, task), processor, Path(folder))

    def close(self) -> None:
        """Leaves the other ranks; every rank calls it, last."""
        self._ready().trainer.close()

    def _scored(self, state: _State, trajectory: Trajectory[torch.Tensor]) -> tuple[Trajectory[torch.Tensor], dict[str, Statistic]]:
        """The trajectory with what the algorithm needs of scores, and how far rollout and trainer are apart.

        Where nothing but that distance is asked for, one forward pass measures it.
        """
        # The first time everything is scored: the gate looks at all of it, and whether there is a critic shows in the scores.
        wants_all = self.cfg.algorithm.recompute_logprobs or self._has_critic or not self._checked
        rows, width = np.arange(len(trajectory)), widths(trajectory)
        parts = self._parts(rows, width)
        found = state.rescorer.scores(trajectory, parts if wants_all else self._pieces(rows, width)[:1])
        if not self._checked:
            self._pass_gate(state, trajectory, parts, found)
        metrics = dict(self._gate().measure(compared(trajectory, found, version=state.trainer.version)))
        if wants_all:
            scores = scattered(trajectory, iter(found))
            self._has_critic = scores.value is not None
            if scores.value is not None:
                trajectory = with_values(trajectory, scores.value)
            if self.cfg.algorithm.recompute_logprobs:
                trajectory = dataclasses.replace(trajectory, proximal=scores.logprob)
            if self.cfg.sums_squares:
                trajectory = dataclasses.replace(trajectory, sum_pi_squared=_summed(scores, f"actor[{self.rank}]"))
        if state.refers:
            reference = scattered(trajectory, iter(state.rescorer.references(trajectory, parts))).logprob
            trajectory = dataclasses.replace(trajectory, reference=reference)
        elif state.reference is not None:
            trajectory = dataclasses.replace(trajectory, reference=state.reference.logprob(trajectory))
        return trajectory, metrics

    def _pass_gate(self, state: _State, trajectory: Trajectory[torch.Tensor], parts: Sequence[Rows], found: Found) -> None:
        """Before the first update, the trainer must say of the responses what the rollout said of them.

        Ranks can't score again for one of them, so that only a single one tries other temperatures.
        """
        fresh = trajectory.mask & (trajectory.version >= state.trainer.version)
        scores = compared(
            trajectory,
            found,
            version=state.trainer.version,
            mask=trajectory.mask if self.cfg.rollout.oversample == 1 else fresh,  # aborted responses may go on after an update
            rescore=(lambda factor: state.rescorer.at_temperature(state.policy, factor, trajectory, parts))
            if self.world_size == 1
            else None,
        )
        self._gate().check(scores, place=f"actor[{self.rank}]")
        self._checked = True

    def _gate(self) -> Gate:
        actor, rollout = self.cfg.actor, self.cfg.rollout
        return actor.build_gate(coarsest(actor.model.config, actor.trainer, rollout, rollout.generator))

    def _pieces(self, rows: Rows, width: Rows) -> list[Rows]:
        """What is computed in one pass each, where rows are padded."""
        actor = self.cfg.actor
        return pieces(rows, width, size=actor.micro_batch_size, tokens=actor.max_tokens_per_mbs) if len(rows) else []

    def _parts(self, rows: Rows, width: Rows) -> list[Rows]:
        """What the trainer is given at once: everything, if it parts and packs rows itself."""
        return [rows] if self.cfg.actor.packs and len(rows) else self._pieces(rows, width)

    @contextmanager
    def _phase(self, *parts: str) -> Generator[None]:
        """Inside, the devices are this worker's, and the trainer is on them; nothing to do where it never leaves them."""
        if not self.cfg.actor.offload:
            yield
            return
        with self.device_lock, self._onloaded(*parts):
            yield

    def _onloaded(self, *parts: str) -> AbstractContextManager[None]:
        """Inside, the trainer, or the parts of it that are named, is on its devices."""
        self._ready()
        return self._offloading.onloaded(*parts)

    def _ready(self) -> _State:
        if self._state is None:
            raise RLinfError(f"actor[{self.rank}]", "has no trainer yet", "Call init_worker(topology) first.")
        return self._state


def _summed(scores: Rescored[torch.Tensor], place: str) -> torch.Tensor:
    """Σ π² of each token `[B, T]`; a trainer or a model of somebody else may not add it up."""
    if scores.sum_pi_squared is None:
        problem = "the advantage needs Σ π² of each token, and this trainer does not say it of this model"
        raise RLinfError(place, problem, "Choose another algorithm.adv_type, or the trainer fsdp and the model causal_lm.")
    return scores.sum_pi_squared


def with_values(trajectory: Trajectory[torch.Tensor], value: torch.Tensor) -> Trajectory[torch.Tensor]:
    """The trajectory with a critic's values `[B, T]` of what each column has seen; what follows a response is worth 0."""
    kept = value * trajectory.mask
    return dataclasses.replace(trajectory, value=torch.cat([kept, torch.zeros_like(kept[:, :1])], dim=1))
