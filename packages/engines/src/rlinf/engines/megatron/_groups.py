"""The groups of ranks that Megatron makes, of which a process has one set."""

from __future__ import annotations

import logging
import math
import warnings
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf.core.errors import ConfigError
from rlinf.engines.megatron.parallelism import Parallelism
from rlinf.engines.ranks import Ranks

logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
with warnings.catch_warnings():
    # That Transformer Engine and Apex are not installed is said once by the documentation, and by each of its modules.
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Groups:
    """One rank's view of those with which it shares a model, or a batch."""

    ranks: Ranks
    tensor: Any
    """Those that share each matrix."""
    context: Any
    """Those that share the columns of rows."""
    pipeline: Any
    """Those that have the other layers."""
    data: Any
    """Those that hold the same part of the model, and train on other samples."""
    copies: Any
    """Those that hold the same part of the model: `data` and `context`."""
    model: Any
    """Those that hold the rest of the model: `tensor` and `pipeline`."""
    experts: Any
    """Those that share the experts of a layer."""
    expert_copies: Any
    """Those that hold the same experts."""
    expert_model: Any
    """Those that hold all other experts of the model: `experts` and `pipeline`."""
    ends: Any
    """The first and the last of `pipeline`; None in the middle."""

    @classmethod
    def of(cls, config: Parallelism, ranks: Ranks) -> Groups:
        """The groups of a process that has met the others; every rank calls it.

        Raises:
            ConfigError: the process has them already.
        """
        if parallel_state.model_parallel_is_initialized():
            problem = "this process has a Megatron trainer already"
            raise ConfigError(f"trainer[{ranks.rank}]", problem, "Close it, or give each trainer a process of its own.")
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=config.tensor_model_parallel_size,
            pipeline_model_parallel_size=config.pipeline_model_parallel_size,
            context_parallel_size=config.context_parallel_size,
            expert_model_parallel_size=config.expert_model_parallel_size,
            # `Mixture` has whole experts.
            expert_tensor_parallel_size=1,
            # Megatron takes whole minutes.
            distributed_timeout_minutes=max(1, math.ceil(config.timeout_s / 60)),
            create_gloo_process_groups=False,
        )
        return cls(
            ranks,
            tensor=parallel_state.get_tensor_model_parallel_group(),
            context=parallel_state.get_context_parallel_group(),
            pipeline=parallel_state.get_pipeline_model_parallel_group(),
            data=parallel_state.get_data_parallel_group(),
            copies=parallel_state.get_data_parallel_group(with_context_parallel=True),
            model=parallel_state.get_model_parallel_group(),
            experts=parallel_state.get_expert_model_parallel_group(),
            expert_copies=parallel_state.get_expert_data_parallel_group(),
            expert_model=parallel_state.get_expert_tensor_model_pipeline_parallel_group(),
            # Stages in the middle have none, at which Megatron would raise.
            ends=parallel_state.get_embedding_group(check_initialized=False),
        )

    @property
    def stage(self) -> int:
        """This rank's place in the pipeline."""
        return dist.get_rank(self.pipeline)

    @property
    def stages(self) -> int:
        """How many there are."""
        return dist.get_world_size(self.pipeline)

    @property
    def last(self) -> bool:
        """Whether this rank computes the loss."""
        return self.stage == self.stages - 1

    @property
    def column(self) -> int:
        """This rank's place among those that share matrices."""
        return dist.get_rank(self.tensor)

    def passes(self, own: int) -> int:
        """How many passes this rank makes: its own, or where experts are divided, as many as the busiest; every rank calls it."""
        return own if dist.get_world_size(self.experts) == 1 else int(max(self.ranks.all_gather(own)))

    def all_reduce(self, value: Tensor, group: Any) -> Tensor:
        """The sum over a group, in a new tensor; every rank of it calls it."""
        total = value.detach().clone()
        if dist.get_world_size(group) > 1:
            dist.all_reduce(total, group=group)  # pyright: ignore[reportUnknownMemberType]
        return total

    def all_gather(self, value: Tensor, group: Any) -> list[Tensor]:
        """The tensor of each rank of a group, all of one shape."""
        if dist.get_world_size(group) == 1:
            return [value]
        parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, value.contiguous(), group=group)  # pyright: ignore[reportUnknownMemberType]
        return parts

    def from_stage(self, tensor: Tensor, stage: int) -> Tensor:
        """Overwrites `tensor` by that of one stage of the pipeline, and returns it; every stage calls it."""
        if self.stages > 1:
            source = dist.get_global_rank(self.pipeline, stage)
            dist.broadcast(tensor, src=source, group=self.pipeline)  # pyright: ignore[reportUnknownMemberType]
        return tensor

    def said_by_last(self, value: T) -> T:
        """What the last stage has; every stage calls it."""
        if self.stages == 1:
            return value
        held: list[Any] = [value]
        source = dist.get_global_rank(self.pipeline, self.stages - 1)
        cast("Any", dist).broadcast_object_list(held, src=source, group=self.pipeline)
        return held[0]

    def leave(self) -> None:
        """Ends them, and what the ranks met in."""
        leave(self.ranks)


def leave(ranks: Ranks) -> None:
    """Ends the groups of this process, if it has any, and what the ranks met in."""
    parallel_state.destroy_model_parallel()
    ranks.leave()
