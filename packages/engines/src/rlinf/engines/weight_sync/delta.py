"""What has changed between two tensors: the positions of changed elements, compressed, and their new values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf.core.errors import WeightSyncError
from rlinf.engines.lazy import torch
from rlinf.engines.weights.tensor_bytes import as_integers

if TYPE_CHECKING:
    from torch import Tensor

Codes = np.ndarray[Any, np.dtype[Any]]
WIDTHS: tuple[Any, ...] = (np.uint8, np.uint16, np.uint32)


@dataclass(frozen=True, slots=True)
class Delta:
    """The changed elements of one tensor."""

    codes: Codes
    """Gaps between their positions; see `encode_positions`."""
    values: Tensor
    """`[changed]` integers of the elements' size: their new bits."""

    @property
    def nbytes(self) -> int:
        """What travels."""
        return self.codes.nbytes + self.values.numel() * self.values.element_size()


def encode_positions(positions: Codes) -> Codes:
    """Strictly rising positions as gaps, in the unsigned type in which they take the fewest bytes.

    gᵢ = pᵢ − pᵢ₋₁ − 1 with p₋₁ = −1. With M the largest number of the type, a gap is ⌊g / M⌋ times M, each of which means M
    elements to pass over, and then g mod M, which means as many, and one that has changed.

    Args:
        positions: `[n]` int64, from 0.
    """
    gaps = np.diff(positions, prepend=-1) - 1
    sizes = [np.dtype(width).itemsize * (gaps.size + int((gaps // _top(width)).sum())) for width in WIDTHS]
    width = WIDTHS[int(np.argmin(sizes))]
    top = _top(width)
    if not gaps.size or gaps.max() < top:
        return gaps.astype(width)
    runs = gaps // top
    codes = np.full(gaps.size + int(runs.sum()), top, dtype=width)
    codes[np.cumsum(runs + 1) - 1] = gaps % top
    return codes


def decode_positions(codes: Codes) -> Codes:
    """`[n]` int64: what `encode_positions` was given."""
    changed = codes != _top(codes.dtype)
    return (np.cumsum(codes.astype(np.int64) + changed) - 1)[changed]


def delta(old: Tensor, new: Tensor) -> Delta:
    """What makes `new` of `old`, to the bit: 0 becomes −0, and a NaN keeps its payload.

    Args:
        old: any shape.
        new: of the same shape, type and device.
    """
    before, after = as_integers(old), as_integers(new)
    if after.device.type == "cpu":
        places = np.flatnonzero(before.numpy() != after.numpy())  # twice as fast as torch's
        return Delta(encode_positions(places), after[torch.from_numpy(places)])  # pyright: ignore[reportUnknownMemberType]
    positions = changed_positions(before, after)
    return Delta(encode_positions(positions.cpu().numpy()), after[positions].cpu())


def changed_positions(before: Tensor, after: Tensor) -> Tensor:
    """`[n]` int64, where two flat tensors of integers differ, in order and on their device."""
    return torch.nonzero(before != after).reshape(-1)


def apply(change: Delta, old: Tensor, place: str) -> Tensor:
    """The new tensor, in memory of its own; `old` is not changed.

    Raises:
        WeightSyncError: the change is not one of this tensor; the message begins with `place`.
    """
    new = old.detach().clone(memory_format=torch.contiguous_format)
    apply_in_place(change, new, place)
    return new


def apply_in_place(change: Delta, tensor: Tensor, place: str) -> None:
    """Makes the new tensor of the old one, which is contiguous.

    Raises:
        WeightSyncError: the change is not one of this tensor, which stays as it was; the message begins with `place`.
    """
    bits = as_integers(tensor)
    positions = decode_positions(change.codes)
    fits = positions.size == change.values.numel() and change.values.dtype == bits.dtype
    if not fits or (positions.size and positions[-1] >= bits.numel()):
        raise WeightSyncError(place, f"a patch of {positions.size} positions does not fit", "Synchronise again.")
    bits[torch.from_numpy(positions).to(bits.device)] = change.values.to(bits.device)  # pyright: ignore[reportUnknownMemberType]


def _top(width: Any) -> int:
    return int(np.iinfo(width).max)
