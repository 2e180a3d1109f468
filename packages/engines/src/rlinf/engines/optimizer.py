"""AdamW with a learning rate for the policy and one for its critic."""

from __future__ import annotations

import torch
from torch import nn

from rlinf.core.errors import ConfigError
from rlinf.engines.trainer import OptimConfig

CRITIC = frozenset({"critic", "value_head"})


def is_critic(name: str) -> bool:
    """Whether a parameter of that dotted name is below a module named `critic` or `value_head`."""
    return not CRITIC.isdisjoint(name.split("."))


def adamw(module: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """The optimizer of all parameters that are trained.

    Raises:
        ConfigError: `value_lr` is set and nothing is a critic's.
    """
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    critic = [parameter for name, parameter in named if config.value_lr is not None and is_critic(name)]
    if config.value_lr is not None and not critic:
        found = f"expected parameters below {sorted(CRITIC)}, found none"
        raise ConfigError("optim.value_lr", found, "Remove the key, or choose a model with a critic.")
    policy = [parameter for _, parameter in named if not any(parameter is other for other in critic)]
    groups: list[dict[str, object]] = [
        {"params": parameters, "base_lr": lr} for parameters, lr in ((policy, config.lr), (critic, config.value_lr)) if parameters
    ]
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, betas=betas, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True)


def set_learning_rates(optimizer: torch.optim.Optimizer, config: OptimConfig, step: int) -> float:
    """Sets the learning rates of optimizer step `step`, counted from 0; returns that of the policy."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * config.factor(step)
    return config.lr * config.factor(step)
