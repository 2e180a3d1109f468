"""Tensors as plain memory."""

from __future__ import annotations

import torch
from torch import Tensor

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""An integer type for each size of an element; a complex128 is two."""


def as_bytes(tensor: Tensor) -> Tensor:
    """`[numel · itemsize]` uint8, the tensor's memory where it is contiguous, else a copy; on the same device."""
    return _flat(tensor).view(torch.uint8)


def as_integers(tensor: Tensor) -> Tensor:
    """`[numel]` integers of the same size, so that what is compared is bits: 0 and −0 differ, and a NaN equals itself."""
    return _flat(tensor).view(INTEGERS[tensor.element_size()])


def dtype_of(name: str) -> torch.dtype:
    """The type that torch prints as `name`, such as "torch.bfloat16"."""
    return getattr(torch, name.removeprefix("torch."))


def _flat(tensor: Tensor) -> Tensor:
    """`[numel]`; an empty one is made anew, as it may have strides that a view refuses."""
    if not tensor.numel():
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return tensor.detach().contiguous().reshape(-1)
