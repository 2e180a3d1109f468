"""The passage between NumPy, in which data travels, and torch, in which policies compute."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from rlinf.runners.lazy import torch


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    """A tensor that shares the array's memory."""
    return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]


def observed(array: NDArray[Any]) -> torch.Tensor | NDArray[Any]:
    """What a policy is shown: a tensor that shares the array's memory, and texts as they are."""
    return array if array.dtype.kind == "U" else to_torch(array)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """An array, which shares the tensor's memory if that is the host's."""
    return tensor.cpu().numpy()
