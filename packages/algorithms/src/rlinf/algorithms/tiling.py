"""What is true of each row alone, computed some rows at a time: less memory, and for a CPU's caches less time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from rlinf.algorithms.lazy import torch
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor

CPU_TILE: Final = 2**18
"""Numbers of one tensor that each thread works on at once: some twenty of such size fit into its share of a cache."""
TILE: Final = 2**22
"""Numbers of one tensor at once on any other device: enough to keep it busy."""


def rows_at_once(tensors: Sequence[Tensor]) -> int | None:
    """How many rows a tile has; None for all, and where tensors disagree about their number."""
    rows = tensors[0].shape[0] if tensors[0].dim() else 0
    if rows == 0 or any(x.dim() == 0 or x.shape[0] != rows for x in tensors):
        return None
    cpu = tensors[0].device.type == "cpu"
    limit = CPU_TILE * torch.get_num_threads() if cpu else TILE
    at_once = max(1, limit * rows // max(1, *(x.numel() for x in tensors)))
    # A single tile would only add a copy of its result.
    return at_once if at_once < rows else None


def by_rows(function: Callable[..., tuple[Tensor, ...]], **tensors: Tensor | None) -> tuple[Tensor, ...]:
    """`function(**tensors)`, some rows after the other if there are many and nobody wants a gradient.

    Args:
        function: what it says of a row must depend on that row alone.
        tensors: `[B, …]` by name; None is passed on.
    """
    given = [x for x in tensors.values() if x is not None]
    rows = rows_at_once(given)
    if rows is None or (torch.is_grad_enabled() and any(x.requires_grad for x in given)):
        return function(**tensors)
    # Results are written into one allocation; joining tiles afterwards would hold everything twice.
    found: list[Tensor] = []
    try:
        for start in range(0, len(given[0]), rows):
            tile = slice(start, start + rows)
            parts = function(**{name: None if x is None else x[tile] for name, x in tensors.items()})
            found = found or [x.new_empty(len(given[0]), *x.shape[1:]) for x in parts]
            for whole, part in zip(found, parts, strict=True):
                whole[tile] = part
    except ShapeError:
        return function(**tensors)  # raises it again, with the sizes that the caller knows
    return tuple(found)
