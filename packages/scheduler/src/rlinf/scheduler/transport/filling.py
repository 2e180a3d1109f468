"""Items that are received into memory that is there already."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from rlinf.core.arrays import is_tensor
from rlinf.core.errors import ShapeError


def fill(target: Any, item: Any, place: str) -> Any:
    """Copies an array or a tensor into another, which is returned.

    Args:
        target: an array or a tensor, on any device.
        item: what came; may be an array where `target` is a tensor, and the other way round.
        place: for messages.

    Raises:
        ShapeError: `item` is neither, or has another shape or dtype.
    """
    if not _is_array(item):
        raise ShapeError(place, f"expected an array or a tensor, found {type(item).__name__}", "Use recv for other items.")
    expected, found = _form(target), _form(item)
    if expected != found:
        raise ShapeError(place, f"expected {_text(expected)}, found {_text(found)}", "Both sides must agree on them.")
    if not is_tensor(target):
        np.copyto(target, item.numpy() if is_tensor(item) else item)
        return target
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        target.copy_(item if is_tensor(item) else torch.from_numpy(item))
    return target


def _is_array(item: object) -> bool:
    return is_tensor(item) or isinstance(item, np.ndarray)


def _form(array: Any) -> tuple[tuple[int, ...], str]:
    return tuple(array.shape), str(array.dtype).removeprefix("torch.")


def _text(form: tuple[tuple[int, ...], str]) -> str:
    return f"{form[1]} {list(form[0])}"
