"""Values as plain JSON that is the same in every process: what a hash of a configuration is made of."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_DEPTH: Final = 32
"""How deep values may be nested; what refers to itself ends there."""


def canonical(value: object) -> Any:
    """A value in JSON's own terms, without addresses in memory and without places on one machine.

    A function or a class is its module, its name and a hash of its source; a file its content; any other object its class and what
    it holds, of which objects are no more than their classes: a logger or a network would be different in each process.
    """
    return _canonical(value, _DEPTH, inside=False)


def canonical_hash(value: object) -> str:
    """Twelve hexadecimal digits of `canonical(value)`, the same in every process and on every machine."""
    return hashlib.sha256(json.dumps(canonical(value), sort_keys=True).encode()).hexdigest()[:12]


def _canonical(value: object, depth: int, *, inside: bool) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth == 0:
        return "…"
    inner = functools.partial(_canonical, depth=depth - 1, inside=inside)
    if isinstance(value, Enum):
        return f"{_name(type(value))}.{value.name}"
    if isinstance(value, Mapping):
        return {str(key): inner(held) for key, held in cast("Mapping[Any, object]", value).items()}
    if isinstance(value, Set):
        # A set has no order of its own, and its members may be of types that can't be compared.
        return sorted(map(inner, cast("Iterable[object]", value)), key=json.dumps)
    if isinstance(value, list | tuple):
        return [inner(held) for held in cast("Iterable[object]", value)]
    if isinstance(value, Path):
        return _sha256(value.read_bytes()) if value.is_file() else value.as_posix()
    if isinstance(value, np.ndarray | np.generic):
        array = cast("NDArray[Any]", value)
        # `tolist` makes Python's numbers of all types.
        return [str(array.dtype), inner(array.tolist())]
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, type | types.FunctionType | types.MethodType | functools.partial):
        return _called(cast("Callable[..., Any]", value), inner)
    return _held(value, depth, inside=inside)


def _called(value: Callable[..., Any], inner: Callable[[object], Any]) -> Any:
    if isinstance(value, functools.partial):
        whole = cast("functools.partial[Any]", value)
        return {"partial": inner(whole.func), "args": inner(whole.args), "keywords": inner(whole.keywords)}
    if isinstance(value, types.MethodType):
        return {"method": value.__name__, "of": inner(value.__self__)}
    own = {"class" if isinstance(value, type) else "function": _name(value), "source": _source(value)}
    cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or () if _filled(cell)]
    return {**own, "closure": inner(cells)} if cells else own


def _held(value: object, depth: int, *, inside: bool) -> Any:
    """An object by its class and what it holds; what says nothing of that by what it prints."""
    inner = functools.partial(_canonical, depth=depth - 1)
    kind = type(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"of": _name(kind), **inner(fields, inside=inside)}
    state: object = getattr(value, "__dict__", None)
    if state is None:
        return _ADDRESS.sub("", repr(value))
    own = {"of": inner(kind, inside=True)}
    return own if inside else {**own, **inner(state, inside=True)}


def _name(item: Any) -> str:
    return f"{item.__module__}:{item.__qualname__}"


def _source(item: Any) -> str:
    """A hash of how it is written; "" where nobody knows."""
    try:
        return _sha256(inspect.getsource(item).encode())
    except (OSError, TypeError):
        return ""


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _filled(cell: types.CellType) -> bool:
    try:
        # Reading an empty cell raises.
        return cell.cell_contents is not cell
    except ValueError:
        return False
