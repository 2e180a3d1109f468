"""Tensors as plain memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.engines.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64", 16: "int64"}
"""An integer type for each size of an element; a complex128 is two."""


def as_bytes(tensor: Tensor) -> Tensor:
    """`[numel · itemsize]` uint8, the tensor's memory where it is contiguous, else a copy; on the same device."""
    return _flat(tensor).view(torch.uint8)


def as_integers(tensor: Tensor) -> Tensor:
    """`[numel]` integers of the same size, so that what is compared is bits: 0 and −0 differ, and a NaN equals itself."""
    return _flat(tensor).view(dtype_of(INTEGERS[tensor.element_size()]))


def dtype_of(name: str) -> torch.dtype:
    """The type that torch prints as `name`, such as "torch.bfloat16"."""
    return getattr(torch, name.removeprefix("torch."))


def _flat(tensor: Tensor) -> Tensor:
    """`[numel]`; an empty one is made anew, as it may have strides that a view refuses."""
    if not tensor.numel():
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return tensor.detach().contiguous().reshape(-1)
