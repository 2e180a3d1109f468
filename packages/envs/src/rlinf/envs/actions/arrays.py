"""What an action array must be, and the type in which results are given back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinf.core.errors import RLinfError, ShapeError

Floats = NDArray[np.floating[Any]]
"""`[..., A]`, any floating type; results have the type of their first argument."""
Doubles = NDArray[np.float64]


class ActionError(RLinfError, ValueError):
    """Numbers that mean no action, such as a quaternion of length 0."""


def numbers(values: ArrayLike, place: str) -> Doubles:
    """Values of any shape as float64, in which everything here is computed.

    Raises:
        ShapeError: the numbers are no floats.
    """
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.floating):
        raise ShapeError(place, f"expected floats, found {array.dtype}", "Cast them, for instance to float32.")
    # A copy even of what is float64 already, so that callers may write into it.
    return array.astype(np.float64)


def doubles(values: ArrayLike, place: str, size: int | None = None) -> Doubles:
    """Action vectors as float64.

    Args:
        values: `[..., A]` floats.
        place: the name of the argument, for messages.
        size: what A must be; None takes any.

    Raises:
        ShapeError: there is no axis, the last axis has another size, or the numbers are no floats.
    """
    array = numbers(values, place)
    if array.ndim == 0 or (size is not None and array.shape[-1] != size):
        wanted = "[..., A]" if size is None else f"[..., {size}]"
        raise ShapeError(place, f"expected the shape {wanted}, found {list(array.shape)}")
    return array


def like(result: Floats, values: ArrayLike) -> Floats:
    """The result in the floating type of `values`."""
    return result.astype(np.asarray(values).dtype)


def column(size: int, index: int, place: str) -> int:
    """`index` as a column of an action of `size` numbers; negative ones count from the end.

    Raises:
        ShapeError: there is no such column.
    """
    if not -size <= index < size:
        raise ShapeError(place, f"expected an action with the column {index}, found {size} columns")
    return index % size
