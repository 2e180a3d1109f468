"""Where weights, gradients and optimizer state lie: whole on each rank, or sharded over all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from rlinf.engines.ranks import Ranks


class Layout(Protocol):
    """What a trainer must know of where tensors lie. The order of calls is the same on every rank."""

    @property
    def lockstep(self) -> bool:
        """Whether every rank must make the same number of forward and backward passes."""
        ...

    def begin(self, *, last: bool) -> None:
        """Before the forward pass of a micro-batch; `last` if it is the step's last on this rank."""
        ...

    def rest(self) -> None:
        """After forward passes without a backward pass."""
        ...

    def collect(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adds the gradients over ranks."""
        ...

    def gradients(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """This rank's part of every gradient there is; changing one in place changes the gradient."""
        ...

    def square_norm(self, gradients: Sequence[Tensor]) -> float:
        """What this rank adds to Σ g² over all entries of all gradients."""
        ...

    def local(self, tensor: Tensor) -> Tensor:
        """This rank's part of a tensor, not copied."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """The whole tensor on the CPU, in memory of its own; every rank calls it."""
        ...

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """What of a whole tensor this rank holds, if it lies as `like` does; every rank calls it."""
        ...


class Replicated:
    """Everything whole on each rank; with one rank nothing is ever sent."""

    lockstep = False
    """Ranks communicate after the last backward pass only."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def begin(self, *, last: bool) -> None:
        """Nothing to prepare."""

    def rest(self) -> None:
        """Nothing to undo."""

    @torch.no_grad()
    def collect(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adds the gradients, in one message for each type. A rank that did not use a weight which another used adds zeros."""
        if self._ranks.alone:
            return
        # Rows may differ in what they touch, as those without pictures; messages of different lengths can't be added.
        used = self._ranks.all_reduce(torch.tensor([float(parameter.grad is not None) for parameter in parameters]))
        for parameter, ranks in zip(parameters, used, strict=True):
            if ranks and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = self.gradients(parameters)
        # Sorted, because ranks have to send their messages in the same order.
        for dtype in sorted({gradient.dtype for gradient in gradients}, key=str):
            same = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = self._ranks.all_reduce(torch.cat([gradient.reshape(-1) for gradient in same]))
            for gradient, total in zip(same, torch.split(flat, [gradient.numel() for gradient in same]), strict=True):
                gradient.copy_(total.view_as(gradient))

    def gradients(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def square_norm(self, gradients: Sequence[Tensor]) -> float:
        """Every rank has the whole norm, and adds its share of it."""
        return total_square(gradients) / self._ranks.world_size

    def local(self, tensor: Tensor) -> Tensor:
        return tensor.detach()

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", copy=True)

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        return whole.to(like.device)


def total_square(gradients: Sequence[Tensor]) -> float:
    """Σ g² over the entries of these tensors."""
    # Squared as a Python float: the square of a large norm is infinite in float32.
    return float(torch.nn.utils.get_total_norm(gradients)) ** 2 if gradients else 0.0
