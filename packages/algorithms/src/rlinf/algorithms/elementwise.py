"""Masks, bounds and comparisons that are as fast as a product, in float32 or finer.

On a CPU whatever selects by a bool (`torch.where`, and the gradients of `clamp` and `maximum`) is not vectorised, and takes some
twenty times as long as a multiplication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.algorithms.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or as it is if it is finer."""
    # Asked for dozens of times in an update of small networks, where a call of torch that does nothing takes as long as a sum.
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def difference(a: Tensor, b: Tensor) -> Tensor:
    """`a − b` of log-probabilities in at least float32; 0 where both are −∞, since of what neither does neither does more."""
    # −∞ − −∞ is NaN, though both policies agree that the action is impossible.
    return torch.where(a.isneginf() & b.isneginf(), 0.0, at_least_float32(a) - at_least_float32(b))


def distance(error: Tensor, huber_delta: float | None) -> Tensor:
    """ℓ(e) = ½ e², or with δ Huber's: ½ e² if |e| ≤ δ, else δ (|e| − ½ δ)."""
    if huber_delta is None:
        return 0.5 * error.square()
    return torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=huber_delta)


def keep(x: Tensor, mask: Tensor) -> Tensor:
    """`x`, and 0 without a gradient where `mask` is False, whatever stands there.

    Args:
        x: float32 or float64, any shape.
        mask: bool, of a shape that broadcasts to that of `x`.
    """
    # Here and below, as their base class is torch's, and this module is imported without it.
    from rlinf.algorithms._elementwise import BITS, Kept

    if x.device.type != "cpu":
        return torch.where(mask, x, 0.0)
    # True is −1, all bits set; False is 0: an AND of the bits keeps x or makes it +0, even where it is NaN, which a product would
    # not.
    bits = mask.to(BITS[x.dtype]).neg_()
    if torch.is_grad_enabled() and x.requires_grad:
        return Kept.apply(x, bits)  # pyright: ignore[reportReturnType]
    return (x.view(bits.dtype) & bits).view(x.dtype)


def bounded(x: Tensor, low: float | Tensor | None = None, high: float | Tensor | None = None) -> Tensor:
    """`x` within bounds that have no gradient; beyond them, neither has `x`."""
    from rlinf.algorithms._elementwise import Bounded

    # `clamp` has the same gradient, through a slow select; here it is a product with 0 or 1.
    return Bounded.apply(x, low, high)  # pyright: ignore[reportReturnType]


def larger(a: Tensor, b: Tensor) -> Tensor:
    """The larger of two tensors of one shape; where they are equal the gradient goes to the first alone."""
    from rlinf.algorithms._elementwise import Larger

    return Larger.apply(a, b)  # pyright: ignore[reportReturnType]


def above(a: Tensor, b: Tensor | float) -> Tensor:
    """1 where `a` is greater than `b`, else 0; in the type of `a`, without a gradient."""
    # In place on a copy, the answer has the type of `a`: no bool, which later products would have to convert.
    return a.detach().clone().gt_(b)
