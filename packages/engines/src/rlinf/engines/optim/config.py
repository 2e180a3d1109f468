"""What an optimizer is configured with, and how its learning rate runs over the steps; light to import."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """AdamW and its learning rate.

    Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (2017), arXiv:1711.05101. The policy and, where it has a rate or a
    warm-up of its own, the critic (parameters below a module named `critic` or `value_head`) have an optimizer each, and
    gradients are clipped in each for itself.
    """

    lr: float = 3e-4
    """The learning rate of the policy after the warm-up, before `lr_scheduler` lowers it."""
    value_lr: float | None = None
    """The learning rate of the critic; None for that of the policy."""
    adam_beta1: float = 0.9
    """Decay of the gradient's running mean."""
    adam_beta2: float = 0.999
    """Decay of the squared gradient's running mean."""
    adam_eps: float = 1e-8
    """Added to the root of the squared gradient's running mean, by which the step is divided, so that it is never 0."""
    weight_decay: float = 0.0
    """Decoupled weight decay of matrices; vectors (norms, biases) have none. With 0 this is Adam."""
    clip_grad: float | None = 0.5
    """The largest norm of the gradient of one optimizer's parameters together; None for any."""
    lr_scheduler: Schedule = "constant"
    """The learning rate after the warm-up: constant, or falling to the end linearly or as half a cosine."""
    lr_warmup_steps: int = 0
    """Optimizer steps in which the learning rate rises as a line; the first has 1/n of it."""
    min_lr_factor: float = 0.0
    """Where `linear` and `cosine` end, as a share of the learning rate in [0, 1]."""
    total_training_steps: int | None = None
    """Optimizer steps until the end of the schedule, the warm-up among them; None for those of the whole run."""
    critic_warmup_steps: int = 0
    """Optimizer steps at the start in which only the critic learns."""

    def __post_init__(self) -> None:
        # A step of Adam moves each weight by about the rate, so that nothing is learned above 1.
        for name in ("lr", "value_lr", "adam_eps"):
            expect_range(name, getattr(self, name), 0.0, 1.0, open_low=True)
        expect_range("clip_grad", self.clip_grad, 0.0, open_low=True)
        for name in ("adam_beta1", "adam_beta2"):
            expect_range(name, getattr(self, name), 0.0, 1.0, open_high=True)
        # A step takes lr · weight_decay of a weight away: more than all of it turns the sign of each.
        expect_range("weight_decay", self.weight_decay, 0.0, 1.0 / max(self.lr, self.value_lr or 0.0))
        for name in ("lr_warmup_steps", "critic_warmup_steps"):
            expect_at_least(name, getattr(self, name), 0)
        expect_range("min_lr_factor", self.min_lr_factor, 0.0, 1.0)
        expect_at_least("total_training_steps", self.total_training_steps, 1)

    def spanning(self, training_steps: int | None) -> OptimConfig:
        """The same, with `training_steps` where `total_training_steps` is not set.

        Raises:
            ConfigError: the schedule has no steps to fall over.
        """
        total = self.total_training_steps or training_steps
        if self.lr_scheduler != "constant" and total is None:
            found = f"expected the number of steps for lr_scheduler '{self.lr_scheduler}', found none"
            raise ConfigError("actor.optim.total_training_steps", found, "Set it.")
        return replace(self, total_training_steps=total)

    def factor(self, step: int) -> float:
        """By what learning rates are multiplied at optimizer step `step`, counted from 0."""
        if step < self.lr_warmup_steps:
            return (step + 1) / self.lr_warmup_steps
        if self.lr_scheduler == "constant" or self.total_training_steps is None:
            return 1.0
        falling = max(1, self.total_training_steps - self.lr_warmup_steps)
        done = min(1.0, (step - self.lr_warmup_steps) / falling)
        left = 1.0 - done if self.lr_scheduler == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.min_lr_factor + (1.0 - self.min_lr_factor) * left
