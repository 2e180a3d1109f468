"""Demonstrations beside reinforcement learning: in each update, the supervised loss of some of them is added.

    L = L_RL + w · L_SFT        each its own sum over its own weight, over micro-batches and ranks

Each of n ranks learns from every n-th episode. What it draws follows from the seed, its rank and the number of the update, so that
a checkpoint keeps nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from rlinf.core.capabilities import HasSFTLoss, TakesPolicyLoss
from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError, refuse
from rlinf.core.metrics import Statistic
from rlinf.core.random import keyed_generator, keyed_seed
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.embodied.wrapping import described
from rlinf.runners.embodied_sft.demonstrations import Demonstrations, Imitation
from rlinf.runners.embodied_sft.fitting import Fitting
from rlinf.runners.embodied_sft.labels import learns_labels
from rlinf.runners.lazy import torch
from rlinf.runners.training.data_shares import share_of

PLACE: Final = "algorithm.co_training"


class CoTraining:
    """The share of one actor in the demonstrations of a run.

    Args:
        cfg: the run, which has the section.
        policy: what is trained.
        trainer: that of the policy.
        rank: of the actor.
        world_size: how many actors there are.

    Raises:
        ConfigError: the policy has no loss for demonstrations, or the trainer can't add one.
    """

    def __init__(self, cfg: EmbodiedConfig, policy: Any, trainer: Any, *, rank: int, world_size: int) -> None:
        config = cfg.algorithm.co_training
        if config is None:
            raise ConfigError(PLACE, "expected demonstrations, found none", "Set its type and the fields of the dataset.")
        if not isinstance(policy, HasSFTLoss):
            problem = f"'{cfg.actor.model.model_type}' makes a {type(policy).__name__}, which can't learn from {PLACE}"
            raise ConfigError("actor.model.model_type", problem, "Give it an sft_loss(…), or set algorithm.co_training to null.")
        if not isinstance(trainer, TakesPolicyLoss):
            problem = f"'{cfg.actor.training_backend}' can't add the loss of {PLACE} to another"
            raise ConfigError("actor.training_backend", problem, "Use fsdp.")
        share, shares = share_of(cfg.actor.trainer, rank, world_size)
        episodes = list(islice(config.dataset.open().episodes(), share, None, shares))
        self._tasks = sorted({episode.task for episode in episodes})
        chunk = config.chunk_length or traits_of(cfg.actor.model.config).chunk or 1
        self._demonstrations = Demonstrations(episodes, chunk=chunk, tasks=self._tasks, place="algorithm.co_training")
        self._trainer, self._weight = trainer, config.weight
        self._count = len(range(share, cfg.demonstrations_per_step, shares))
        self._most = cfg.actor.micro_batch_size or self._count
        self._seed, self._share = cfg.runner.seed, share

    def add(self, *update: int) -> Mapping[str, Statistic]:
        """Adds the loss of some demonstrations to what the next optimizer step minimises; every rank calls it.

        Args:
            update: the iteration and what else numbers the step in it; what is drawn follows from it.

        Returns:
            `sft_loss`, over all ranks, before the step.
        """
        chosen = keyed_generator(self._seed, "co-training", self._share, *update).integers(
            len(self._demonstrations), size=self._count
        )
        parts = [self._demonstrations.batch(chosen[at : at + self._most].tolist()) for at in range(0, len(chosen), self._most)]
        seed = keyed_seed(self._seed, "co-training loss", self._share, *update)
        loss = Imitation(self._tasks, torch.Generator().manual_seed(seed))
        if self._weight:
            found = self._trainer.add_policy_loss(parts, loss, weight=self._weight)
        else:
            found = self._trainer.measure_policy(parts, loss)
        return {"sft_loss": found["loss"]}


def co_trains(cfg: EmbodiedConfig) -> ConfigError | None:
    """A policy with a memory has no loss for single steps, and one that learns what was good has none without labels."""
    if cfg.algorithm.co_training is not None and learns_labels(cfg.actor.model.config):
        problem = f"learns which actions were good, which {PLACE} does not say"
        return ConfigError("actor.model.condition", problem, "Leave it out (null), or set algorithm.co_training to null.")
    if cfg.algorithm.co_training is None or not traits_of(cfg.actor.model.config).recurrent:
        return None
    problem = f"'{cfg.actor.model.model_type}' has a memory, and examples of {PLACE} are single steps"
    return ConfigError("actor.model.model_type", problem, "Choose a policy without one, or set algorithm.co_training to null.")


def check_co_training(cfg: EmbodiedConfig) -> None:
    """Refuses demonstrations that policy or simulator can't use, before a worker starts; builds one environment if there are any.

    Raises:
        ConfigError: one line for each thing that does not fit, with the names of both sides.
    """
    config = cfg.algorithm.co_training
    if config is None:
        return
    fit = Fitting(cfg.actor.model, config.dataset, config.dataset.open(), config.chunk_length, PLACE)
    # What needs no simulator is told before one is built.
    refuse(list(fit.unfit_for_model()))
    refuse(list(fit.not_finite()))
    spec = described(cfg.env.train)
    refuse([*fit.unknown_keys(spec), *fit.unfit_for_env("env.train", cfg.env.train.env_type, spec, of_env=True)])
