"""What `rlinf.algorithms.elementwise` computes, each with its gradient."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""The integer of the same size."""


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: Tensor) -> Tensor:
        ctx.save_for_backward(bits)
        return (x.view(bits.dtype) & bits).view(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Through `apply` again, so that the gradient itself can be differentiated.
        return Kept.apply(grad, *ctx.saved_tensors), None  # pyright: ignore[reportReturnType]


class Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float | Tensor | None, high: float | Tensor | None) -> Tensor:
        y = cast("Tensor", x.clamp(low, high))  # pyright: ignore[reportUnknownMemberType,reportArgumentType,reportCallIssue]
        # 1 where the bounds held nothing, in the type of `x`: the way back is one product.
        ctx.save_for_backward(y.clone().eq_(x))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * ctx.saved_tensors[0], None, None


class Larger(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        y = torch.maximum(a, b)
        ctx.save_for_backward(a.clone().ge_(b))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # The whole gradient goes to one of both; torch halves it where they are equal, which would halve that of an unclipped
        # value.
        to_first = grad * ctx.saved_tensors[0]
        return to_first, grad - to_first
