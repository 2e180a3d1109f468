"""The recurrence from the right that returns and advantages are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor

BLOCK: Final = 4
"""Columns that are joined into one before a scan recurs on a quarter of the length."""
SHORT: Final = 32
"""Columns up to which a loop, one after the other, is faster than blocks."""
TILE: Final = 2**18
"""Numbers that each thread scans at once, so that all passes over them find them in its cache."""


@takes_tensors
def scan_from_right(x: Tensor, decay: Tensor) -> Tensor:
    """What each column and all that follow it add up to, discounted.

    yₜ = xₜ + decayₜ yₜ₊₁,   y_T = 0

    It takes O(log T) steps of O(B T) work in all: blocks of four columns become one of a scan a quarter as long, as in Blelloch,
    "Prefix Sums and Their Applications" (1990), CMU-CS-90-190. Nothing is ever divided, so a decay of 0 is exact.

    Args:
        x: `[B, T]`.
        decay: `[B, T]`, what the sum from the right is multiplied with before it is added; 0 ends an episode.

    Returns:
        `[B, T]`, differentiable in both to any order; float32, or float64 if either is.

    Raises:
        ShapeError: `x` is not `[B, T]`, or `decay` has another shape.
    """
    if x.dim() != 2:
        raise ShapeError("scan_from_right(x)", f"expected [B, T], found {tuple(x.shape)}")
    expect_shape("scan_from_right(decay)", decay, x.shape)
    dtype = torch.promote_types(torch.promote_types(x.dtype, decay.dtype), torch.float32)
    x, decay = x.to(dtype), decay.to(dtype)
    # The custom function keeps both tensors for the way back; most advantages are computed without gradients.
    if torch.is_grad_enabled() and (x.requires_grad or decay.requires_grad):
        from rlinf.algorithms._scan import ScanFromRight

        return ScanFromRight.apply(x, decay)  # pyright: ignore[reportReturnType]
    return scanned(x, decay)


def scanned(x: Tensor, decay: Tensor) -> Tensor:
    """The scan; on a CPU, whose cache is small, some rows after the other."""
    if x.shape[1] <= SHORT:
        return _scan_columns(x, decay).contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    # A device scans all rows at once: its memory is far faster than starting many small kernels.
    rows = max(1, TILE * torch.get_num_threads() // x.shape[1] if x.device.type == "cpu" else len(x))
    for start in range(0, len(x), rows):
        tile = slice(start, start + rows)
        _scan_blocks(x[tile], decay[tile], out[tile])
    return out


def _scan_blocks(x: Tensor, decay: Tensor, out: Tensor) -> None:
    """Writes the scan of `x` into `out`: first of the last column of each block, then of the others."""
    if x.shape[1] <= SHORT:
        out.copy_(_scan_columns(x, decay))
        return
    # The columns that fill no block are the first ones: the recurrence ends there, so they can be added last.
    head = x.shape[1] % BLOCK
    xs, decays, outs = ([a[:, head + t :: BLOCK] for t in range(BLOCK)] for a in (x, decay, out))
    total, carried = torch.addcmul(xs[-2], decays[-2], xs[-1]), decays[-2] * decays[-1]
    for x_t, decay_t in zip(xs[-3::-1], decays[-3::-1], strict=True):
        torch.addcmul(x_t, decay_t, total, out=total)
        carried *= decay_t
    # The first column of each block receives the scan over blocks; the other columns follow from their right neighbours.
    _scan_blocks(total, carried, outs[0])
    outs[-1].copy_(xs[-1])
    outs[-1][:, :-1].addcmul_(decays[-1][:, :-1], outs[0][:, 1:])
    for t in reversed(range(1, BLOCK - 1)):
        torch.addcmul(xs[t], decays[t], outs[t + 1], out=outs[t])
    for t in reversed(range(head)):
        torch.addcmul(x[:, t], decay[:, t], out[:, t + 1], out=out[:, t])


def _scan_columns(x: Tensor, decay: Tensor) -> Tensor:
    """The recurrence as it is written, over columns that lie together in memory."""
    # Columns of a row-major tensor are strided; transposed, each step reads and writes memory that lies together.
    columns = x.t().clone(memory_format=torch.contiguous_format)
    y = columns.unbind(0)
    for y_t, decay_t, y_next in zip(y[-2::-1], decay.unbind(1)[-2::-1], y[:0:-1], strict=True):
        y_t.addcmul_(decay_t, y_next)
    return columns.t()
