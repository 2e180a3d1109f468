"""Gradients as plain local tensors: their norm, their scale, their sum over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlinf.engines.ranks import Ranks

TINY = 1e-6


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory; the tensor itself where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor  # pyright: ignore[reportUnknownMemberType]


def full(tensor: Tensor) -> Tensor:
    """The whole tensor on the CPU, in memory of its own; where it is sharded, every rank calls it."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor  # pyright: ignore[reportUnknownMemberType]
    return whole.detach().to("cpu", copy=True)


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """This rank's part of every gradient there is."""
    return [local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def square_norm(gradients: Sequence[Tensor]) -> float:
    """Σ g² over all entries."""
    return float(torch.nn.utils.get_total_norm(gradients)) ** 2 if gradients else 0.0


@torch.no_grad()
def sum_over_ranks(gradients: Sequence[Tensor], ranks: Ranks) -> None:
    """Replaces each gradient by its sum over ranks, in one message."""
    if ranks.alone or not gradients:
        return
    flat = ranks.all_reduce(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


@torch.no_grad()
def scale(gradients: Sequence[Tensor], factor: float) -> None:
    """Multiplies gradients in place."""
    for gradient in gradients:
        gradient.mul_(factor)


@dataclass(frozen=True, slots=True)
class Division:
    """How sums of gradients become the gradient of a mean, clipped."""

    factor: float
    """What to multiply by."""
    norm: float
    """The norm after the division and before the clip."""

    @staticmethod
    def of(square: float, weight: float, clip_grad: float | None) -> Division:
        """From Σ g² and the weight, both over all ranks."""
        norm = square**0.5 / weight if weight > 0 else float("nan")
        shrink = 1.0 if clip_grad is None else min(1.0, clip_grad / (norm + TINY))
        return Division(shrink / weight if weight > 0 else 0.0, norm)
