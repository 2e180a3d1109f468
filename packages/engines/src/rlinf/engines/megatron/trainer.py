"""The configuration of the Megatron trainer; light to import, the trainer is in `_trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules
from rlinf.engines.fsdp.config import Precision
from rlinf.engines.megatron.parallelism import Parallelism
from rlinf.engines.optim.config import OptimConfig as OptimConfig

if TYPE_CHECKING:
    from rlinf.engines.megatron._trainer import MegatronTrainer


@dataclass(frozen=True, slots=True)
class MegatronTrainerConfig(Parallelism):
    """Trains a causal language model with Megatron-Core, by name: `actor.training_backend: megatron`.

    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism" (2019),
    arXiv:1909.08053; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021),
    arXiv:2104.04473.
    """

    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer and its schedule."""
    precision: Precision | None = None
    """In what is computed; None for the type of the policy's weights. The optimizer changes float32 weights in any case."""
    use_distributed_optimizer: bool = False
    """Whether optimizer state and float32 weights are divided over the data-parallel ranks."""
    max_tokens_per_mbs: int | None = None
    """Micro-batches are parted into such of whole rows that, packed, have no more columns than that; a longer row goes alone. None
    takes micro-batches as they are given, padding included."""
    reference: Literal["none", "device", "cpu"] = "none"
    """The reference policy: none; or the initial weights, kept on the device or in host memory and swapped in for scoring."""

    def __post_init__(self) -> None:
        Parallelism.__post_init__(self)
        expect_at_least("max_tokens_per_mbs", self.max_tokens_per_mbs, 1)
        if self.optim.value_lr is not None or self.optim.critic_warmup_steps > 0:
            raise ConfigError("optim", "this trainer has no critic, found value_lr or critic_warmup_steps", "Use the trainer fsdp.")

    def keeping_reference(self) -> MegatronTrainerConfig:
        return replace(self, reference="device") if self.reference == "none" else self

    def check_ranks(self, world_size: int, *, one_process: bool) -> None:
        if one_process and world_size > 1:
            problem = "Megatron needs a process for each rank, and several ranks of cluster.backend local share one"
            raise ConfigError("actor.training_backend", problem, "Set cluster.backend: ray, place one actor, or choose fsdp.")
        self.data_rank(0, world_size)

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
