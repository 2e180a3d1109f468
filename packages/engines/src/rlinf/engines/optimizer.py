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
    groups: list[dict[str, object]] = []
    for critic, lr in ((False, config.lr), (True, config.lr if config.value_lr is None else config.value_lr)):
        named = module.named_parameters()
        chosen = [parameter for name, parameter in named if parameter.requires_grad and is_critic(name) == critic]
        if chosen:
            groups.append({"params": chosen, "lr": lr, "base_lr": lr})
        elif critic and config.value_lr is not None:
            found = f"expected parameters below {sorted(CRITIC)}, found none"
            raise ConfigError("optim.value_lr", found, "Remove the key, or choose a model with a critic.")
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, betas=betas, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True)


def set_learning_rates(optimizer: torch.optim.Optimizer, config: OptimConfig, step: int) -> float:
    """Sets the learning rates of optimizer step `step`, counted from 0; returns that of the policy."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * config.factor(step)
    return config.lr * config.factor(step)
