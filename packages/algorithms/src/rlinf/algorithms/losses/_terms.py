"""A loss in tiles as one operation of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlinf.algorithms.losses.terms import Run


class Tiled(torch.autograd.Function):
    """The total, whose gradients are computed with it."""

    @staticmethod
    def forward(ctx: Any, run: Run, *leaves: Tensor) -> Tensor:
        total, ctx.slopes = run.whole()
        ctx.run = run
        ctx.save_for_backward(*leaves)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        leaves = ctx.saved_tensors
        slopes = ctx.run.whole()[1] if ctx.slopes is None else ctx.slopes  # a graph that was retained is computed again
        # They are scaled in place below, so they serve once.
        ctx.slopes = None
        return None, *(None if x is None else x.mul_(grad).to(leaf.dtype) for x, leaf in zip(slopes, leaves, strict=True))
