"""Small arrays, such as those of `infos`, as the JSON fields and the payload of a message; nothing is unpickled.

What is large lies in shared memory (`rlinf.envs.remote.memory`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import RLinfError

PROTOCOL = 3
"""Changes whenever a message or the layout of the memory does; both sides compare it before anything else."""
# Flags, integers, floats and texts; the bytes of an array of objects would be addresses.
_KINDS = "biufU"
# No usual number is wider, so that arrays within a payload are aligned.
_ALIGNMENT = 8


def pack(tree: Mapping[str, Any], place: str) -> tuple[dict[str, Any], bytes]:
    """A mapping of arrays, plain values and mappings, as a JSON description and the bytes of the arrays.

    Args:
        tree: arrays of numbers, flags or texts; texts, numbers and None; mappings of these.
        place: its name, for messages.

    Raises:
        RLinfError: something else is in it.
    """
    parts: list[bytes] = []
    form = _describe(tree, place, parts)
    return form, b"".join(parts)


def _describe(tree: Mapping[str, Any], place: str, parts: list[bytes]) -> dict[str, Any]:
    form: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, np.ndarray):
            array = cast("NDArray[Any]", value)
        elif isinstance(value, Mapping):
            form[key] = _describe(cast("Mapping[str, Any]", value), f"{place}['{key}']", parts)
            continue
        elif value is None or isinstance(value, (str, bool, int, float)):
            form[key] = [value]
            continue
        else:
            array = as_numpy(value)
        if array.dtype.kind not in _KINDS:
            problem = f"an array of {array.dtype} can't leave the simulator's process"
            raise RLinfError(f"{place}['{key}']", problem, "Make it an array of numbers, flags or texts.")
        form[key] = [array.dtype.str, array.shape]
        raw: bytes = array.tobytes()
        parts.append(raw + bytes(-len(raw) % _ALIGNMENT))
    return form


def unpack(form: Mapping[str, Any], payload: bytes) -> dict[str, Any]:
    """What `pack` was given; its arrays are new and can be written to.

    Raises:
        TypeError: the description names a type of objects, which bytes can't be made into.
        ValueError: the payload is shorter than the description says.
    """
    # An array over `bytes` would be read-only.
    return _restore(form, bytearray(payload), 0)[0]


def _restore(form: Mapping[str, Any], payload: bytearray, at: int) -> tuple[dict[str, Any], int]:
    tree: dict[str, Any] = {}
    for key, entry in form.items():
        if isinstance(entry, dict):
            tree[key], at = _restore(cast("dict[str, Any]", entry), payload, at)
        elif len(entry) == 1:
            tree[key] = entry[0]
        else:
            array: Any = np.ndarray(entry[1], entry[0], payload, at)
            tree[key], at = array, at + array.nbytes + -array.nbytes % _ALIGNMENT
    return tree, at
