"""The loop of a run: imitate, then collect ─▶ credit ─▶ update, and evaluate every few iterations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learning.imitation import imitate
from learning.recipe import Recipe
from learning.rollout import Rollout, decide, evaluate
from rlinf.core.capabilities import HasExplorationSchedule
from rlinf.core.data import Batch, Credit, Trajectory
from rlinf.core.metrics import Statistic, merge
from rlinf.core.random import keyed_generator, keyed_seed
from rlinf.engines import FSDPConfig, FSDPTrainerConfig
from rlinf.engines.guards import StepZeroGate
from rlinf.models.checkpoints import write_tensors
from rlinf.runners.training.agreement import scores_of
from rlinf.runners.training.tensors import to_torch

LOGGED = ("policy_loss", "approx_kl", "clip_fraction", "entropy", "explained_variance", "grad_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An evaluation."""

    iteration: int
    """Updates so far."""
    env_steps: int
    """Control steps of training so far."""
    success: float
    """The share of unseen episodes that are solved, in mode "eval"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one seed did."""

    seed: int
    control: bool
    """Whether advantages were shuffled, so that it must not learn."""
    points: tuple[Point, ...]
    """The first one before reinforcement learning."""
    seconds: float


def learn(
    recipe: Recipe, seed: int, *, control: bool = False, report: Callable[[str], None] = print, weights: Path | None = None
) -> Run:
    """Runs a recipe with one seed; the same arguments give the same curve.

    Args:
        recipe: what to do.
        seed: of everything that is random.
        control: shuffle the advantages over decisions.
        report: gets a line for each evaluation.
        weights: a folder that gets what imitation taught, as `runner.ckpt_path` reads it; none if None.
    """
    torch.set_num_threads(1)
    started = time.perf_counter()
    rollout = Rollout(recipe, seed)
    policy: Any = recipe.model.build(rollout.spec, seed=keyed_seed(seed, "model"))
    if recipe.imitation is not None:
        imitate(recipe, policy, chunk=_chunk(rollout, policy), seed=seed)
    if weights is not None:
        weights.mkdir(parents=True, exist_ok=True)
        write_tensors(policy.weights().tensors, weights)
    learner = Learner(recipe, policy, seed, control=control)
    points: list[Point] = []
    metrics: Mapping[str, Statistic] = {}
    for iteration in range(recipe.iterations + 1):
        if iteration % recipe.eval_every == 0 or iteration == recipe.iterations:
            success = evaluate(recipe, policy, recipe.eval_episodes)
            points.append(Point(iteration=iteration, env_steps=rollout.env_steps, success=success))
            report(
                f"seed {seed} iteration {iteration:3d}  success {success:.3f}  in training {rollout.success:.3f}  {_text(metrics)}"
            )
        if iteration == recipe.iterations:
            break
        _anneal(policy, iteration)
        metrics = learner.update(rollout.collect(policy, iteration), iteration)
    return Run(seed=seed, control=control, points=tuple(points), seconds=round(time.perf_counter() - started, 1))


class Learner:
    """Gives credit to decisions and trains on them."""

    def __init__(self, recipe: Recipe, policy: Any, seed: int, *, control: bool) -> None:
        self.recipe, self.seed, self.control = recipe, seed, control
        trainer = FSDPTrainerConfig(optim=recipe.optim, fsdp_config=FSDPConfig(strategy="none"))
        self.trainer = trainer.build(policy, rank=0, world_size=1, rendezvous="")
        self._checked = False

    def update(self, trajectory: Trajectory[torch.Tensor], iteration: int) -> Mapping[str, Statistic]:
        """Some epochs over all decisions."""
        recipe = self.recipe
        credit = recipe.advantage(trajectory)
        batch = Batch(trajectory=trajectory, credit=credit).decisions()
        if self.control:
            batch = replace(batch, credit=self._shuffled(batch.credit, iteration))
        self._check_logprobs(batch)
        metrics: list[Mapping[str, Statistic]] = []
        for epoch in range(recipe.epochs):
            order = keyed_generator(self.seed, "shuffle", iteration, epoch).permutation(len(batch))
            for rows in np.array_split(order, math.ceil(len(batch) / recipe.batch_size)):
                part = batch.rows(to_torch(rows))
                size = recipe.micro_batch or len(part)
                metrics.append(self.trainer.step(list(part.micro_batches(size)), recipe.loss))
        return merge(metrics)

    def _shuffled(self, credit: Credit[torch.Tensor], iteration: int) -> Credit[torch.Tensor]:
        order = keyed_generator(self.seed, "control", iteration).permutation(len(credit.advantage))
        return replace(credit, advantage=credit.advantage[to_torch(order)])

    def _check_logprobs(self, batch: Batch[torch.Tensor]) -> None:
        """Before the first update, the trainer must score decisions as the rollout did."""
        if self._checked:
            return
        some = batch.rows(slice(0, 256))
        trained = self.trainer.evaluate(some).logprob
        StepZeroGate().check(scores_of(some.trajectory, trained, version=self.trainer.version), place="loop")
        self._checked = True


def _anneal(policy: object, iteration: int) -> None:
    if isinstance(policy, HasExplorationSchedule):
        policy.set_global_step(iteration)


def _chunk(rollout: Rollout, policy: Any) -> int:
    """K, as the policy decides it."""
    leaves = {key: np.zeros((1, *leaf.shape), leaf.dtype) for key, leaf in rollout.spec.observation.items()}
    return int(decide(policy, leaves, "eval", torch.Generator()).action.shape[1])


def _text(metrics: Mapping[str, Statistic]) -> str:
    return "  ".join(f"{name} {metrics[name].mean:.3g}" for name in LOGGED if name in metrics)
