"""How ranks share a model."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.core.config import expect_at_least, expect_seconds
from rlinf.core.errors import ConfigError

SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Over how many ranks what is divided.

    Ranks are numbered as Megatron does: those of one tensor group are neighbours, then context, then data, then pipeline.
    """

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
    logit_chunk: int = 256
    """Tokens whose logits exist at the same time."""
    timeout_s: float = 600.0
    """Seconds that a rank waits for the others."""

    def __post_init__(self) -> None:
        for name in (*SIZES, "logit_chunk"):
            expect_at_least(name, getattr(self, name), 1)
        expect_seconds("timeout_s", self.timeout_s)
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise ConfigError("sequence_parallel", "expected tensor_model_parallel_size above 1, found 1", "Set it to false.")

    @property
    def model_size(self) -> int:
        """How many ranks hold one copy of the model."""
        return self.tensor_model_parallel_size * self.context_parallel_size * self.pipeline_model_parallel_size

    def data_rank(self, rank: int, world_size: int) -> tuple[int, int]:
        """Which share of the samples a rank trains on, and of how many; see `rlinf.core.declarations.ModelParallel`.

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
