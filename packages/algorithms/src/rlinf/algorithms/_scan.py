"""`scan_from_right` with its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.scan import scan_from_right, scanned


class ScanFromRight(torch.autograd.Function):
    """The gradient runs through the same recurrence from the left: gₜ = ∂yₜ + decayₜ₋₁ gₜ₋₁, ∂decayₜ = gₜ yₜ₊₁."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: Tensor) -> Tensor:
        y = scanned(x, decay)
        ctx.save_for_backward(decay, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        decay, y = ctx.saved_tensors
        # yₜ enters yₜ₋₁ with decayₜ₋₁, so the gradient runs to the right with the decays shifted by one.
        before = torch.cat([torch.zeros_like(decay[:, :1]), decay[:, :-1]], 1)
        grad_x = scan_from_right(grad.flip(1), before.flip(1)).flip(1)
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        after = torch.cat([y[:, 1:], torch.zeros_like(y[:, :1])], 1)
        return grad_x, grad_x * after
