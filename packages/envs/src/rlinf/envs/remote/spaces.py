"""Spaces and metadata as JSON, so that two interpreters with different NumPy and Gymnasium can tell each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.envs.spaces import is_a
from rlinf.envs.text_array import TextArray

Json = dict[str, Any]


def write_space(space: Any, place: str) -> Json:
    """A space as plain values.

    Args:
        space: a `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary` or `TextArray`, or a `Dict` of them.
        place: its name, for messages.

    Raises:
        ConfigError: another kind of space.
    """
    if is_a(space, Dict):
        return {"kind": "dict", "spaces": [[key, write_space(part, f"{place}.{key}")] for key, part in space.items()]}
    if is_a(space, Box):
        shape, dtype = list(space.shape), space.dtype.str
        return {"kind": "box", "shape": shape, "dtype": dtype, "low": _numbers(space.low), "high": _numbers(space.high)}
    if is_a(space, Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start), "dtype": space.dtype.str}
    if is_a(space, MultiBinary):
        space = cast("Any", MultiDiscrete(np.full(tuple(space.shape), 2), dtype=space.dtype.type))
    if is_a(space, MultiDiscrete):
        nvec, start = np.asarray(space.nvec), np.asarray(space.start)
        return {
            "kind": "multi",
            "shape": list(nvec.shape),
            "nvec": _numbers(nvec),
            "start": _numbers(start),
            "dtype": space.dtype.str,
        }
    if is_a(space, TextArray):
        return {"kind": "texts", "max_length": int(space.max_length), "shape": list(space.shape or ())}
    raise ConfigError(
        place,
        f"the space {space} can't leave the simulator's process",
        "Use a Box, Discrete, MultiDiscrete, MultiBinary or TextArray.",
    )


def read_space(form: Json) -> Any:
    """What `write_space` was given."""
    return _READERS[form["kind"]](form)


def _scalar(form: Json) -> Any:
    """The type of a space's numbers, of which Gymnasium's spaces each take some."""
    return np.dtype(form["dtype"]).type


def _read_box(form: Json) -> Any:
    low, high = _array(form, "low"), _array(form, "high")
    return Box(low, high, tuple(form["shape"]), _scalar(form))


def _read_discrete(form: Json) -> Any:
    kind = np.dtype(form["dtype"])
    try:
        # Older versions of Gymnasium know int64 alone and take no `dtype`.
        return Discrete(form["n"], start=form["start"], **({} if kind == np.int64 else {"dtype": _scalar(form)}))
    except TypeError as error:
        problem = f"this Gymnasium ({gymnasium.__version__}) has no Discrete space of {kind}"
        raise ConfigError("env.action", problem, "Install a later one on this side.") from error


def _read_multi(form: Json) -> Any:
    return MultiDiscrete(_array(form, "nvec"), dtype=_scalar(form), start=_array(form, "start"))


def _read_texts(form: Json) -> Any:
    return TextArray(form["max_length"], tuple(form["shape"]))


def _read_dict(form: Json) -> Any:
    return Dict([(key, read_space(part)) for key, part in form["spaces"]])


_READERS: Mapping[str, Callable[[Json], Any]] = {
    "box": _read_box,
    "discrete": _read_discrete,
    "multi": _read_multi,
    "texts": _read_texts,
    "dict": _read_dict,
}


def _numbers(array: NDArray[Any]) -> Any:
    """One number where all are the same, else all of them in a row."""
    # As a rule all bounds of an image are the same, and thousands of numbers are saved.
    flat = array.reshape(-1)
    return flat[0].item() if flat.size and (flat == flat[0]).all() else flat.tolist()


def _array(form: Json, key: str) -> NDArray[Any]:
    value, shape, dtype = form[key], tuple(form["shape"]), np.dtype(form["dtype"])
    return np.asarray(value, dtype).reshape(shape) if isinstance(value, list) else np.full(shape, value, dtype)


def write_metadata(metadata: Mapping[str, Any]) -> Json:
    """What of an environment's metadata is plain: texts, numbers, flags, None, and lists, tuples and mappings of them."""
    return {key: _write(value) for key, value in metadata.items() if _is_plain(value)}


def read_metadata(form: Json) -> dict[str, Any]:
    """What `write_metadata` was given; tuples are tuples again."""
    return {key: _read(value) for key, value in form.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return all(isinstance(key, str) and _is_plain(entry) for key, entry in entries.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, cast("list[Any]", value)))
    return value is None or isinstance(value, (str, bool, int, float))


def _write(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {"map": {key: _write(entry) for key, entry in cast("Mapping[str, Any]", value).items()}}
    if isinstance(value, (list, tuple)):
        # Tagged, as JSON would make lists of tuples.
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_write(entry) for entry in cast("list[Any]", value)]}
    return value


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = cast("dict[str, Any]", value).items()
    if kind == "map":
        return {key: _read(entry) for key, entry in inside.items()}
    entries = [_read(entry) for entry in inside]
    return tuple(entries) if kind == "tuple" else entries
