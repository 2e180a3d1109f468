"""From a mapping to an `EmbodiedConfig`, and the rules across its sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rlinf.core.data import EnvSpec
from rlinf.core.declarations import Need, traits_of
from rlinf.core.errors import ConfigError
from rlinf.runners.config.rules import Rule, needs_met, no_idle_reference, placement, unmet_by_model, whole_batches
from rlinf.runners.config.sections import Section
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.task_types import read_run


def _placement(cfg: EmbodiedConfig) -> ConfigError | None:
    return placement(cfg.cluster, ("actor", "rollout", "env"))


def _batches(cfg: EmbodiedConfig) -> ConfigError | None:
    train = cfg.env.train
    made = f"{train.total_num_envs} envs × {train.max_steps_per_rollout_epoch} steps × {train.rollout_epoch} epochs"
    return whole_batches(cfg.actor.global_batch_size, cfg.decisions_per_iteration, of="decisions", made=made)


def _needs(cfg: EmbodiedConfig) -> ConfigError | None:
    unmet: dict[Need, str] = {
        "baseline": "Choose algorithm.adv_type rloo, which compares with the other rows of a group.",
        "sum_pi_squared": "Choose another algorithm.adv_type.",
    }
    if cfg.reference.source == "none":
        unmet["reference"] = "Set reference.source."
    if not cfg.algorithm.recompute_logprobs:
        unmet["proximal"] = "Set algorithm.recompute_logprobs: true."
    if cfg.env.train.group_size == 1:
        unmet["group"] = "Raise env.train.group_size."
    return needs_met(cfg.algorithm, {**unmet, **unmet_by_model(cfg.actor.model, cfg.algorithm)})


def _acts(cfg: EmbodiedConfig) -> ConfigError | None:
    if not traits_of(cfg.actor.model.config).language:
        return None
    return ConfigError("actor.model.model_type", f"'{cfg.actor.model.model_type}' writes text and does not act", "Choose a policy.")


def _sequences(cfg: EmbodiedConfig) -> ConfigError | None:
    """A policy with a memory learns from whole pieces of episodes, of which every optimizer step needs one."""
    columns, size = cfg.env.train.max_steps_per_rollout_epoch, cfg.actor.global_batch_size
    if not traits_of(cfg.actor.model.config).recurrent or size >= columns:
        return None
    problem = f"'{cfg.actor.model.model_type}' has a memory and learns from pieces of {columns} decisions, found batches of {size}"
    remedy = "Raise it, or lower env.train.max_steps_per_rollout_epoch."
    return ConfigError("actor.global_batch_size", problem, remedy)


def check_spec(cfg: EmbodiedConfig, spec: EnvSpec) -> None:
    """Refuses a model that can't act in an environment; called when the simulators are up, before any model is built.

    Raises:
        ConfigError: the environment numbers its actions, and the model makes vectors of numbers.
    """
    discrete = np.issubdtype(np.dtype(spec.action.dtype), np.integer)
    if discrete and traits_of(cfg.actor.model.config).discrete_actions is False:
        problem = f"'{cfg.actor.model.model_type}' makes vectors of numbers, and env.train.env_type '{cfg.env.train.env_type}' "
        remedy = "Choose an environment with continuous actions, or a model of your own that decides among numbers."
        raise ConfigError("actor.model.model_type", f"{problem}takes numbered actions", remedy)


def _reference(cfg: EmbodiedConfig) -> ConfigError | None:
    used = cfg.reference.source == "initial"
    return no_idle_reference(cfg.actor, used=used, remedy="Set reference.source: initial, or leave it out.")


EMBODIED: Final[Sequence[Rule[EmbodiedConfig]]] = (_placement, _batches, _acts, _sequences, _needs, _reference)


def read_embodied(data: Section) -> EmbodiedConfig:
    """The typed configuration of an embodied run, to which none of these rules objects.

    Raises:
        ConfigError: one line per fault, each with its dotted path.
    """
    return read_run(EmbodiedConfig, data, task_type="embodied", rules=EMBODIED)
