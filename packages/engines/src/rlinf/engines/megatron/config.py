"""The configuration of the Megatron trainer; light to import, the trainer is in `_trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlinf.core.config import expect_seconds
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules
from rlinf.engines.fsdp import Precision
from rlinf.engines.optim import OptimConfig as OptimConfig

if TYPE_CHECKING:
    from rlinf.engines.megatron._trainer import MegatronTrainer

SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)


@dataclass(frozen=True, slots=True)
class MegatronTrainerConfig:
    """Trains a causal language model with Megatron-Core, by name: `actor.training_backend: megatron`.

    Ranks are numbered as Megatron does: those of one tensor group are neighbours, then context, then data, then pipeline.
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism" (2019),
    arXiv:1909.08053; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021),
    arXiv:2104.04473.
    """

    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer and its schedule."""
    tensor_model_parallel_size: int = 1
    """Over how many ranks each matrix is divided; it divides the attention heads, and those of keys and values."""
    pipeline_model_parallel_size: int = 1
    """Over how many ranks the layers are divided; it divides their number."""
    context_parallel_size: int = 1
    """Over how many ranks the columns of a row are divided."""
    expert_model_parallel_size: int = 1
    """Over how many ranks the experts of a mixture are divided: neighbours of those that hold the same layers, whatever else they
    divide. It divides their number, and that of the experts."""
    sequence_parallel: bool = False
    """Whether activations between matrices are divided over the tensor ranks, too: less memory. Needs a GPU."""
    recompute: bool = False
    """Whether the activations of a layer are computed again on the way back instead of kept."""
    precision: Precision | None = None
    """In what is computed; None for the type of the policy's weights. The optimizer changes float32 weights in any case."""
    use_distributed_optimizer: bool = False
    """Whether optimizer state and float32 weights are divided over the data-parallel ranks."""
    max_tokens_per_mbs: int | None = None
    """Micro-batches are parted into such of whole rows that, packed, have no more columns than that; a longer row goes alone. None
    takes micro-batches as they are given, padding included."""
    logit_chunk: int = 256
    """Tokens whose logits exist at the same time."""
    reference: Literal["none", "device", "cpu"] = "none"
    """The reference policy: none; or the weights at the start, kept beside the weights or in host memory, and swapped in."""
    timeout_s: float = 600.0
    """Seconds that a rank waits for the others."""

    def __post_init__(self) -> None:
        for name in (*SIZES, "logit_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"expected at least 1, found {getattr(self, name)}")
        if self.max_tokens_per_mbs is not None and self.max_tokens_per_mbs < 1:
            raise ConfigError("max_tokens_per_mbs", f"expected at least 1, found {self.max_tokens_per_mbs}")
        expect_seconds("timeout_s", self.timeout_s)
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise ConfigError("sequence_parallel", "expected tensor_model_parallel_size above 1, found 1", "Set it to false.")
        if self.optim.value_lr is not None or self.optim.critic_warmup_steps > 0:
            raise ConfigError("optim", "this trainer has no critic, found value_lr or critic_warmup_steps", "Use the trainer fsdp.")

    @property
    def model_size(self) -> int:
        """How many ranks hold one copy of the model."""
        return self.tensor_model_parallel_size * self.context_parallel_size * self.pipeline_model_parallel_size

    def data_rank(self, rank: int, world_size: int) -> tuple[int, int]:
        """Which share of the samples a rank trains on, and how many shares there are; see `rlinf.core.capabilities.ModelParallel`.

        Raises:
            ConfigError: so many ranks can't hold whole copies of the model.
        """
        if world_size % self.model_size:
            sizes = f"tensor {self.tensor_model_parallel_size} × pipeline {self.pipeline_model_parallel_size}"
            found = f"{world_size} ranks can't hold copies of {sizes} × context {self.context_parallel_size} ranks"
            raise ConfigError("actor", found, f"Place the actor on a multiple of {self.model_size} ranks, or change the sizes.")
        peers = world_size // self.pipeline_model_parallel_size
        if peers % self.expert_model_parallel_size:
            found = f"the {peers} ranks that hold the same layers can't be parted into groups of {self.expert_model_parallel_size}"
            raise ConfigError("actor.expert_model_parallel_size", found, "Use a divisor.")
        shares = world_size // self.model_size
        return rank // (self.tensor_model_parallel_size * self.context_parallel_size) % shares, shares

    def keeping_reference(self) -> MegatronTrainerConfig:
        """The same, with the weights at the start as reference policy unless one is chosen."""
        return replace(self, reference="device") if self.reference == "none" else self

    def build(
        self, policy: Any, *, rank: int, world_size: int, rendezvous: str, training_steps: int | None = None
    ) -> MegatronTrainer:
        """A trainer of `policy` as one of `world_size` ranks; every rank calls it.

        Args:
            policy: a language model (`rlinf.core.capabilities.LanguageModelPolicy`) of an architecture that is known here. The
                trainer owns it from now on, and its memory is freed. Rank 0's weights win.
            rank: 0 … world_size − 1.
            world_size: how many ranks train together.
            rendezvous: where they meet, `tcp://host:port`; "" for one rank.
            training_steps: optimizer steps of the whole run, over which schedules span; None if nobody knows.

        Raises:
            MissingExtra: Megatron-Core is not installed.
            ConfigError: the policy is none that can be trained here, the sizes don't fit it, or ranks have nowhere to meet.
            DeadlineExceeded: another rank did not come in time.
        """
        require_modules("megatron", "megatron.core", place="actor.training_backend", extra="rlinf-engines[megatron]")
        from rlinf.engines.megatron._trainer import MegatronTrainer

        self.data_rank(rank, world_size)
        config = replace(self, optim=self.optim.spanning(training_steps))
        return MegatronTrainer.join(config, policy, rank=rank, world_size=world_size, rendezvous=rendezvous)
