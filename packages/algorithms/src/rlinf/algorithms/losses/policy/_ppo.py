"""The arithmetic of `pessimistic`, with its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Pessimistic(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ratio: Tensor, gain: Tensor, low: float, high: float, dual: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The same operations on both: where the clip holds nothing they are equal bit for bit, and `clipped` is 0.
        free = ratio * -gain
        held = ratio.clamp(low, high) * -gain
        loss = torch.maximum(free, held)
        # In place: `held` is not needed any more, and the flag is already a number.
        clipped = held.gt_(free)
        if dual is None:
            capped = torch.zeros_like(clipped)
        else:
            ceiling = gain.abs() * dual  # at least 0, as no loss is where Â ≥ 0
            capped = loss.clone().gt_(ceiling)
            loss = torch.minimum(loss, ceiling)
        # The derivative by ρ is −Â where the free term is the loss, else 0: one tensor is all that is kept for the way back.
        ctx.save_for_backward(free.eq_(loss).mul_(gain).neg_())
        ctx.shape = ratio.shape
        ctx.mark_non_differentiable(clipped, capped)
        return loss, clipped, capped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # ρ may have been broadcast over decisions (GSPO has one for a row).
        return (grad * ctx.saved_tensors[0]).sum_to_size(ctx.shape), None, None, None, None
