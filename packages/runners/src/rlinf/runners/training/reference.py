"""The reference policy of a run: kept by the trainer, or a frozen policy beside it."""

from __future__ import annotations

from typing import Any, cast

from rlinf.core.capabilities import KeepsReference
from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.protocols import TrainerConfig
from rlinf.runners.checkpoints.starting_weights import load_starting_weights
from rlinf.runners.config.schema import ModelSection, ReferenceConfig
from rlinf.runners.lazy import torch


def keeping_reference(trainer: TrainerConfig, reference: ReferenceConfig) -> TrainerConfig | None:
    """The trainer's configuration under which it keeps the weights at the start; None if it can't, or others are the reference.

    A trainer that can do so saves a second model.
    """
    if reference.source != "initial" or not isinstance(trainer, KeepsReference):
        return None
    return cast("TrainerConfig", trainer.keeping_reference())


def frozen(
    policy: object,
    reference: ReferenceConfig,
    device: torch.device,
    model: ModelSection | None = None,
    spec: EnvSpec | None = None,
) -> Any:
    """A policy that only scores.

    Args:
        policy: with the weights at the start; it gets others where the reference is "path".
        reference: which weights.
        device: where it scores.
        model: its configuration, see `load_starting_weights`.
        spec: what it acts in, see there.

    Raises:
        ConfigError: it is no `torch.nn.Module`.
    """
    if not isinstance(policy, torch.nn.Module):
        problem = f"expected a torch.nn.Module, found {type(policy).__name__}"
        raise ConfigError("reference.source", problem, "Choose a model that has weights, or set it to none.")
    if reference.ckpt_path is not None:
        load_starting_weights(policy, reference.ckpt_path, "reference.ckpt_path", model=model, spec=spec)
    return policy.eval().requires_grad_(False).to(device)
