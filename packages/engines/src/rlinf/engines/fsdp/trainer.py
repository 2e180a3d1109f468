"""The configuration of the trainer; light to import, the trainer is in `_trainer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import Objective
from rlinf.core.protocols import WeightSize
from rlinf.engines.fsdp.config import CheckpointConfig, FSDPConfig
from rlinf.engines.optim.config import OptimConfig

if TYPE_CHECKING:
    from rlinf.engines.fsdp._trainer import FSDPTrainer
    from rlinf.engines.off_policy._trainer import TorchOffPolicyTrainer


@dataclass(frozen=True, slots=True)
class FSDPTrainerConfig:
    """Trains on torch, on one rank or many, by name: `actor.training_backend: fsdp`."""

    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer and its schedule."""
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)
    """How ranks share, and in which precision they compute."""
    max_tokens_per_mbs: int | None = None
    """For language models: micro-batches are parted into such of whole rows that, packed, have no more columns than that, and
    are packed for the forward pass; a longer row goes alone. None takes micro-batches as they are given, padding included."""
    share_prefixes: bool = False
    """For language models, with `max_tokens_per_mbs`: whether what rows begin with alike, such as the prompt of a group or the
    turns that branches share, is computed once for each micro-batch, as a tree. Log-probabilities are the same; attention then
    takes a dense mask, quadratic in the columns of the longest tree. `train/shared_tokens` is the share that is not computed."""
    reference: Literal["none", "device", "cpu", "adapters"] = "none"
    """The reference policy: none; the initial weights, kept on the device or in host memory and swapped in for scoring; or the
    policy without its adapters, which costs nothing."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """How checkpoints are written."""

    def __post_init__(self) -> None:
        expect_at_least("max_tokens_per_mbs", self.max_tokens_per_mbs, 1)
        if self.share_prefixes and self.max_tokens_per_mbs is None:
            remedy = "Set max_tokens_per_mbs: only what is packed is shared."
            raise ConfigError("share_prefixes", "expected max_tokens_per_mbs, found none", remedy)

    @property
    def precision(self) -> str | None:
        autocast = self.fsdp_config.amp_autocast
        return self.fsdp_config.mixed_precision.param_dtype or (autocast.precision if autocast.enabled else None)

    def keeping_reference(self) -> FSDPTrainerConfig:
        return replace(self, reference="device") if self.reference == "none" else self

    def check_ranks(self, world_size: int, *, one_process: bool) -> None:
        if one_process and world_size > 1:
            self.fsdp_config.in_one_process()
            if self.checkpoint.format == "sharded":
                problem = "several ranks of cluster.backend local share a process, and have no shards to write"
                raise ConfigError("actor.checkpoint.format", problem, "Set it to whole, or cluster.backend: ray.")
        self.fsdp_config.shards(world_size)

    def bytes_per_rank(self, weights: Sequence[WeightSize], world_size: int) -> dict[str, int]:
        """What weights, gradients and optimizer take on a rank's device; see `rlinf.core.protocols.SaysMemory`.

        With shards, each rank has its share of the weights and of the optimizer's two moments; gradients are whole until the last
        micro-batch, unless `enable_gradient_accumulation` is off. Trained weights of less than float32 are kept in float32.

        Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2019), §3.1, arXiv:1910.02054.
        """
        fsdp = self.fsdp_config
        shards = fsdp.shards(world_size)
        parts = (fsdp.shard_group_size or world_size) if shards else 1
        found = {"weights": 0, "gradients": 0, "optimizer": 0}
        if fsdp.cpu_offload:
            return found
        for weight in weights:
            kept = max(4, weight.bytes_each) if weight.trained and fsdp.mixed_precision.master_weights else weight.bytes_each
            whole = fsdp.ignore_frozen and not weight.trained
            found["weights"] += weight.elements * kept // (1 if whole else parts)
            if weight.trained:
                # Gradients are added in float32 where weights are computed with in less.
                found["gradients"] += weight.elements * kept // (1 if fsdp.enable_gradient_accumulation else parts)
                found["optimizer"] += 2 * weight.elements * kept // parts
        return found

    def build(self, policy: Any, *, rank: int, world_size: int, rendezvous: str, training_steps: int | None = None) -> FSDPTrainer:
        """A trainer of `policy` as one of `world_size` ranks; every rank calls it.

        Args:
            policy: a `torch.nn.Module` that is a `Policy`. The trainer owns it from now on. Rank 0's weights win.
            rank: 0 … world_size − 1.
            world_size: how many ranks train together.
            rendezvous: where they meet, `tcp://host:port`; "" for one rank, and for workers that share a process.
            training_steps: optimizer steps of the whole run, over which schedules span; None if nobody knows.

        Raises:
            ConfigError: the policy is no module, or several ranks have nowhere to meet.
            DeadlineExceeded: another rank did not come in time.
        """
        from rlinf.engines.fsdp._trainer import FSDPTrainer
        from rlinf.engines.ranks import join

        # Several ranks that have nowhere to meet share a process.
        fsdp = self.fsdp_config if rendezvous or world_size == 1 else self.fsdp_config.in_one_process()
        config = replace(self, optim=self.optim.spanning(training_steps), fsdp_config=fsdp)
        device, grouped = FSDPTrainer.device_of(policy), fsdp.shards(world_size)
        ranks = join(rank, world_size, rendezvous, device=device, timeout_s=fsdp.timeout_s, grouped=grouped)
        return FSDPTrainer(config, policy, ranks)

    def check_off_policy(self) -> None:
        """Refuses shards and other precisions, which critics and targets don't have here; see `rlinf.core.off_policy`.

        Raises:
            ConfigError: the key that asks for them.
        """
        if self.optim.critic_warmup_steps:
            problem = f"off-policy training updates all parts from the start, found {self.optim.critic_warmup_steps}"
            raise ConfigError("actor.optim.critic_warmup_steps", problem, "Leave it out.")
        default = FSDPTrainerConfig(optim=self.optim)
        for name in ("fsdp_config", "max_tokens_per_mbs", "share_prefixes", "reference", "checkpoint"):
            if getattr(self, name) != getattr(default, name):
                problem = "off-policy training keeps whole weights in their own type on each rank, and reads nothing of this key"
                raise ConfigError(f"actor.{name}", problem, "Leave it out.")

    def build_off_policy(
        self,
        policy: Any,
        objective: Objective,
        spec: EnvSpec,
        *,
        seed: int,
        rank: int,
        world_size: int,
        rendezvous: str,
        training_steps: int | None = None,
    ) -> TorchOffPolicyTrainer:
        """As `build`, for an off-policy algorithm; see `rlinf.core.off_policy.TrainsOffPolicy`. Weights stay whole on each rank.

        Raises:
            ConfigError: what `check_off_policy` and `build` refuse.
        """
        from rlinf.engines.fsdp._trainer import FSDPTrainer
        from rlinf.engines.off_policy._trainer import TorchOffPolicyTrainer
        from rlinf.engines.ranks import join

        self.check_off_policy()
        device = FSDPTrainer.device_of(policy)
        ranks = join(rank, world_size, rendezvous, device=device, timeout_s=self.fsdp_config.timeout_s)
        optim = self.optim.spanning(training_steps)
        return TorchOffPolicyTrainer(optim, policy, objective, spec.action, ranks, seed=seed)
