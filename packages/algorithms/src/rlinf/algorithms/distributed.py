"""Sums over the ranks of torch's own process groups."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from rlinf.core.protocols import AllReduce


def all_reduce_over(group: dist.ProcessGroup | None = None) -> AllReduce:
    """What `all_reduce` arguments take, for a process group: every rank hands in a tensor and gets the sum of all.

    Args:
        group: a process group of `torch.distributed`; the default group if None. It must be initialised when it is used.

    Returns:
        A function of a tensor, which it leaves as it is; every rank must call it equally often.
    """

    def total(value: Tensor) -> Tensor:
        # `dist.all_reduce` works in place, and callers still need what they handed in.
        value = value.clone()
        dist.all_reduce(value, group=group)  # pyright: ignore[reportUnknownMemberType]
        return value

    return total
