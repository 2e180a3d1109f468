"""How ranks share weights, gradients and optimizer state, and in which precision they compute; light to import."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from rlinf.core.config import expect_at_least, expect_seconds
from rlinf.core.errors import ConfigError

Precision = Literal["fp32", "bf16"]
Computed = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """In what is computed and communicated, where the optimizer changes weights in float32.

    Micikevicius et al., "Mixed Precision Training" (2017), arXiv:1710.03740.
    """

    param_dtype: Computed | None = None
    """Of weights, inputs and activations in the forward and backward pass; None for the type of each weight as the policy was
    built (`actor.model.precision`). With `fp16` the loss is scaled, see `rlinf.engines.optim.loss_scale`."""
    reduce_dtype: Computed | None = None
    """In which gradients are added over ranks, and kept; None for float32 where weights are computed with in less."""
    master_weights: bool = True
    """Whether trained weights of less than float32 are kept, changed and saved in float32, and only computed with as they were
    built. Without, they are changed as they are, and a small step changes nearly none of them: at a learning rate of 1e-6,
    bfloat16 loses 99 % of the changes. It saves half of the memory of weights, gradients and optimizer state."""


@dataclass(frozen=True, slots=True)
class AmpAutocast:
    """torch's autocast around the forward pass: each operator in the precision that suits it."""

    enabled: bool = False
    """Whether the forward pass runs under autocast; take `param_dtype` instead to compute everything in one precision."""
    precision: Computed = "bf16"
    """Of the operators that allow it. With `fp16` the loss is scaled, see `rlinf.engines.optim.loss_scale`."""


@dataclass(frozen=True, slots=True)
class WrapPolicy:
    """Which modules FSDP gathers, and gradient checkpointing computes again, one at a time."""

    transformer_layer_cls_to_wrap: tuple[str, ...] = ()
    """Names of classes. None named: what the model declares (`_no_split_modules`), or else what is repeated in a `ModuleList`."""


@dataclass(frozen=True, slots=True)
class FSDPConfig:
    """How several ranks share the work.

    Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (2023), arXiv:2304.11277; Rajbhandari et al.,
    "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2019), arXiv:1910.02054.
    """

    strategy: Literal["auto", "fsdp2", "fsdp", "none"] = "auto"
    """`fsdp2` shards weights, gradients and optimizer state over ranks, of which there may be one, and `fsdp` is another name
    of it; `none` keeps all of them on each rank; `auto` is `fsdp2` where it changes anything: with several ranks that have
    processes of their own, another precision or `cpu_offload`."""
    sharding_strategy: Literal["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"] = "full_shard"
    """`full_shard` gathers the weights of one block at a time; `shard_grad_op` gathers all and keeps them for the whole step;
    `hybrid_shard` shards over `shard_group_size` ranks and repeats over the others; `no_shard` is the strategy `none`."""
    shard_group_size: int | None = None
    """How many consecutive ranks share one copy under `hybrid_shard`, as a rule those of a node; it divides the number of ranks."""
    wrap_policy: WrapPolicy = field(default_factory=WrapPolicy)
    """What a block is."""
    mixed_precision: MixedPrecision = field(default_factory=MixedPrecision)
    """In what is computed."""
    amp_autocast: AmpAutocast = field(default_factory=AmpAutocast)
    """Another way to compute in less precision, with or without sharding."""
    gradient_checkpointing: bool = False
    """Whether the activations of a block are computed again on the way back instead of kept: less memory, a third more time."""
    enable_gradient_accumulation: bool = True
    """Whether gradients stay whole on each rank until the last micro-batch; otherwise they are added over ranks after each, which
    costs time and saves the memory of whole gradients."""
    cpu_offload: bool = False
    """Whether weights, gradients and optimizer state rest in host memory all the time, where the optimizer computes, too."""
    offload_pin_memory: bool = True
    """Whether that memory is pinned; only where there is an accelerator."""
    ignore_frozen: bool = False
    """Whether weights that are not trained stay whole on each rank: fewer messages for LoRA, and more memory."""
    timeout_s: float = 600.0
    """Seconds that a rank waits for the others."""

    def __post_init__(self) -> None:
        expect_seconds("timeout_s", self.timeout_s)
        if (self.sharding_strategy == "hybrid_shard") != (self.shard_group_size is not None):
            found = f"expected a size with sharding_strategy 'hybrid_shard' and no other, found {self.shard_group_size}"
            raise ConfigError("shard_group_size", f"{found} with '{self.sharding_strategy}'", "Set it to the ranks of a node.")
        expect_at_least("shard_group_size", self.shard_group_size, 1)
        if self.whole and self.cpu_offload:
            raise ConfigError(
                "strategy", "weights that are not sharded have no cpu_offload", "Use fsdp2: it works on one rank, too."
            )
        if self.whole and self.mixed_precision.reduce_dtype is not None:
            problem = "weights that are not sharded have their gradients added in float32"
            raise ConfigError("mixed_precision.reduce_dtype", problem, "Remove it, or use fsdp2, which works on one rank, too.")

    @property
    def whole(self) -> bool:
        """Whether sharding is refused."""
        return self.strategy == "none" or self.sharding_strategy == "no_shard"

    @property
    def _other_precision(self) -> bool:
        return self.mixed_precision.param_dtype is not None or self.mixed_precision.reduce_dtype is not None

    @property
    def scales_loss(self) -> bool:
        """Whether anything computes in float16, whose small gradients need a scaled loss."""
        return self.mixed_precision.param_dtype == "fp16" or (self.amp_autocast.enabled and self.amp_autocast.precision == "fp16")

    def in_one_process(self) -> FSDPConfig:
        """What ranks make of it that share a process, where FSDP can't tell them apart: each keeps everything.

        Raises:
            ConfigError: it asks for shards.
        """
        asked = {
            "strategy": self.strategy in ("fsdp", "fsdp2") and self.sharding_strategy != "no_shard",
            "cpu_offload": self.cpu_offload,
            "mixed_precision.reduce_dtype": self.mixed_precision.reduce_dtype is not None,
        }
        for key in (key for key, found in asked.items() if found):
            problem = "shards need a process for each rank, and several ranks of cluster.backend local share one"
            remedy = "Leave it out, set cluster.backend: ray, or place one actor."
            raise ConfigError(f"actor.fsdp_config.{key}", problem, remedy)
        return replace(self, strategy="none")

    def shards(self, world_size: int) -> bool:
        """Whether so many ranks use FSDP2.

        Raises:
            ConfigError: `shard_group_size` does not divide them.
        """
        if self.whole:
            return False
        if self.shard_group_size is not None and world_size % self.shard_group_size:
            found = f"{self.shard_group_size} does not divide {world_size} ranks"
            raise ConfigError("actor.fsdp_config.shard_group_size", found, "Use a divisor.")
        return self.strategy != "auto" or world_size > 1 or self._other_precision or self.cpu_offload


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """What `save` writes; `load` reads either."""

    format: Literal["whole", "sharded"] = "whole"
    """`whole` gathers everything on rank 0; with `sharded` each rank writes what it holds, through torch.distributed.checkpoint."""
    export: bool = True
    """Whether `sharded` also gathers the weights into one `model.safetensors`, which evaluation and other programs read."""
