"""The few array operations that NumPy and torch share, so that data types can hold either without importing torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np


@runtime_checkable
class Array(Protocol):
    """What a field of our data types needs of an array: a NumPy array or a torch tensor, nothing else is meant."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        ...

    def __getitem__(self, key: Any, /) -> Any: ...

    def __len__(self) -> int: ...


A = TypeVar("A", bound=Array)


def is_tensor(array: object) -> bool:
    """Whether `array` is a torch tensor; False where torch was never imported."""
    # While another thread imports torch, the module is there and lacks its classes.
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(array, tensor)


def concatenate(arrays: Sequence[A]) -> A:
    """Joins arrays of one kind along axis 0; the result has that kind."""
    if is_tensor(arrays[0]):
        return sys.modules["torch"].cat(list(arrays), dim=0)
    joined: Any = np.concatenate([np.asarray(a) for a in arrays], axis=0)
    return joined


def stack(arrays: Sequence[A], axis: int = 0) -> A:
    """Joins arrays of one kind and shape along a new axis; the result has that kind."""
    if is_tensor(arrays[0]):
        return sys.modules["torch"].stack(list(arrays), dim=axis)
    joined: Any = np.stack([np.asarray(a) for a in arrays], axis=axis)
    return joined


def as_like(like: object, array: np.ndarray[Any, Any]) -> Any:
    """A NumPy array in the kind of `like`, on its device."""
    tensor: Any = like
    return sys.modules["torch"].as_tensor(array, device=tensor.device) if is_tensor(like) else array


def full_like(like: object, shape: Sequence[int], value: float, dtype: str) -> Any:
    """One value everywhere, in the kind of `like`, on its device."""
    return as_like(like, np.full(tuple(shape), value, dtype))


def zeros_like(array: A) -> A:
    """Zeros of the kind, type, shape and device of an array."""
    # Not `array * 0`, which is not a number where the array is infinite.
    if is_tensor(array):
        return sys.modules["torch"].zeros_like(array)
    zeros: Any = np.zeros_like(np.asarray(array))
    return zeros


def as_numpy(array: object) -> np.ndarray[Any, Any]:
    """The array as NumPy, on the CPU, detached from any graph."""
    tensor: Any = array
    return tensor.detach().cpu().numpy() if is_tensor(array) else np.asarray(tensor)
