"""AdamW for the policy, and one more for its critic where that has a learning rate or a warm-up of its own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.errors import ConfigError
from rlinf.engines.optim.config import OptimConfig
from rlinf.engines.optim.loss_scale import LossScale

CRITIC = frozenset({"critic", "value_head"})
TINY = 1e-6


def is_critic(name: str) -> bool:
    """Whether a parameter of that dotted name is below a module named `critic` or `value_head`."""
    return not CRITIC.isdisjoint(name.split("."))


@dataclass(frozen=True, slots=True)
class Part:
    """One optimizer and what it trains."""

    name: str
    """`policy` or `critic`."""
    optimizer: torch.optim.AdamW
    lr: float
    """The learning rate before the schedule."""
    idle_steps: int
    """Optimizer steps at the start of a run in which it does nothing."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What it trains."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


class Optimizers:
    """All optimizers of a module; each parameter that is trained belongs to exactly one.

    Args:
        module: has the parameters; those that need no gradient belong to nobody.
        config: of all optimizers.
        scale: of the loss, which a checkpoint keeps with what they remember; none if None.

    Raises:
        ConfigError: nothing is trained, or `value_lr` or `critic_warmup_steps` is set and nothing is a critic's.
    """

    def __init__(self, module: nn.Module, config: OptimConfig, scale: LossScale | None = None) -> None:
        self.config = config
        self.scale = scale or LossScale(enabled=False)
        named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        if not named:
            raise ConfigError("trainer(policy)", "every parameter is frozen", "Train adapters, or unfreeze something.")
        apart = config.value_lr is not None or config.critic_warmup_steps > 0
        critic = [parameter for name, parameter in named.items() if apart and is_critic(name)]
        policy = [parameter for name, parameter in named.items() if not (apart and is_critic(name))]
        if apart and not critic:
            key = "critic_warmup_steps" if config.value_lr is None else "value_lr"
            found = f"expected parameters below {sorted(CRITIC)}, found none"
            raise ConfigError(f"optim.{key}", found, "Remove the key, or choose a model with a critic.")
        value_lr = config.lr if config.value_lr is None else config.value_lr
        made = (("policy", policy, config.lr, config.critic_warmup_steps), ("critic", critic, value_lr, 0))
        self.parts = [Part(name, adamw(held, lr, config), lr, idle) for name, held, lr, idle in made if held]

    def set_learning_rates(self, step: int) -> dict[str, float]:
        """Sets the learning rates of optimizer step `step`, counted from 0; returns `lr`, and `critic_lr` if there is one."""
        rates = {part.name: part.lr * self.config.factor(step) * (step >= part.idle_steps) for part in self.parts}
        for part in self.parts:
            for group in part.optimizer.param_groups:
                group["lr"] = rates[part.name]
        return {metric_name(name, "lr"): rate for name, rate in rates.items()}

    def step(self, gradients: Mapping[str, Sequence[Tensor]], factors: Mapping[str, float], step: int) -> None:
        """One step of each optimizer that is not idle, its gradients multiplied by its factor.

        Args:
            gradients: by the name of the part; changed in place.
            factors: by the name of the part.
            step: optimizer steps taken before.
        """
        for part in self.parts:
            if step < part.idle_steps:
                continue
            for gradient in gradients[part.name]:
                gradient.mul_(factors[part.name])
            part.optimizer.step()  # pyright: ignore[reportUnknownMemberType]

    def zero_grad(self) -> None:
        """Drops all gradients."""
        for part in self.parts:
            part.optimizer.zero_grad(set_to_none=True)

    def state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What its optimizer remembers of a parameter, to be changed in place; nothing before the first step."""
        held = (part.optimizer.state[parameter] for part in self.parts if parameter in part.optimizer.state)
        return next(held, dict[str, Tensor]())

    def remember(self, memory: Mapping[nn.Parameter, dict[str, Tensor]]) -> None:
        """Replaces everything that is remembered."""
        for part in self.parts:
            part.optimizer.state.clear()
            for parameter in part.parameters:
                if parameter in memory:
                    part.optimizer.state[parameter] = memory[parameter]


def adamw(parameters: Sequence[nn.Parameter], lr: float, config: OptimConfig) -> torch.optim.AdamW:
    """The optimizer of some parameters: matrices decay, vectors don't."""
    return adamw_groups(decays(parameters, config), lr, config)


def decays(parameters: Sequence[nn.Parameter], config: OptimConfig) -> list[tuple[list[nn.Parameter], float]]:
    """Matrices and vectors, as far as there are some, each with the weight decay of an optimizer; together where nothing decays."""
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
    # An optimizer calls its kernel once for each group.
    groups = ((matrices, config.weight_decay), (vectors, 0.0)) if config.weight_decay else (([*matrices, *vectors], 0.0),)
    return [(held, decay) for held, decay in groups if held]


def adamw_groups(groups: Sequence[tuple[Sequence[nn.Parameter], float]], lr: float, config: OptimConfig) -> torch.optim.AdamW:
    """The optimizer of groups of parameters, each with its weight decay."""
    made = [{"params": list(held), "weight_decay": decay} for held, decay in groups]
    return _AdamW(made, lr=lr, betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_eps, fused=True)


class _AdamW(torch.optim.AdamW):
    """torch's own without its care for `torch.compile`, which would import the compiler: 4 CPU-s at the start of each rank.

    What torch puts around these methods keeps the compiler out of them, or lets gradients flow through a step; neither is asked
    for here. Nor are hooks and the profiler's label, which take longer than the kernel of a small step. The numbers are the same
    to the bit.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step: Any = torch.no_grad()(inspect.unwrap(cast("Any", torch.optim.AdamW).step))
    step.hooked = True  # what torch marks a method with that has hooks and a label around it


def metric_name(part: str, name: str) -> str:
    """How a number of one optimizer is logged: that of the policy has no prefix."""
    return name if part == "policy" else f"{part}_{name}"


def division(square: float, weight: float, clip_grad: float | None) -> tuple[float, float]:
    """From Σ g² of summed gradients and their weight: what to multiply gradients by, and the norm after the division."""
    if not weight > 0:
        # Whoever looks whether the norm is finite skips the step.
        return 0.0, math.nan
    norm = math.sqrt(square) / weight
    # As in torch's `clip_grad_norm_`, which adds 1e-6, too.
    return (1.0 if clip_grad is None else min(1.0, clip_grad / (norm + TINY))) / weight, norm
