"""The configuration of the trainer; light to import, the trainer is in `fsdp_trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlinf.core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf.engines.fsdp_trainer import FSDPTrainer


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """AdamW and its learning rate."""

    lr: float = 3e-4
    """The learning rate."""
    value_lr: float | None = None
    """That of the critic (parameters below a module named `critic` or `value_head`); None for the same."""
    adam_beta1: float = 0.9
    """Decay of the gradient's running mean."""
    adam_beta2: float = 0.999
    """Decay of the squared gradient's running mean."""
    adam_eps: float = 1e-8
    """Added to the denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay; with 0 this is Adam."""
    clip_grad: float | None = 0.5
    """The largest norm of the gradient of all parameters together; None for any."""
    lr_scheduler: Literal["constant", "linear"] = "constant"
    """`linear` falls from the learning rate to 0 over `total_training_steps`."""
    total_training_steps: int | None = None
    """Optimizer steps over which `linear` falls; None for those of the whole run."""

    def __post_init__(self) -> None:
        for name, value in (("lr", self.lr), ("value_lr", self.value_lr), ("clip_grad", self.clip_grad)):
            if value is not None and not value > 0:
                raise ConfigError(name, f"expected more than 0, found {value:g}")
        for name, beta in (("adam_beta1", self.adam_beta1), ("adam_beta2", self.adam_beta2)):
            if not 0 <= beta < 1:
                raise ConfigError(name, f"expected a value in [0, 1), found {beta:g}")
        if self.total_training_steps is not None and self.total_training_steps < 1:
            raise ConfigError("total_training_steps", f"expected at least 1, found {self.total_training_steps}")

    def spanning(self, training_steps: int | None) -> OptimConfig:
        """The same, with `training_steps` where `total_training_steps` is not set.

        Raises:
            ConfigError: `linear` has no steps to fall over.
        """
        total = self.total_training_steps or training_steps
        if self.lr_scheduler == "linear" and total is None:
            found = "expected the number of steps for lr_scheduler 'linear', found none"
            raise ConfigError("actor.optim.total_training_steps", found, "Set it.")
        return replace(self, total_training_steps=total)

    def factor(self, step: int) -> float:
        """By what the learning rate is multiplied at optimizer step `step`, counted from 0."""
        if self.lr_scheduler == "constant" or self.total_training_steps is None:
            return 1.0
        return max(0.0, 1.0 - step / self.total_training_steps)


@dataclass(frozen=True, slots=True)
class FSDPConfig:
    """How several ranks share the work. With one rank it has no effect: no process group is made."""

    strategy: Literal["fsdp2", "none"] = "fsdp2"
    """`fsdp2` shards weights, gradients and optimizer state over ranks; `none` keeps all of them on each rank."""
    timeout_s: float = 600.0
    """Seconds that a rank waits for the others."""


@dataclass(frozen=True, slots=True)
class FSDPTrainerConfig:
    """Trains on torch, on one rank or many, by name: `actor.training_backend: fsdp`."""

    optim: OptimConfig = field(default_factory=OptimConfig)
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)

    def build(self, policy: Any, *, rank: int, world_size: int, rendezvous: str, training_steps: int | None = None) -> FSDPTrainer:
        """A trainer of `policy` as one of `world_size` ranks; every rank calls it.

        Args:
            policy: a `torch.nn.Module` that is a `Policy`. The trainer owns it from now on. Rank 0's weights win.
            rank: 0 … world_size − 1.
            world_size: how many ranks train together.
            rendezvous: where they meet, `tcp://host:port`; "" for one rank.
            training_steps: optimizer steps of the whole run, over which schedules span; None if nobody knows.

        Raises:
            ConfigError: the policy is no module, or several ranks have nowhere to meet.
            DeadlineExceeded: another rank did not come in time.
        """
        from rlinf.engines.fsdp_trainer import FSDPTrainer
        from rlinf.engines.ranks import join

        config = replace(self, optim=self.optim.spanning(training_steps))
        device = FSDPTrainer.device_of(policy)
        ranks = join(rank, world_size, rendezvous, device=device, timeout_s=self.fsdp_config.timeout_s)
        return FSDPTrainer(config, policy, ranks)
