"""Forward and backward passes over micro-batches: one after another, or in Megatron's pipeline.

With one stage nothing here asks for a GPU. With several, `megatron.core.pipeline_parallel` sends activations between stages, one
forward pass, one backward pass at a time (1F1B), and wants CUDA.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from rlinf.core.errors import ConfigError
from rlinf.engines.megatron._groups import Groups
from rlinf.engines.megatron._network import Columns, Network

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.pipeline_parallel import get_forward_backward_func

Finish = Callable[[int, Tensor], tuple[Tensor | None, Any]]
"""What the last stage makes of a micro-batch's number and its hidden states: what to descend, and what to remember."""


def run(network: Network, groups: Groups, parts: Sequence[Columns], finish: Finish, *, learn: bool) -> list[Any]:
    """Passes every micro-batch through the model; every rank that shares it calls it, and every rank at all if experts are divided.

    Experts answer to all ranks that share them in each pass: ranks with fewer micro-batches make passes of which nothing comes.

    Args:
        network: this rank's part.
        groups: the ranks.
        parts: this rank's columns of each micro-batch.
        finish: called on the last stage, for each micro-batch in order.
        learn: whether gradients are wanted.

    Returns:
        What was remembered, on the last stage; elsewhere nothing.
    """
    idle = groups.passes(len(parts)) - len(parts)

    def finished(number: int, hidden: Tensor) -> tuple[Tensor | None, Any]:
        if number < len(parts):
            return finish(number, hidden)
        # With a graph, because experts answer to all ranks in the backward pass, too.
        return (hidden * 0.0).sum() if learn else None, None

    passed = _pipelined if groups.stages > 1 else _one_by_one
    return passed(network, [*parts, *(network.idle() for _ in range(idle))], finished, learn=learn)[: len(parts)]


def _one_by_one(network: Network, parts: Sequence[Columns], finish: Finish, *, learn: bool) -> list[Any]:
    found: list[Any] = []
    for number, part in enumerate(parts):
        with torch.set_grad_enabled(learn):
            total, remembered = finish(number, network.forward(part))
        if total is not None:
            total.backward()  # pyright: ignore[reportUnknownMemberType]
        found.append(remembered)
    return found


def _pipelined(network: Network, parts: Sequence[Columns], finish: Finish, *, learn: bool) -> list[Any]:
    def forward(numbers: Iterator[int], module: Any) -> tuple[Tensor, Any]:
        number = next(numbers)

        def last(hidden: Tensor, non_loss_data: bool = False) -> Any:
            total, remembered = finish(number, hidden)
            return remembered if non_loss_data else (total, torch.tensor(0, dtype=torch.int, device=hidden.device), remembered)

        with torch.set_grad_enabled(learn):
            return network.forward(parts[number]), last

    schedule = cast("Any", get_forward_backward_func)()
    return schedule(
        forward_step_func=forward,
        data_iterator=iter(range(len(parts))),
        model=network.module,
        num_microbatches=len(parts),
        # With `variable_seq_lengths` stages tell each other the shapes, and neither number is read.
        seq_length=1,
        micro_batch_size=1,
        forward_only=not learn,
        collect_non_loss_data=not learn,
    )


def check_device(stages: int, *, sequence_parallel: bool, device: torch.device) -> None:
    """Refuses what Megatron computes on a GPU alone.

    Raises:
        ConfigError: stages or divided activations without CUDA.
    """
    cuda = device.type == "cuda"
    if stages > 1 and not cuda:
        found = f"{stages} stages exchange activations through CUDA, found weights on {device.type}"
        raise ConfigError("actor.pipeline_model_parallel_size", found, "Use 1 without a GPU.")
    if sequence_parallel and not cuda:
        raise ConfigError("actor.sequence_parallel", f"needs CUDA, found weights on {device.type}", "Set it to false.")
